"""A manifest service in memory, with stores that fail when a test says so."""

import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from enum import Enum, auto
from typing import Final, NamedTuple, TypeVar

import orjson

from bottomless.drives.base import Body, DriveAmbiguous, DriveUnavailable
from bottomless.errors import StoreError
from bottomless.formats.fragment import pack_fragment
from bottomless.formats.stream_record import SERVED, decode_record, encode_record
from bottomless.model.config import StreamConfig, parse_stored_config
from bottomless.model.fragment import FragmentInfo
from bottomless.model.manifest import EntryKind, Node, fragment_info
from bottomless.model.names import NodeId, StreamId, StreamName, Uid, uid_from_bytes
from bottomless.model.stream import EpochStart, RootPointer, StreamRecord, StreamState, check_record
from bottomless_server.coordination.base import (
    Changes,
    CoordinationUnavailable,
    CoordinationUnknown,
    Decide,
    Due,
    Room,
)
from bottomless_server.coordination.memory import MemoryCoordination, Watched
from bottomless_server.drives.checked_parts import parts_in_memory
from bottomless_server.drives.memory import MemoryDrive
from bottomless_server.drives.table import DriveTable
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.core.clock_trust import ClockTrust
from bottomless_server.manifest.common.owners import NodeAt
from bottomless_server.manifest.mutators.sessions import begin, intend
from bottomless_server.manifest.settings import ManifestSettings
from bottomless_server.manifest.tree.committer import Committer
from bottomless_server.manifest.tree.resolver import load_root
from bottomless_server.protocol.held import HeldThere
from bottomless_server.protocol.members import MemberChange
from bottomless_server.protocol.places import TailPlace
from bottomless_server.stores.nodes import load_node
from bottomless_server.stores.put_retries import put_object
from bottomless_server.stores.streams import Streams, delete_later, stream_key
from support.chunks import a_chunk
from support.object_keys import fragment_key, group_key, root_key

STREAM = StreamId("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11")
OWNER = "unix:///owner.sock"
NODE = NodeId("0123456789abcdef0123456789abcdef")


class Clock:
    """The wall clock of one machine. `skew_ms` sets it, while time goes on as it did."""

    def __init__(self) -> None:
        self.true_now = 1_000_000
        self.skew_ms = 0

    def __call__(self) -> int:
        return self.now

    def true(self) -> int:
        """What all other clocks of the test say, and how much time has passed since 1970."""
        return self.true_now

    @property
    def now(self) -> int:
        return self.true_now + self.skew_ms

    @now.setter
    def now(self, now: int) -> None:
        """Let time pass, on every clock."""
        self.true_now = now - self.skew_ms


