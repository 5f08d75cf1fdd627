"""A stream over two drives in memory, an uploader that copies, and a look at what is stored."""

from collections.abc import Sequence

from bottomless.drives.base import Drive
from bottomless.formats.checks import crc32c
from bottomless.formats.keys import fragment_place
from bottomless.model.fragment import FragmentInfo
from bottomless.model.names import Uid
from bottomless_server.manifest.mutators.moves import Claimed, Wanted, claim, enter, finish
from bottomless_server.manifest.mutators.sessions import intend
from bottomless_server.manifest.removal.deleter import Deleter
from bottomless_server.manifest.tree.committer import Committer
from bottomless_server.manifest.tree.resolver import root_object_key
from bottomless_server.stores.generation import check_generation
from support.drives import a_table
from support.manifest import STREAM, ManifestHarness

HOT, COLD = 0, 7
TENANT = "default"
GRACE_MS = 2 * 3_600_000
"""Longer than any time that something waits in a delete queue."""


class Moving:
    """One stream of fragments with ten records each, all of them on drive 0 at first."""

    def __init__(self, harness: ManifestHarness, committer: Committer) -> None:
        self.harness = harness
        self.committer = committer
        self._copied: dict[int, set[Uid]] = {}
        """What was copied, by the numbers of moves."""

    def drive(self, number: int) -> Drive:
        return self.harness.context.drives.of(number)

    async def reopen(self) -> None:
        """Go on as another process, which knows only what is stored."""
        self.committer = await Committer.open(self.harness.context, STREAM)

    async def add(self, count: int) -> None:
        """Publish so many fragments more."""
        first = self.committer.record.published_next
        firsts = [first + 10 * number for number in range(count)]
        uids = await intend(self.harness.context, self.committer, "s1", firsts)
        fragments = [
            await self.harness.put_fragment(uid, at) for uid, at in zip(uids, firsts, strict=True)
        ]
        await self.committer.register("s1", fragments)
        await self.committer.flush()

    async def enter(self, first: int, end: int, source: int = HOT, target: int = COLD) -> int:
        """Decide a move; returns its number."""
        wanted = Wanted(first, end, source, target)
        return (await enter(self.harness.context, self.committer, wanted)).copy

    async def copy(self, number: int, session: str = "m1") -> Claimed:
        """Take up a move and put its copies."""
        claimed = await claim(self.harness.context, self.committer, number, session)
        await self.put_copies(claimed)
        return claimed

    async def put_copies(self, claimed: Claimed) -> None:
        """Put the copies of a move, those that are not there."""
        move = claimed.move
        self._copied.setdefault(move.copy, set()).update(info.uid for info in claimed.fragments)
        for info in claimed.fragments:
            data = await self.drive(move.from_drive).get(self._key(info))
            key = self._key(info._replace(drive=move.to_drive, copy=move.copy))
            if key not in await self.keys(move.to_drive):
                await self.drive(move.to_drive).put(key, [bytes(data)], crc32c(bytes(data)))

    async def finish(self, number: int, session: str = "m1") -> None:
        """Tell that all is there that was copied."""
        copied = self._copied.get(number, set())
        await finish(self.harness.context, self.committer, number, session, copied)

    async def move(self, first: int, end: int, source: int = HOT, target: int = COLD) -> None:
        """All of a move."""
        number = await self.enter(first, end, source, target)
        await self.copy(number)
        await self.finish(number)

    async def delete(self, passes: int = 12) -> None:
        """Let the deleter do what is due, also what it finds in doing so."""
        deleter = Deleter(self.harness.context)
        for _ in range(passes):
            if not await deleter.make_pass():
                break
        assert deleter.refused_count == 0, "a live object was to be deleted"

    async def after_the_grace(self) -> None:
        """Let enough time pass that nothing waits any more, and have it deleted."""
        self.harness.clock.now += GRACE_MS
        await self.delete()

    async def keys(self, number: int) -> list[str]:
        """What is stored of the stream on a drive."""
        return [facts.object_key async for facts in self.drive(number).list(f"{TENANT}/")]

    async def fragments(self, number: int) -> list[str]:
        """The keys of the fragments that are stored on a drive."""
        return [key for key in await self.keys(number) if "/data/" in key]

    async def named(self, number: int) -> list[str]:
        """The keys of the fragments that the manifest names on a drive."""
        return [self._key(info) for info in await self.leaves() if info.drive == number]

    async def leaves(self) -> Sequence[FragmentInfo]:
        return await self.harness.leaves()

    async def check_all_named_is_there(self) -> None:
        for number in (HOT, COLD):
            assert set(await self.named(number)) <= set(await self.fragments(number))

    async def check_nothing_else_is_there(self) -> None:
        """Once everything is deleted that was to be: named is what is stored."""
        for number in (HOT, COLD):
            assert await self.fragments(number) == await self.named(number)
        roots = [key for key in await self.keys(HOT) if "/metadata/root." in key]
        assert roots == [root_object_key(await self.harness.record())]
        groups = [key for key in await self.keys(HOT) if key[-3:-1] == ".g"]
        assert len(groups) == await self.harness.group_count()

    def _key(self, info: FragmentInfo) -> str:
        return fragment_place(STREAM, info, TENANT).object_key


async def a_moving_stream(count: int, *others: int) -> Moving:
    """A stream with so many fragments; `others` are drives beside the two."""
    harness = ManifestHarness()
    table = await a_table(harness.drive, COLD, *others)
    harness.use_drives(table)
    await check_generation(harness.drive, harness.coordination)
    moving = Moving(harness, await harness.open())
    await moving.add(count)
    return moving
