"""Add to a page what object storage holds of its range.

On the record's path: after roots.py found the root, with fragments.py; page_reader.py goes on
with the tail.
"""

from bottomless.drives.base import ObjectMissing
from bottomless.errors import Code, Corrupt, StoreError
from bottomless.model.manifest import EntryKind, fragment_info
from bottomless_server.reader.core.filtered_page import FilteredPageBuilder
from bottomless_server.reader.core.page import Gap, PageBuilder, gap_reason
from bottomless_server.reader.core.scan import PassedOver
from bottomless_server.reader.fragments import FragmentPart, Fragments, Part
from bottomless_server.reader.read_ahead import read_ahead
from bottomless_server.reader.roots import ManifestMoved, Roots, Tree
from bottomless_server.reader.verified import off_loop
from bottomless_server.runtime.base.on_loop import loop_time


class StoredTier:
    def __init__(self, roots: Roots, fragments: Fragments, read_ahead_size: int) -> None:
        self._roots = roots
        self._fragments = fragments
        self._read_ahead_size = read_ahead_size

    async def add(self, builder: PageBuilder, tree: Tree) -> None:
        """Add what object storage holds from the page's position on.

        Raises:
            ManifestMoved: a fragment is gone, and so is the root that named it.
            Corrupt: a fragment is damaged, or gone while the manifest names it.
        """
        while not (builder.full or builder.spent) and (
            builder.position < tree.state.published_next
        ):
            before = builder.position
            wanted = await self._plan(builder, tree)
            if wanted:
                await self._add_parts(builder, tree, wanted)
            if builder.scan is not None:
                builder.scan.end_plan()
            if builder.position == before:
                return

    async def _plan(self, builder: PageBuilder, tree: Tree) -> list[FragmentPart]:
        """The fragments, or parts of them, that the page needs next, up to a gap."""
        wanted: list[FragmentPart] = []
        offset, size = builder.position, builder.wanted_size
        end = builder.end
        async for leaf in self._roots.leaves_under(tree, offset, builder.scan):
            if offset >= end:
                break
            if isinstance(leaf, PassedOver):
                if wanted:
                    wanted[-1] = wanted[-1]._replace(passes=(*wanted[-1].passes, leaf))
                else:
                    _pass_over(builder, leaf)
                offset = leaf.next_offset
                continue
            if leaf["kind"] == EntryKind.GAP:
                if not wanted and size > 0:
                    first, end = int(leaf["first_offset"]), int(leaf["next_offset"])
                    builder.skip(Gap(first, end, gap_reason(int(leaf["reason"]))))
                break
            info = fragment_info(leaf)
            if wanted:
                wanted[-1] = wanted[-1]._replace(after=info)
            if size <= 0:
                break
            rest = info.size * (info.next_offset - offset) // info.record_count
            follows = bool(wanted)
            part = FragmentPart(info, offset, end, min(rest, size) or 1, follows, builder.reads_to)
            if builder.scan is not None:
                part = part._replace(asked=builder.scan.asked)
            wanted.append(part)
            size -= rest
            offset = info.next_offset
        return wanted

    async def _add_parts(
        self, builder: PageBuilder, tree: Tree, wanted: list[FragmentPart]
    ) -> None:
        async def get(part: FragmentPart) -> Part:
            return await self._fragments.read(tree.stream, part)

        async with read_ahead(get, wanted, self._read_ahead_size) as parts:
            for part in wanted:
                try:
                    chunks = await anext(parts)
                except ObjectMissing as error:
                    raise await self._missing(tree, part) from error
                await self._add_chunks(builder, part, chunks)
                if builder.scan is not None:
                    builder.scan.check_time(loop_time())
                # Sizes were estimated: where the part ends early, the next one does not follow.
                if builder.full or builder.spent or builder.position < part.info.next_offset:
                    return
                for passed in part.passes:
                    _pass_over(builder, passed)
                    if builder.full or builder.position < passed.next_offset:
                        return

    async def _add_chunks(
        self,
        builder: PageBuilder,
        part: FragmentPart,
        found: Part,
    ) -> None:
        def add(_: memoryview) -> None:
            for one in found.chunks:
                if isinstance(one, PassedOver):
                    _pass_over(builder, one)
                    continue
                before, count = builder.position, builder.count
                builder.add(*one)
                if one[0].first_offset in found.maybe:
                    _note_false(builder, one[0].first_offset, one[0].next_offset, before, count)

        before, count = builder.position, builder.count
        size = sum(len(one[1]) for one in found.chunks if not isinstance(one, PassedOver))
        try:
            await off_loop(size, add, memoryview(b""))
        except Corrupt as error:
            # Its checksums were right: it was written so.
            facts = {"fragment_id": part.info.fragment_id}
            raise Corrupt("a fragment is damaged", facts=facts) from error
        info = part.info
        if found.maybe and builder.scan is not None:
            if before <= info.first_offset:
                builder.scan.enter_fragment(info.uid, count)
            if builder.position >= info.next_offset:
                builder.scan.leave_fragment(info.uid, builder.count)

    async def _missing(self, tree: Tree, part: FragmentPart) -> StoreError:
        newer = await self._roots.refreshed(tree.stream.stream_id)
        if newer.version > tree.state.version:
            return ManifestMoved("the manifest changed while it was read")
        return Corrupt(
            "a fragment that the manifest names is missing",
            code=Code.DATA_MISSING,
            facts={"fragment_id": part.info.fragment_id},
        )


def _note_false(builder: PageBuilder, first: int, ends: int, before: int, count: int) -> None:
    """Count a chunk that filters let pass and that held nothing asked for.

    One of which the page has looked at a part alone says nothing. `before` and `count` are the
    page's position and records before it was looked at.
    """
    looked_at = before <= first and builder.position >= ends
    if builder.scan is not None and looked_at and builder.count == count:
        builder.scan.false_chunk_count += 1


def _pass_over(builder: PageBuilder, passed: PassedOver) -> None:
    """Go on after what is not read, if the page has come to it and does not end before."""
    assert isinstance(builder, FilteredPageBuilder), "only a page with a filter leaves anything out"
    here = passed.first_offset <= builder.position < passed.next_offset
    if here and not (builder.full or builder.spent):
        if builder.position == builder.start == passed.first_offset:
            builder.first_timestamp = passed.timestamp
        builder.pass_over(passed.next_offset, passed.size, passed.fragment_count)