class Uids:
    """Uids in the order of their numbers, so that a failing story can be read."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def __call__(self) -> Uid:
        return Uid(f"{next(self._numbers):032x}")


class Fault(Enum):
    NONE = auto()
    UNAVAILABLE = auto()
    LOST_APPLIED = auto()
    """EXEC was done, its reply was lost."""
    LOST_LATE = auto()
    """EXEC is on its way; it arrives when the test calls `arrive`, if its WATCH still holds."""


class Crash(Exception):
    """The process is gone, in the middle of what it did."""


class Fuse:
    """Lets a process crash before or after the n-th thing that it changes in any store."""

    def __init__(self) -> None:
        self.left: int | None = None

    def burn(self) -> None:
        if self.left is None:
            return
        self.left -= 1
        if self.left < 0:
            self.left = None
            raise Crash


T = TypeVar("T")


class FaultyCoordination(MemoryCoordination):
    """Meets the next transactions with the faults that the test has queued."""

    def __init__(self, clock: Callable[[], int]) -> None:
        super().__init__(clock)
        self.faults: list[Fault] = []
        self.fuse = Fuse()
        self.before_transact: Callable[[], Awaitable[None]] | None = None
        """Happens once, before the next transaction."""
        self.after_due_at: Callable[[], Awaitable[None]] | None = None
        """Happens once, after somebody asked when keys are due."""
        self._late: list[tuple[Watched, Changes]] = []

    async def transact(
        self,
        redis_keys: Sequence[str],
        decide: Decide[T],
        attempts: int = 16,
        room: Room | None = None,
    ) -> T:
        if self.before_transact is not None:
            happen, self.before_transact = self.before_transact, None
            await happen()
        fault = self.faults.pop(0) if self.faults else Fault.NONE
        if fault is Fault.UNAVAILABLE:
            raise CoordinationUnavailable("nobody answers")
        if fault is Fault.LOST_LATE:
            watched = self.watch(redis_keys, room)
            self._late.append((watched, decide(watched.values)[0]))
            raise CoordinationUnknown("the reply was lost")
        self.fuse.burn()
        value = await super().transact(redis_keys, decide, attempts, room)
        self.fuse.burn()
        if fault is Fault.LOST_APPLIED:
            raise CoordinationUnknown("the reply was lost")
        return value

    async def settle(self, dues: Sequence[Due]) -> None:
        self.fuse.burn()
        await super().settle(dues)
        self.fuse.burn()

    async def due_at(self, redis_key: str, members: Sequence[bytes]) -> list[int | None]:
        found = await super().due_at(redis_key, members)
        if self.after_due_at is not None:
            happen, self.after_due_at = self.after_due_at, None
            await happen()
        return found

    def arrive(self) -> int:
        """Let what is on its way arrive; returns how many of them changed anything."""
        done = sum(self.execute(watched, changes) for watched, changes in self._late)
        self._late.clear()
        return done


class FaultyDrive(MemoryDrive):
    """Refuses changes while `failing`, and keeps what it did."""

    has_own_clock = True

    def __init__(self, clock: Callable[[], int]) -> None:
        super().__init__(clock)
        self.failing = False
        self.calls: list[tuple[str, str]] = []
        self.fuse = Fuse()
        self.clock_skew_ms = 0
        self.has_own_clock = True
        self.deleting = False
        """Set by a test while its `before_delete` runs."""
        self.stubborn: set[str] = set()
        """Keys that cannot be deleted."""
        self.slow_puts = 0
        """So many of the next puts are answered by nothing, and land when the test calls `land`."""
        self._late: list[tuple[str, bytes, int]] = []
        self.before_put: Callable[[], Awaitable[None]] | None = None
        """Happens once, before the next put."""
        self.before_delete: Callable[[], Awaitable[None]] | None = None
        """Happens once, before the next delete of a key that has `before_delete_of` in it."""
        self.before_delete_of = ""

    async def put(self, object_key: str, body: Body, crc: int) -> None:
        if self.before_put is not None:
            happen, self.before_put = self.before_put, None
            await happen()
        if self.failing:
            raise DriveUnavailable("the store is down")
        if self.slow_puts:
            self.slow_puts -= 1
            self._late.append((object_key, b"".join(await parts_in_memory(body)), crc))
            raise DriveAmbiguous("it is on its way", retryable=False)
        self.fuse.burn()
        await super().put(object_key, body, crc)
        self.fuse.burn()
        self.calls.append(("put", object_key))

    async def land(self) -> int:
        """Let puts that were slow land, where nothing has their keys; returns how many did."""
        done = 0
        for object_key, data, crc in self._late:
            if not self.has(object_key):
                await super().put(object_key, [data], crc)
                done += 1
        self._late.clear()
        return done

    async def delete(self, object_keys: Sequence[str]) -> dict[str, StoreError]:
        if self.failing:
            return {key: DriveUnavailable("the store is down") for key in object_keys}
        if self.before_delete is not None and any(
            self.before_delete_of in key for key in object_keys
        ):
            happen, self.before_delete = self.before_delete, None
            await happen()
        self.fuse.burn()
        kept = self.stubborn & set(object_keys)
        gone = [key for key in object_keys if key not in kept]
        self.calls += [("delete", key) for key in gone]
        failed: dict[str, StoreError] = {key: DriveUnavailable("not this one") for key in kept}
        failed |= await super().delete(gone)
        self.fuse.burn()
        return failed

    async def clock(self) -> int:
        return await super().clock() + self.clock_skew_ms


class KnownOwners:
    """Owners that say what the test has written here."""

    def __init__(self) -> None:
        self.committed: dict[StreamId, int] = {}
        self.first: dict[StreamId, int] = {}
        self.in_tail: dict[int, TailPlace] = {}
        """Where offsets lie in the owner's log."""
        self.heard: list[tuple[int, int]] = []
        self.closed: list[StreamId] = []
        self.meant: list[NodeId] = []
        """The nodes for which that was, and what was said of layouts."""
        self.fenced: list[tuple[StreamId, int]] = []
        """What was said of layouts."""
        self.given: list[tuple[StreamId, NodeId]] = []
        """Streams that were to be given to other nodes."""
        self.changed: list[tuple[MemberChange, NodeId]] = []
        """Nodes that were to be taken in, or let go."""
        self.on_change: Callable[[MemberChange, NodeId], Awaitable[None]] | None = None
        self.held_by: dict[str, HeldThere] = {}
        """What nodes say that they hold, by their addresses."""
        self.on_transfer: Callable[[], Awaitable[None]] | None = None
        self.closing = True
        """Whether they answer when they are asked to stop."""

    async def committed_next(
        self, url: str, stream_id: StreamId, timeout_seconds: float
    ) -> int | None:
        del url, timeout_seconds
        return self.committed.get(stream_id)

    async def published(
        self, url: str, stream_id: StreamId, next_offset: int, version: int
    ) -> bool:
        del url, stream_id
        self.heard.append((next_offset, version))
        return True

    async def first_offset(
        self, url: str, stream_id: StreamId, timeout_seconds: float
    ) -> int | None:
        del url, timeout_seconds
        return self.first.get(stream_id)

    async def places(
        self, url: str, stream_id: StreamId, offsets: Sequence[int], timeout_seconds: float
    ) -> list[TailPlace | None] | None:
        del url, stream_id, timeout_seconds
        return [self.in_tail.get(one) for one in offsets] if self.in_tail else None

    async def close(self, at: NodeAt, stream_id: StreamId, timeout_seconds: float) -> bool:
        del timeout_seconds
        self.closed.append(stream_id)
        self.meant.append(at.node)
        return self.closing

    async def transfer(
        self, at: NodeAt, stream_id: StreamId, node: NodeId, timeout_seconds: float
    ) -> None:
        del at, timeout_seconds
        self.given.append((stream_id, node))
        if self.on_transfer is not None:
            await self.on_transfer()

    async def change_members(
        self,
        at: NodeAt,
        stream_id: StreamId,
        change: MemberChange,
        node: NodeId,
        timeout_seconds: float,
    ) -> None:
        del at, stream_id, timeout_seconds
        self.changed.append((change, node))
        if self.on_change is not None:
            await self.on_change(change, node)

    async def held(
        self, at: NodeAt, stream_id: StreamId, timeout_seconds: float
    ) -> HeldThere | None:
        del stream_id, timeout_seconds
        return self.held_by.get(at.url)

    async def fence_layouts(
        self, at: NodeAt, stream_id: StreamId, layout: int, timeout_seconds: float
    ) -> bool:
        del timeout_seconds
        self.fenced.append((stream_id, layout))
        self.meant.append(at.node)
        return self.closing

    async def aclose(self) -> None:
        pass


