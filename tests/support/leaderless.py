"""Leaderless streams beside a manifest service in memory, and a writer that puts and commits to them.

What a writer puts are real WAL objects, with the notes that it owes, and what it commits goes through
the same transactions as an ingest node's.
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol, TypeVar

from unit.formats.examples import a_piece

from bottomless.drives.base import Drive
from bottomless.formats.keys import WAL_PREFIX, parse_wal_key, wal_key
from bottomless.formats.stream_record import LEADERLESS
from bottomless.formats.wal import PackedWal, pack_wal
from bottomless.model.config import parse_stored_config
from bottomless.model.names import StreamId, StreamName, Uid
from bottomless.model.stream import EpochStart, StreamRecord
from bottomless.model.wal import Note, Piece, PieceLine, WalFlags
from bottomless_server.coordination.memory import MemoryCoordination
from bottomless_server.leaderless.attempts import AttemptNumbers
from bottomless_server.leaderless.decided import Decided, KnownName, NewKnown
from bottomless_server.leaderless.instance import WalInstance, decode_instance
from bottomless_server.leaderless.tail import SHARD_COUNT, UNSEEN, Tail, first_epoch
from bottomless_server.leaderless.tail_changes import Accepted, Committed, TailBounds
from bottomless_server.leaderless.tail_format import Known
from bottomless_server.manifest.leaderless.pruning import prune_published
from bottomless_server.stores import tails, wal
from bottomless_server.stores.generation import check_generation
from bottomless_server.stores.releases import release
from bottomless_server.stores.streams import Streams
from bottomless_server.stores.tail_commits import Asked, Commit, commit
from bottomless_server.stores.tail_keys import load_tails
from support.manifest import STREAM, ManifestHarness, a_record

T = TypeVar("T")

SERVED: Final = frozenset({LEADERLESS})
INSTANCE: Final = Uid("5" * 32)
OTHER_INSTANCE: Final = Uid("6" * 32)
LEASE_MS: Final = 10_000
_BOUNDS: Final = TailBounds(2**40, 2**20)


def a_leaderless_record(generation: int = 0, **changes: Any) -> StreamRecord:
    """A stream without an owner, as it is when it is created."""
    epoch = first_epoch(generation)
    record = a_record(
        config=parse_stored_config({"profile": "leaderless"}),
        generation=generation,
        epoch=epoch,
        epochs=(EpochStart(epoch, 0),),
        owner_url=None,
        dirty=False,
        reserved_next=0,
    )
    return replace(record, **changes)


NEVER_MS: Final = 1_000_000_000
"""Longer than any test lasts."""


async def a_leaderless_harness(**settings: object) -> ManifestHarness:
    """Stores of one generation that serve leaderless streams, and hold none.

    No vacuum comes by itself: writers of tests renew no lease, so it would take them for dead as soon
    as a test takes longer than its pause.
    """
    settings = {"manifest_rebuild_wal_wait_ms": 0, "manifest_wal_vacuum_ms": NEVER_MS, **settings}
    harness = ManifestHarness(SERVED, **settings)
    harness.streams.generation = await check_generation(harness.drive, harness.coordination)
    return harness


async def a_leaderless_stream(
    harness: ManifestHarness, stream_id: StreamId = STREAM, name: str = "orders"
) -> StreamRecord:
    """Enter a stream with its tail."""
    generation = harness.streams.generation or 0
    record = a_leaderless_record(generation, stream_id=stream_id, name=StreamName(name))
    await tails.create(harness.streams, record)
    return record


async def tail_of(harness: ManifestHarness, stream_id: StreamId = STREAM) -> Tail:
    """The tail of a stream that has one."""
    generation = harness.streams.generation or 0
    found = (await load_tails(harness.coordination, [stream_id], generation))[stream_id]
    assert isinstance(found, Tail)
    return found


async def publish_all(harness: ManifestHarness, stream_id: StreamId = STREAM) -> None:
    """As if fragments of all that is committed were published, and the tail pruned."""
    end = (await tail_of(harness, stream_id)).next_offset
    record = await harness.streams.update(
        stream_id,
        lambda record: replace(record, published_next=end, version=record.version + 1),
    )
    assert await prune_published(harness.context, record)


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """Do something with stores in memory as a whole, while nothing else has a turn."""
    try:
        while True:
            work.send(None)
    except StopIteration as done:
        value: T = done.value
        return value


class WalStores(Protocol):
    """What a writer writes to."""

    @property
    def drive(self) -> Drive: ...

    @property
    def coordination(self) -> MemoryCoordination: ...

    @property
    def streams(self) -> Streams: ...

    def clock(self) -> int:
        """The writer's clock, in ms since 1970."""
        ...


