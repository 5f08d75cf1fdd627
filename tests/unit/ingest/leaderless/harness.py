"""Writers of leaderless streams over stores in memory, on a clock that jumps: parts of the product,
joined in this process, with a wire on which things are lost or late."""

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any, ClassVar, Final, TypeVar

from simulation.clockwork import BEGIN_MS, MachineClock
from simulation.loop import Process, VirtualLoop
from support.fault_coordination import FaultCoordination
from support.fault_drive import FaultDrive
from support.wire import Passage, Wire

from bottomless.errors import StoreError
from bottomless.formats.batch import decode_frames
from bottomless.formats.chunk import batches_of
from bottomless.formats.keys import parse_wal_key, wal_key
from bottomless.formats.placing import place
from bottomless.formats.wal import WalDirectory, decode_wal
from bottomless.model.config import parse_stored_config
from bottomless.model.names import StreamId, StreamName, Uid
from bottomless.model.stream import EpochStart, StreamRecord, StreamState
from bottomless.model.wal import Note
from bottomless_server.core.tracking.known_producers import TrackingBounds
from bottomless_server.drives.memory import MemoryDrive
from bottomless_server.ingest.leaderless.asked import asked_of
from bottomless_server.ingest.leaderless.context import WriterBounds, WriterContext
from bottomless_server.ingest.leaderless.core.accumulator import FlushBounds
from bottomless_server.ingest.leaderless.core.pieces import WaitingAppend
from bottomless_server.ingest.leaderless.core.remembered import KnownBounds
from bottomless_server.ingest.leaderless.core.store_clock import StoreClock
from bottomless_server.ingest.leaderless.counts import WriterCounts
from bottomless_server.ingest.leaderless.writer import Writer
from bottomless_server.ingest.producers.producers import Appended
from bottomless_server.ingest.records.intake import Append
from bottomless_server.leaderless.instance import WalInstance, decode_instance
from bottomless_server.leaderless.tail import Tail, TailEntry, first_epoch
from bottomless_server.leaderless.tail_changes import TailBounds
from bottomless_server.leaderless.tail_format import decode_entry, decode_tail
from bottomless_server.node.lease import Clocks, LeaseBounds
from bottomless_server.stores import tails
from bottomless_server.stores.generation import check_generation
from bottomless_server.stores.streams import Streams
from bottomless_server.stores.tail_keys import tail_index_key, tail_key
from bottomless_server.stores.wal import INSTANCES_KEY, instance_key
from unit.ingest.leaderless.making import CHUNK_SIZE_MAX, IDS

T = TypeVar("T")
SERVED: Final = frozenset({"leaderless"})
KNOWN: Final = KnownBounds(TrackingBounds(100, 5, 100, 3_600_000), 7 * 86_400_000)
BOUNDS: Final = WriterBounds(
    flush=FlushBounds(size_max=100_000, linger_ms=250, stream_count_max=65_535),
    chunk_size_max=CHUNK_SIZE_MAX,
    put_count_max=4,
    put_seconds=30.0,
    commit_seconds=15.0,
    notes_sync=False,
    note_ms=1_000,
    cache_size=1_000_000,
    tail=TailBounds(2**30, 1_000),
    held_count_max=1_000,
    fullness_max=0.8,
    clock_difference_ms_max=10_000,
    lease=LeaseBounds(lease_ms=10_000, margin_ms=2_000, renew_ms=3_000),
)


class Trouble:
    """What befalls the next requests of each route; nothing where nothing is said."""

    def __init__(self) -> None:
        self.next: defaultdict[str, list[Passage]] = defaultdict(list)
        self.always: dict[str, Passage] = {}
        self.always_by: Callable[[str], Passage] | None = None
        """Decides about each request instead."""

    def passage(self, route: str) -> Passage:
        if self.always_by is not None:
            return self.always_by(route)
        return self.next[route].pop(0) if self.next[route] else self.always.get(route, Passage())