def a_record(**changes: object) -> StreamRecord:
    """An owned, dirty stream whose first epoch began at 0."""
    record = StreamRecord(
        stream_id=STREAM,
        name=StreamName("orders"),
        tenant="default",
        state=StreamState.ACTIVE,
        created_at=0,
        config=StreamConfig(),
        epoch=1,
        epochs=(EpochStart(1, 0),),
        owner_url=OWNER,
        dirty=True,
        reserved_next=1_000_000,
    )
    return replace(record, **changes)  # type: ignore[arg-type]


NEIGHBOUR = StreamId("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c77")


async def damage_a_neighbour(harness: "ManifestHarness", count: int = 300) -> None:
    """Another stream, whose root is gone, and `count` old roots of it that are due to go."""
    pointer = RootPointer(Uid("d" * 32), 0, 1, 400, 100, 0)
    record = a_record(stream_id=NEIGHBOUR, name=StreamName("damaged"), root=pointer, version=400)
    await harness.streams.create(record)
    keys = [root_key(NEIGHBOUR, 0, 1, n, Uid(f"{n:032x}")) for n in range(count)]
    harness.coordination.write(Changes(queued=[delete_later(key, 0) for key in keys]))


async def of_a_later_release(harness: "ManifestHarness", stream_id: StreamId = NEIGHBOUR) -> None:
    """Its record has a version that this release does not know."""
    key = stream_key(stream_id)
    value = orjson.loads(await harness.coordination.get(key) or b"")
    harness.coordination.write(Changes({key: orjson.dumps({**value, "format": 99})}))