class WalWriter:
    """One instance that puts WAL objects and commits them."""

    def __init__(self, harness: WalStores, instance: Uid = INSTANCE) -> None:
        self.instance = instance
        self.lives = True
        """Whether it believes that it holds its lease."""
        self.sequence = 0
        """The one that the next object gets."""
        self.directories: dict[int, set[StreamId]] = {}
        """The streams that have a piece in each object."""
        self.owed: list[Note] = []
        """Notes of what is committed, for the next object."""
        self._harness = harness
        self._noted_below = 0
        checked = harness.coordination.connected_count
        generation = harness.streams.generation or 0
        self.numbers = AttemptNumbers(instance, generation, lambda: self.lives, checked)

    async def begin(self) -> None:
        await wal.begin(self._harness.coordination, self.numbers, "http://ingest-0", LEASE_MS)

    async def lapse(self) -> None:
        """Its lease runs out."""
        self.lives = False
        live = wal.live_key(self.instance)
        await self._harness.coordination.release(live, self.instance.encode())

    async def put(
        self, *stream_ids: StreamId, flags: WalFlags = WalFlags.NONE, count: int = 1
    ) -> PackedWal:
        """Put an object with a piece of each of these streams, and the notes that are owed."""
        return await self.put_pieces([a_piece(one, count) for one in stream_ids], flags)

    async def put_pieces(
        self, pieces: Sequence[Piece], flags: WalFlags = WalFlags.NONE
    ) -> PackedWal:
        """Put an object with these pieces, and the notes that are owed."""
        packed = pack_wal(
            self.instance,
            self.sequence,
            pieces,
            self.owed,
            noted_below=self._noted_below,
            attempt=self.numbers.attempt,
            created_at=self._harness.clock(),
            generation=self.numbers.generation,
            flags=flags,
        )
        data = b"".join(bytes(part) for part in packed.parts)
        await self._harness.drive.put(wal_key(self.instance, self.sequence), [data], packed.crc)
        self.directories[self.sequence] = {piece.stream_id for piece in pieces}
        self.sequence += 1
        self.owed = []
        return packed

    async def commit(
        self,
        packed: PackedWal,
        known: Mapping[KnownName, NewKnown] | None = None,
        last_chunk: Callable[[PieceLine], int] = lambda line: line.record_count - 2,
        only: StreamId | None = None,
    ) -> Commit:
        """Commit all pieces of an object, in one EXEC, or those of one stream alone; `last_chunk` tells
        how many records of a piece lie before its last chunk."""
        sequence = packed.header.sequence
        settled = sequence + 1 if only is None else sequence
        of_streams: dict[StreamId, list[Accepted]] = {}
        for number, line in enumerate(packed.lines):
            if only not in (None, line.stream_id):
                continue
            place = (line.position, line.size, line.record_count)
            piece = Accepted(self.instance, sequence, number, *place, last_chunk(line))
            of_streams.setdefault(line.stream_id, []).append(piece)

        def asked(stream_id: StreamId, pieces: list[Accepted]) -> Asked:
            def decide(_: Tail, __: Mapping[KnownName, Known | None]) -> Decided:
                return Decided(pieces, known or {})

            return Asked(stream_id, list(known or {}), UNSEEN, decide)

        done = await commit(
            self._harness.coordination,
            self.numbers,
            [asked(stream_id, pieces) for stream_id, pieces in of_streams.items()],
            sequence=sequence,
            clock=self._harness.clock(),
            settled=settled,
            next_sequence=self.sequence,
            bounds=_BOUNDS,
        )
        assert isinstance(done, Commit), done
        for found in done.streams.values():
            if isinstance(found, Committed):
                self.owed += [note for _, note in found.notes]
        self._noted_below = settled
        return done

    async def flush(
        self, *stream_ids: StreamId, count: int = 1, flags: WalFlags = WalFlags.NONE
    ) -> Commit:
        """Put an object with a piece of each of these streams, and commit it."""
        return await self.commit(await self.put(*stream_ids, count=count, flags=flags))

    async def release(self) -> None:
        """What an uploader does of which all shards are: objects that no entry needs are let go."""
        generation = self.numbers.generation
        coordination = self._harness.coordination
        await release(coordination, self.instance, generation, self.directories, range(SHARD_COUNT))

    async def objects(self) -> list[int]:
        """The sequences of its objects that are there."""
        listing = self._harness.drive.list(f"{WAL_PREFIX}{self.instance}/")
        keys = [parse_wal_key(facts.object_key) async for facts in listing]
        return [key.sequence for key in keys if key is not None]

    def record(self) -> WalInstance | None:
        """Its record in coordination."""
        value = self._harness.coordination.peek(wal.instance_key(self.instance))
        return None if value is None else decode_instance(value)