class Stores:
    """The stores that writers share, on a virtual loop."""

    opened: ClassVar[list["Stores"]] = []
    """All that a test made; a fixture closes them."""

    def __init__(self, seed: int = 0) -> None:
        self.random = Random(seed)
        # The pauses between two attempts of a put are drawn from the one of the standard library.
        random.seed(seed)
        self.loop = VirtualLoop(self.random)
        self.trouble = Trouble()
        self.wire = Wire(self.trouble)
        self.coordination = FaultCoordination(self.clock, self.wire)
        self.objects = MemoryDrive(self.clock)
        self.drive = FaultDrive(self.objects, self.wire)
        self.streams = Streams(self.coordination, SERVED)
        self._uids = 0
        self.processes: list[Process] = []
        self.opened.append(self)

    def close(self) -> None:
        """End whatever is under way, once."""
        if self in self.opened:
            self.opened.remove(self)
        if self.loop.is_closed():
            return
        if not all(process.alive for process in self.processes):
            # What was killed must not be collected, since that would run what stands in a `finally`.
            _KILLED.append(self)
        self.trouble.next.clear()
        self.trouble.always.clear()
        self.trouble.always_by = None
        for process in self.processes:
            process.resume()
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        # Those of a process that was killed never hear of it.
        self.loop.run_until_complete(asyncio.sleep(10))
        self.loop.close()

    def clock(self) -> int:
        return BEGIN_MS + int(self.loop.now * 1000)

    def new_uid(self) -> Uid:
        self._uids += 1
        return Uid(f"{self._uids:032x}")

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something whole, while everything else goes on."""
        return self.loop.run_until_complete(work)

    async def create(self, count: int) -> None:
        """A deployment that has begun, with so many streams."""
        self.streams.generation = await check_generation(self.objects, self.coordination)
        for stream_id in IDS[:count]:
            await tails.create(self.streams, self.record(stream_id))

    def record(self, stream_id: StreamId) -> StreamRecord:
        generation = self.streams.generation or 0
        return StreamRecord(
            stream_id=stream_id,
            name=StreamName(f"s{IDS.index(stream_id)}"),
            tenant="default",
            state=StreamState.ACTIVE,
            created_at=BEGIN_MS,
            config=parse_stored_config({"profile": "leaderless"}),
            generation=generation,
            epoch=first_epoch(generation),
            epochs=(EpochStart(first_epoch(generation), 0),),
        )

    # What is stored.

    def tail(self, stream: int) -> Tail:
        return decode_tail(self.coordination.peek(tail_key(IDS[stream])) or b"")

    def entries(self, stream: int) -> list[TailEntry]:
        members = self.coordination.peek_members(tail_index_key(IDS[stream]))
        return [decode_entry(member) for member in members]

    def values(self, stream: int) -> list[Any]:
        """All records of a stream, in the order of their offsets, as a reader would find them."""
        return [value for _, value in self.records(stream)]

    def records(self, stream: int) -> list[tuple[int, Any]]:
        found: list[tuple[int, Any]] = []
        for entry in self.entries(stream):
            data = self.objects.peek(wal_key(entry.instance, entry.sequence))
            assert data is not None, "an entry names an object that is not there"
            piece = data[entry.position : entry.position + entry.size]
            offset = entry.first_offset
            placed = place(
                piece,
                first_offset=offset,
                record_count=entry.record_count,
                timestamp=entry.timestamp,
                epoch=1,
            )
            for one in placed:
                for batch in decode_frames(
                    batches_of(one.header, memoryview(one.front + bytes(one.body)))
                ):
                    for value in batch.column("value").to_pylist():
                        found.append((offset, value))
                        offset += 1
        return found

    def directories(self) -> dict[tuple[Uid, int], WalDirectory]:
        """What each object says of itself."""
        found = {}
        for object_key in self.objects.object_keys:
            key = parse_wal_key(object_key)
            if key is not None:
                data = self.objects.peek(object_key) or b""
                found[key.instance, key.sequence] = decode_wal(data)
        return found

    def notes(self) -> list[tuple[Uid, Note]]:
        """All notes that are in the bucket, each with its instance."""
        return [
            (instance, directory.note(number))
            for (instance, _), directory in self.directories().items()
            for number in range(directory.header.note_count)
        ]

    def instances(self) -> dict[Uid, WalInstance]:
        found = {}
        for member in self.coordination.peek_members(INSTANCES_KEY):
            instance = Uid(member.decode())
            found[instance] = decode_instance(self.coordination.peek(instance_key(instance)) or b"")
        return found


_KILLED: Final[list[Stores]] = []


class WriterProcess:
    """A writer in a process of its own, which may be killed at any moment."""

    def __init__(
        self,
        stores: Stores,
        name: str = "ingest-0",
        bounds: WriterBounds = BOUNDS,
        skew_ms: int = 0,
    ) -> None:
        self.stores = stores
        self.name = name
        self.machine = MachineClock(skew_ms)
        self.process = Process(stores.loop, name, self.machine)
        stores.processes.append(self.process)
        loop = stores.loop
        clocks = Clocks(
            wall=lambda: stores.clock() + self.machine.skew_ms,
            monotonic=lambda: self.machine.monotonic(loop.now),
            boot=lambda: self.machine.boot(loop.now),
        )
        self.counts = WriterCounts()
        context = WriterContext(
            drive=stores.drive,
            coordination=stores.coordination,
            clocks=clocks,
            store_clock=StoreClock(bounds.clock_difference_ms_max),
            bounds=bounds,
            asked_of=lambda seen, pieces, clock: asked_of(seen, pieces, clock, KNOWN),
            url=f"http://{name}",
            new_uid=stores.new_uid,
            chance=stores.random.random,
            counts=self.counts,
        )
        self.writer = Writer(context)

    def start(self) -> "WriterProcess":
        self.stores.do(self.process.spawn(self.writer.start()))  # type: ignore[arg-type]
        return self

    def put(self, stream: int, append: Append) -> "asyncio.Future[Appended | StoreError]":
        """Put an append in line; the future has what it is told."""
        future: asyncio.Future[Appended | StoreError] = self.stores.loop.create_future()
        try:
            self.writer.put(IDS[stream], WaitingAppend(append, future.set_result))
        except StoreError as error:
            future.set_result(error)
        return future

    def told(
        self, *futures: "asyncio.Future[Appended | StoreError]"
    ) -> list[Appended | StoreError]:
        """What appends are told, once all of them are."""
        return self.stores.do(_all(futures))

    def append(self, stream: int, append: Append) -> Appended | StoreError:
        return self.told(self.put(stream, append))[0]

    def drain(self) -> None:
        self.stores.do(self.process.spawn(self.writer.drain()))  # type: ignore[arg-type]

    def stop(self) -> None:
        self.stores.do(self.process.spawn(self.writer.stop()))  # type: ignore[arg-type]


async def _all(
    futures: "Sequence[asyncio.Future[Appended | StoreError]]",
) -> list[Appended | StoreError]:
    return list(await asyncio.gather(*futures))


def until(stores: Stores, is_so: Callable[[], bool], seconds: float = 300.0) -> None:
    """Let time pass until something is so."""

    async def wait() -> None:
        async with asyncio.timeout(seconds):
            while not is_so():
                await asyncio.sleep(0.01)

    stores.do(wait())


def a_house(
    streams: int = 3, seed: int = 0, bounds: WriterBounds = BOUNDS
) -> tuple[Stores, WriterProcess]:
    """A deployment with so many streams, and a writer that has begun."""
    stores = Stores(seed)
    stores.do(stores.create(streams))
    writer = WriterProcess(stores, bounds=bounds).start()
    until(stores, lambda: writer.writer.run is not None)
    return stores, writer