async def that_is_leaderless(harness: "ManifestHarness", stream_id: StreamId = NEIGHBOUR) -> None:
    """Its record is of version 2, with the feature of a leaderless stream."""
    key = stream_key(stream_id)
    record = decode_record(await harness.coordination.get(key) or b"")
    leaderless = replace(
        record,
        config=parse_stored_config({"profile": "leaderless"}),
        home=None,
        owner_url=None,
        dirty=False,
        reserved_next=0,
    )
    harness.coordination.write(Changes({key: encode_record(leaderless)}))


SERVES_NONE: Final[frozenset[str]] = frozenset()
"""What a release serves that knows of no feature beyond version 1."""
OF_OTHERS: Final = {"of a later release": of_a_later_release, "leaderless": that_is_leaderless}
"""Ways to make a stream's record one that a release with `SERVES_NONE` does not serve."""


def a_fragment(
    first_offset: int, next_offset: int, *, uid: Uid | None = None, epoch: int = 1
) -> FragmentInfo:
    return FragmentInfo(
        uid=uid or Uid(f"{first_offset:032x}"),
        first_offset=first_offset,
        next_offset=next_offset,
        first_timestamp=first_offset,
        last_timestamp=next_offset,
        epoch=epoch,
        record_count=next_offset - first_offset,
        size=1_000 + first_offset,
        index_size=200,
        crc=first_offset,
    )


class GapRange(NamedTuple):
    """Offsets that were given up."""

    first_offset: int
    next_offset: int


def from_the_first_start(context: Context) -> Context:
    """Let its process be one that started before there was any stream, and believes its clock."""
    context.time._trust = ClockTrust("boot", None)
    return context


