"""A stream over three drives, beside the same list: where each fragment lies, and what is on the way.

Two of the drives are mounts that go and come back. The list says of each fragment on which drive it lies
and under which key; that changes by a move that was asked to be finished, for all that it has copied at
once, and never otherwise. What a move was made from stays for the grace, and as long as a lease needs it.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from hypothesis.stateful import initialize, invariant
from support.drives import a_table, register
from support.manifest import STREAM, Fuse, GapRange
from support.mounts import Mount
from support.rebuilding import put_registry

from bottomless.drives.base import Body
from bottomless.errors import StoreError
from bottomless.formats.checks import crc32c
from bottomless.formats.keys import FragmentPlace, fragment_place
from bottomless.model.config import parse_config
from bottomless.model.fragment import FragmentInfo
from bottomless.model.names import TENANT_DEFAULT, Uid
from bottomless.model.stream import StreamRecord
from bottomless.model.tiers import Move
from bottomless_server.drives.memory import MemoryDrive
from bottomless_server.manifest.mutators.sessions import intend
from bottomless_server.manifest.removal.deleter import Deleter
from bottomless_server.manifest.tree.committer import Committer
from model.takeovers import Leaf, ManifestBesideAList

HOT = 0
SHELF, COLD = 1, 7
NUMBERS = (SHELF, COLD)
POLICIES: Sequence[Sequence[dict[str, Any]]] = [
    [],
    [{"drive": f"d{COLD}"}],
    [{"drive": f"d{SHELF}", "max_bytes": "2 KiB"}, {"drive": f"d{COLD}"}],
    [{"drive": "default", "max_bytes": "1 KiB"}, {"drive": f"d{COLD}"}],
]


class Shelf(Mount):
    """A mount; who changes what is on it may die before that or after it."""

    def __init__(self, clock: Callable[[], int], number: int, fuse: Fuse) -> None:
        super().__init__(clock, number)
        self._fuse = fuse
        self.before_delete: Callable[[], Awaitable[None]] | None = None
        """Happens once, before the next delete of a fragment."""

    async def put(self, object_key: str, body: Body, crc: int) -> None:
        self._fuse.burn()
        await super().put(object_key, body, crc)
        self._fuse.burn()

    async def delete(self, object_keys: Sequence[str]) -> dict[str, StoreError]:
        if self.before_delete is not None and any("/data/" in key for key in object_keys):
            happen, self.before_delete = self.before_delete, None
            await happen()
        self._fuse.burn()
        failed = await super().delete(object_keys)
        self._fuse.burn()
        return failed


class Place(NamedTuple):
    """What an entry says of where its fragment lies."""

    drive: int
    copy: int


class Source(NamedTuple):
    """What a move has left where it was."""

    leaf: FragmentInfo
    place: FragmentPlace
    until: int
    """The end of the grace."""
    leases: frozenset[str]
    """Those of which the holders may have been told this place."""


class OverShelves(ManifestBesideAList):
    def __init__(self) -> None:
        super().__init__()
        self.shelves = {
            number: Shelf(self.harness.clock.true, number, self.harness.fuse) for number in NUMBERS
        }
        self.tiers: Sequence[dict[str, Any]] = ()
        self.places: dict[Uid, Place] = {}
        self.moves: dict[int, Move] = {}
        """All that ever were in the record, by their numbers, as they were seen last."""
        self.asked: dict[int, list[frozenset[Uid]]] = {}
        """What was said to be copied when a move was to be finished, by its number."""
        self.asked_at: dict[int, int] = {}
        """When that was said last: the grace is counted from no later moment."""
        self.over: set[int] = set()
        """The numbers of moves that were done, or given up."""
        self.sources: list[Source] = []
        self.given_up: set[int] = set()
        """Drives that were said to be lost."""
        self.lost: set[Uid] = set()

    @initialize()
    def create(self) -> None:
        self.quietly(self._mount())
        super().create()

    async def _mount(self) -> None:
        harness = self.harness
        table = await a_table(harness.drive, *NUMBERS, open_drive=self.shelves.__getitem__)
        await register(harness.drive, *NUMBERS)
        harness.use_drives(table)
        self.deleter = Deleter(harness.context)

    def drive(self, number: int) -> MemoryDrive:
        return self.harness.drive if number == HOT else self.shelves[number].mounted

    def mount_all(self) -> None:
        """Have all drives back, but those that were given up."""
        for number, shelf in self.shelves.items():
            shelf.is_gone = number in self.given_up

    def configure(self, **members: object) -> None:
        if self.tiers:
            members["tiers"] = list(self.tiers)
        config = parse_config(members, tiered=bool(self.tiers))

        def change(record: StreamRecord) -> StreamRecord:
            return replace(record, config=config)

        self.quietly(self.harness.streams.update(STREAM, change))

    def stays(self, leaf: FragmentInfo) -> bool:
        """What lies on a drive that was given up is deleted by nobody."""
        at = self.places.get(leaf.uid, Place(HOT, 0))
        return at.drive not in self.given_up and super().stays(leaf)

    def is_refused(self, leaf: FragmentInfo) -> bool:
        """Nobody looks at the queue of a drive that was given up, and after that whatever is live may have
        been taken back in place of what was lost."""
        del leaf
        return not self.given_up

    def is_durable(self, uid: Uid) -> bool:
        """Nobody looks any more for what was put on a drive that was given up."""
        return self.places.get(uid, Place(HOT, 0)).drive not in self.given_up

    def taken_over(self, before: StreamRecord, record: StreamRecord) -> None:
        super().taken_over(before, record)
        self.quietly(self._register_home())

    async def _register_home(self) -> None:
        """As an owner does before it acknowledges anything: registry objects that were put meanwhile, for
        the drives, name no home."""
        harness = self.harness

        def newer(record: StreamRecord) -> StreamRecord:
            return replace(record, registry_version=record.registry_version + 1)

        await put_registry(harness, await harness.streams.update(STREAM, newer))

    async def intend(self, committer: Committer, firsts: Sequence[int]) -> tuple[Uid, ...]:
        return await intend(self.harness.context, committer, self.session, firsts, NUMBERS)

    async def put_fragment(self, uid: Uid, first: int) -> FragmentInfo | None:
        """Put it on the drive that the intent says."""
        record = await self.harness.record()
        number = next((one.drive for one in record.intents if one.uid == uid), HOT)
        info = await super().put_fragment(uid, first)
        assert info is not None
        self.places[uid] = Place(number, 0)
        if number == HOT:
            return info
        place = fragment_place(STREAM, info, TENANT_DEFAULT)
        done = await self.carry(place, place._replace(drive=number))
        assert await self.harness.drive.delete([place.object_key]) == {}
        self.events["a fragment was put on another drive"] += done
        return info if done else None

    async def carry(self, source: FragmentPlace, target: FragmentPlace) -> bool:
        """Put an object once more, if it is not there already; whether it is there now."""
        drives = self.harness.context.drives
        try:
            data = bytes(await drives.of(source.drive).get(source.object_key))
            if not self.drive(target.drive).has(target.object_key):
                await drives.of(target.drive).put(target.object_key, [data], crc32c(data))
            else:
                await drives.of(target.drive).head(target.object_key)
        except StoreError:
            return False
        return True

    def known_place(self, leaf: FragmentInfo) -> FragmentPlace:
        at = self.places.get(leaf.uid, Place(HOT, 0))
        return fragment_place(STREAM, leaf._replace(**at._asdict()), TENANT_DEFAULT)

    def bare(self, leaf: Leaf) -> Leaf:
        return leaf._replace(drive=HOT, copy=0) if isinstance(leaf, FragmentInfo) else leaf

    def is_kept(self, leaf: FragmentInfo, found: Sequence[FragmentInfo]) -> bool:
        """An older root may name what a move was made from, where its copy is lost. What was published
        after that root is adopted then, under uids that nobody knew."""
        return _records(leaf) in {_records(one) for one in found}

    def is_given_up(self, leaf: FragmentInfo, leaves: Sequence[FragmentInfo | GapRange]) -> bool:
        """The root of a loss that died of its EXEC is newer than what was published, and a rebuild believes
        it, as that of any publish that died there. What it has a gap for lay on a drive that was given up,
        and is whole on no other one."""
        gaps = [one for one in leaves if isinstance(one, GapRange)]
        in_gap = any(
            gap.first_offset <= leaf.first_offset and leaf.next_offset <= gap.next_offset
            for gap in gaps
        )
        if not in_gap or self.is_durable(leaf.uid) or self.is_whole_somewhere(leaf.uid):
            return False
        self.events["a rebuild believed the loss of a drive that died of its EXEC"] += 1
        return True

    def is_whole_somewhere(self, uid: Uid) -> bool:
        """Whether a drive that was not given up has a fragment under this uid."""
        return any(
            "/data/" in key and f".{uid}." in key
            for number in {HOT, *NUMBERS} - self.given_up
            for key in self.drive(number).object_keys
        )

    def copy_of_drives(self) -> Callable[[], None]:
        put_back = super().copy_of_drives()
        kept = [(shelf, shelf.mounted.copy(), shelf.is_gone) for shelf in self.shelves.values()]

        def all_back() -> None:
            put_back()
            for shelf, stored, is_gone in kept:
                shelf.mounted.put_back(stored)
                shelf.is_gone = is_gone

        return all_back

    def as_put(
        self, record: StreamRecord, leaves: Sequence[FragmentInfo | GapRange]
    ) -> list[FragmentInfo | GapRange]:
        self.moves |= {move.copy: move for move in record.moves}
        fragments = [leaf for leaf in leaves if isinstance(leaf, FragmentInfo)]
        self._note_moved(record, fragments)
        self._note_lost([leaf for leaf in leaves if isinstance(leaf, GapRange)])
        return [self.bare(leaf) for leaf in leaves]

    def _note_moved(self, record: StreamRecord, fragments: Sequence[FragmentInfo]) -> None:
        before = {leaf.uid: self.places[leaf.uid] for leaf in fragments}
        moved: dict[int, set[Uid]] = {}
        for leaf in fragments:
            now = Place(leaf.drive, leaf.copy)
            if before[leaf.uid].drive in self.given_up and now != before[leaf.uid]:
                self.events["what lay on a drive that was given up was whole on another"] += 1
                assert now.drive not in self.given_up, "it is named on a drive that was given up"
                self.places[leaf.uid] = now
            elif now != before[leaf.uid]:
                assert now.copy in self.moves, "it lies elsewhere, and no move took it there"
                moved.setdefault(now.copy, set()).add(leaf.uid)
                self._note_source(leaf)
                self.places[leaf.uid] = now
        for copy, uids in moved.items():
            self.events["a move was done"] += 1
            move = self.moves[copy]
            assert copy not in {one.copy for one in record.moves}, "a move was done and goes on"
            assert copy not in self.over, "a move was done that had been given up"
            self.over.add(copy)
            there = {
                leaf.uid
                for leaf in fragments
                if before[leaf.uid].drive == move.from_drive
                and move.first_offset <= leaf.first_offset
                and leaf.next_offset <= move.next_offset
            }
            asked = [one & there for one in self.asked.get(copy, [])]
            assert uids in asked, "what a move names is not what it has copied"

    def _note_source(self, leaf: FragmentInfo) -> None:
        clock, grace_ms = self.harness.clock, self.harness.context.settings.manifest_delete_grace_ms
        until = self.asked_at.get(leaf.copy, 0) + grace_ms
        held = {
            lease_id
            for lease_id, lease in self.leases.items()
            if lease.expires_at > clock.now and lease.first_offset < leaf.next_offset
        }
        self.sources.append(Source(leaf, self.known_place(leaf), until, frozenset(held)))

    def _note_lost(self, gaps: Sequence[GapRange]) -> None:
        """Gaps in the place of what lay on a drive that was given up; there are no others."""
        begun = {gap.first_offset: gap for gap in gaps}
        for at, leaf in enumerate(self.seen):
            gap = begun.get(leaf.first_offset)
            if gap is None or gap == leaf or isinstance(leaf, GapRange):
                continue
            assert self.places[leaf.uid].drive in self.given_up, "given up, and its drive is not"
            self.events["a fragment was lost with its drive"] += 1
            self.seen[at] = GapRange(leaf.first_offset, leaf.next_offset)
            self.lost.add(leaf.uid)
        for uid in self.applied:
            # Published and lost in one step of the story: the list never had it.
            gap = begun.get(self.put[uid].first_offset)
            if gap is not None and self.places[uid].drive in self.given_up:
                self.lost.add(uid)
        self.applied -= self.lost

    def note(self, committer: Committer) -> None:
        super().note(committer)
        self.applied -= self.lost

    def nothing_else_is_stored_on(self, drives: Collection[int]) -> None:
        """Of the stream nothing is stored but what is named, or may come into it still."""
        record = self.quietly(self.harness.record())
        named = {
            self.known_place(leaf) for leaf in self.published() if isinstance(leaf, FragmentInfo)
        }
        uids = {intent.uid for intent in record.intents}
        copies = {move.copy for move in record.moves}
        for number in drives:
            for key in self.drive(number).object_keys:
                if f"/{STREAM}"[1:] not in key or "/data/" not in key:
                    continue
                uid, copy = _uid_and_copy(key)
                stray = FragmentPlace(number, key) not in named
                assert not stray or uid in uids or copy in copies, f"nobody names {number}:{key}"

    @invariant()
    def what_was_moved_stays_where_it_was_for_as_long_as_somebody_may_read_it(self) -> None:
        if not self.committers:
            return
        record = self.quietly(self.harness.record())
        now, left = self.harness.clock.now, list[Source]()
        for source in self.sources:
            held = any(
                lease_id in self.leases and self.leases[lease_id].expires_at > now
                for lease_id in source.leases
            )
            young = self.harness.clock.true_now < source.until
            gone = source.leaf.next_offset <= record.condemned_next
            if gone or source.leaf.uid in self.lost or not (young or held):
                continue
            self.events["a lease held what was moved"] += held and not young
            left.append(source)
            stored = self.drive(source.place.drive).has(source.place.object_key)
            assert stored, "it is gone, and somebody may read it there"
        self.sources = left


def _records(leaf: FragmentInfo) -> FragmentInfo:
    """A fragment but for its object."""
    return leaf._replace(uid=Uid("0" * 32), size=0, index_size=0, crc=0)


def _uid_and_copy(object_key: str) -> tuple[str, int]:
    _, uid, *rest = object_key.rpartition("/")[2].split(".")
    return uid, int(rest[0], 16) if len(rest) > 1 else 0