class ManifestHarness:
    """Stores, clock and context of one test."""

    def __init__(self, served: AbstractSet[str] = SERVED, /, **settings: object) -> None:
        small: Mapping[str, object] = {
            "manifest_fanout": 2,
            "manifest_put_seconds": 30,
            "manifest_register_wait_ms": 2_000,
            "manifest_debounce_ms": 10,
            "manifest_debounce_count": 1_000,
        }
        self.clock = Clock()
        self._one_clock = False
        self.drive = FaultyDrive(self._clock_of_stores)
        self.coordination = FaultyCoordination(self._clock_of_stores)
        self.fuse = self.drive.fuse = self.coordination.fuse
        self.owners = KnownOwners()
        self.streams = Streams(self.coordination, served)
        self.context = Context(
            settings=ManifestSettings(**{**small, **settings}),  # type: ignore[arg-type]
            drive=self.drive,
            coordination=self.coordination,
            streams=self.streams,
            owners=self.owners,
            clock=self.clock,
            elapsed=self.clock.true,
            new_uid=Uids(),
        )
        from_the_first_start(self.context)

    def use_drives(self, table: DriveTable) -> None:
        """Have the fragments lie on several drives."""
        self.context = from_the_first_start(replace(self.context, table=table))

    async def group_count(self) -> int:
        """How many groups the committed manifest leads to, with what is above the floor."""
        record, root = await load_root(self.context, await self.record())
        pending, count = [root], 0
        while pending:
            node = pending.pop()
            live = node.entries[node.entries["next_offset"] > root.first_offset]
            for entry in live[live["kind"] == EntryKind.GROUP]:
                pending.append(await self.context.groups.load(record.tenant, STREAM, entry))
                count += 1
        return count

    @property
    def one_machine(self) -> bool:
        """Whether object store and coordination have the clock of the manifest's machine."""
        return not self.drive.has_own_clock

    @one_machine.setter
    def one_machine(self, one: bool) -> None:
        self._one_clock = one
        self.drive.has_own_clock = not one

    def _clock_of_stores(self) -> int:
        return self.clock() if self._one_clock else self.clock.true()

    async def open(self, session: str = "s1", **changes: object) -> Committer:
        """Create the stream if it is not there, and begin a session on it."""
        if not await self.coordination.get(f"bottomless:stream:{STREAM}"):
            await self.streams.create(a_record(**changes))
        committer = await Committer.open(self.context, STREAM)
        await begin(self.context, committer, session)
        return committer

    async def register(
        self, committer: Committer, *ranges: tuple[int, int], session: str = "s1", epoch: int = 1
    ) -> list[FragmentInfo]:
        """Ask for uids and register fragments under them, as an uploader would."""
        uids = await intend(self.context, committer, session, [first for first, _ in ranges])
        fragments = [
            a_fragment(first, next_, uid=uid, epoch=epoch)
            for uid, (first, next_) in zip(uids, ranges, strict=True)
        ]
        await committer.register(session, fragments)
        return fragments

    async def put_fragment(
        self, uid: Uid, first_offset: int, *, epoch: int = 1, timestamp: int = 1_000
    ) -> FragmentInfo:
        """Put a real fragment of ten records under its key."""
        chunk = a_chunk(first_offset, 10, epoch=epoch, timestamp=timestamp)
        packed = pack_fragment(STREAM, uid, [chunk])
        await put_object(
            self.drive,
            fragment_key(STREAM, first_offset, uid),
            packed.parts,
            packed.info.crc,
            deadline_seconds=1,
        )
        return packed.info

    async def record(self) -> StreamRecord:
        return await self.streams.load(STREAM)

    async def leaves(self) -> list[FragmentInfo]:
        """Every fragment of the committed manifest, in order; all of it is loaded and checked."""
        return [leaf for leaf in await self.entries() if isinstance(leaf, FragmentInfo)]

    async def entries(self, of: StreamRecord | None = None) -> list[FragmentInfo | GapRange]:
        """Fragments and gaps of the committed manifest, in order."""
        record, root = await load_root(self.context, of or await self.record())
        check_record(record)
        assert root.next_offset == record.published_next
        assert record.condemned_next <= root.first_offset
        return await self._leaves(root, root.first_offset)

    async def _leaves(self, node: Node, floor: int) -> list[FragmentInfo | GapRange]:
        """Fragments at or above the floor; what an entry says of a group is what is live in it."""
        found: list[FragmentInfo | GapRange] = []
        for entry in node.entries[node.entries["next_offset"] > floor]:
            if entry["kind"] == EntryKind.GAP:
                found.append(GapRange(int(entry["first_offset"]), int(entry["next_offset"])))
                continue
            if entry["kind"] == EntryKind.FRAGMENT:
                assert int(entry["first_offset"]) >= floor
                found.append(fragment_info(entry))
                continue
            uid = uid_from_bytes(entry["uid"].tobytes())
            first, height = int(entry["first_offset"]), int(entry["height"])
            below = await load_node(
                self.drive,
                group_key(STREAM, first, uid, height),
                int(entry["object_size"]),
                int(entry["object_crc"]),
            )
            leaves = await self._leaves(below, floor)
            fragments = [leaf for leaf in leaves if isinstance(leaf, FragmentInfo)]
            # The object of a group does not know what was cut off below it; the root does.
            if node.height == 0 or int(entry["first_offset"]) >= floor:
                assert int(entry["byte_size"]) == sum(fragment.size for fragment in fragments)
                assert int(entry["record_count"]) == sum(f.record_count for f in fragments)
                assert int(entry["fragment_count"]) == len(fragments)
            found += leaves
        return found
