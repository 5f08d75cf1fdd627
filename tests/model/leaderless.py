"""Leaderless streams in a world of a few streams, in which anything may happen between any two calls.

Writers put and commit, manifests publish and prune, uploaders release, two vacuums settle and delete,
an operator fences and deletes. Each is a coroutine on stores in memory, and a number decides whose next
call is done. Requests to coordination are lost, their replies are lost, and an EXEC arrives late, or
after whoever sent it has given up. After every change all that must hold of leaderless streams is
looked at: see `Invariants`.

In a run with a `Loss` coordination is emptied at some moment, or holds an older copy of itself again.
From then on each process stops when it hears `coordination-regressed`; what is looked at after that
is the bucket, and offsets: see `Invariants.lose`.
"""

from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import Enum, auto
from functools import partial
from random import Random
from typing import Any, Final, NamedTuple, TypeVar

from unit.formats.examples import a_piece

from bottomless.errors import Code, Corrupt, Exists, NotFound, StoreError, Unavailable
from bottomless.formats.keys import wal_key
from bottomless.formats.stream_record import decode_record
from bottomless.formats.wal import pack_wal
from bottomless.model.config import parse_stored_config
from bottomless.model.names import StreamId, StreamName, Uid
from bottomless.model.stream import EpochStart, StreamRecord, StreamState
from bottomless.model.wal import Note, Piece
from bottomless_server.coordination.base import (
    Changes,
    CoordinationConflict,
    CoordinationUnavailable,
    CoordinationUnknown,
    Decide,
    Room,
)
from bottomless_server.coordination.memory import MemoryCoordination, Stored, Watched
from bottomless_server.drives.memory import MemoryDrive
from bottomless_server.leaderless.attempts import AttemptNumbers
from bottomless_server.leaderless.decided import Decided
from bottomless_server.leaderless.instance import Loss, WalInstance, decode_instance
from bottomless_server.leaderless.tail import (
    UNSEEN,
    SeenTail,
    Tail,
    TailEntry,
    TailState,
    check_index,
    check_step,
    first_epoch,
    shard_of,
)
from bottomless_server.leaderless.tail_changes import Accepted, Committed, TailBounds, seen_of
from bottomless_server.leaderless.tail_format import decode_entry, decode_held, decode_tail
from bottomless_server.stores import releases, tails, wal
from bottomless_server.stores.lost_commits import Fate, decide_lost
from bottomless_server.stores.streams import GENERATION_KEY, Streams, stream_key
from bottomless_server.stores.tail_commits import Asked, Commit, CommitUnknown, commit
from bottomless_server.stores.tail_keys import load_tails, tail_index_key, tail_key
from bottomless_server.stores.wal_check import Unchecked, check_wal

T = TypeVar("T")
GENERATION: Final = 1
SERVED: Final = frozenset({"leaderless"})
BOUNDS: Final = TailBounds(2**40, 24)


def value_of(number: int) -> bytes:
    """The first value of an append; all are of one size, so every piece is as large as the next."""
    return f"{number:010}".encode("ascii")


def _chunk_of(number: int) -> bytes | memoryview:
    return a_piece(values=(value_of(number), b"")).parts[0]


_CHUNK_SIZE: Final = len(_chunk_of(0))


class Violation(AssertionError):
    """Something that must hold does not."""


def a_stream(number: int) -> StreamRecord:
    """The record of a new leaderless stream; each number is another one, in a shard of its own."""
    return StreamRecord(
        stream_id=StreamId(f"0198d2a4-5b1e-7c3a-9a51-0f7e6f0d{number:04x}"),
        name=StreamName(f"s{number}"),
        tenant="default",
        state=StreamState.ACTIVE,
        created_at=1_000_000,
        config=parse_stored_config({"profile": "leaderless"}),
        generation=GENERATION,
        epoch=first_epoch(GENERATION),
        epochs=(EpochStart(first_epoch(GENERATION), 0),),
    )


class TroubledCoordination(MemoryCoordination):
    """Loses requests and replies, and delivers EXECs late, as a number decides."""

    def __init__(self, random: Random) -> None:
        super().__init__(lambda: 1_000_000)
        self._random = random
        self.trouble = 0.12
        self.unwatched = ""
        """Keys that begin so are read and not watched: for a test that takes a guard away."""
        self.late: list[tuple[Watched, Changes]] = []
        self.changed = False

    async def transact(
        self,
        redis_keys: Sequence[str],
        decide: Decide[T],
        attempts: int = 16,
        room: Room | None = None,
    ) -> T:
        def noted(values: Any) -> tuple[Changes, T]:
            decided = decide(values)
            made[:] = [decided[0]]
            return decided

        made: list[Changes] = []
        draw = self._random.random()
        if draw < self.trouble / 4:
            raise CoordinationUnavailable("the request is lost")
        if draw < self.trouble / 2:
            watched = self.watch(redis_keys, room)
            self.late.append((watched, decide(watched.values)[0]))
            raise CoordinationUnknown("the EXEC is on its way")
        value = await super().transact(redis_keys, noted, attempts, room)
        if draw < self.trouble:
            raise CoordinationUnknown("the reply is lost")
        return value

    def watch(self, redis_keys: Sequence[str], room: Room | None = None) -> Watched:
        if not self.unwatched:
            return super().watch(redis_keys, room)
        kept = [key for key in redis_keys if not key.startswith(self.unwatched)]
        values = {key: self.peek(key) for key in redis_keys}
        return super().watch(kept, room)._replace(values=values)

    def arrive(self, number: int) -> None:
        """Let one EXEC arrive that was on its way."""
        watched, changes = self.late.pop(number % len(self.late))
        self.execute(watched, changes)

    def write(self, changes: Changes) -> None:
        super().write(changes)
        self.changed = True


class LossKind(Enum):
    """What becomes of coordination once in a run."""

    EMPTIED = auto()
    PUT_BACK = auto()
    """It holds what it held some time ago, and is of the same generation as before."""


class Append(NamedTuple):
    """What a client sent: it is in the stream once, or never."""

    number: int
    stream_id: StreamId
    record_count: int


Pieces = list[tuple[Append, Accepted]]


class Flush(NamedTuple):
    """Sequences of a flush, as its commit is told."""

    lowest: int
    settled: int
    next_sequence: int


def _lowest(put: Mapping[StreamId, Pieces], default: int) -> int:
    """The lowest sequence of these pieces."""
    return min((piece.sequence for one in put.values() for _, piece in one), default=default)


def _appends(put: Mapping[StreamId, Pieces]) -> list[Append]:
    return [append for pieces in put.values() for append, _ in pieces]


class World:
    def __init__(self, seed: int, loss: LossKind | None = None) -> None:
        self.random = Random(seed)
        self.loss = loss
        self.lost = False
        """Whether that has happened."""
        self.coordination = TroubledCoordination(self.random)
        self.drive = MemoryDrive(lambda: 1_000_000)
        self.coordination.write(Changes({GENERATION_KEY: b'{"generation":1,"bucket":true}'}))
        self.streams = Streams(self.coordination, SERVED)
        self.streams.generation = GENERATION
        self.clock = 1_000_000
        self.appends: dict[tuple[Uid, int, int], Append] = {}
        """What each piece of each object is."""
        self.directories: dict[tuple[Uid, int], set[StreamId]] = {}
        self.data_positions: dict[tuple[Uid, int], int] = {}
        self.answered: list[tuple[Append, int]] = []
        """Appends that were answered since the last look, each with its first offset."""
        self.stopped: dict[StreamId, int] = {}
        """Commits of a stream when a fence, or its deletion, was answered."""
        self.active: list[StreamId] = []
        self.events: Counter[str] = Counter()
        self.lapsed: set[Uid] = set()
        """Instances whose lease ran out."""
        self.durable: dict[Uid, int] = {}
        """The attempt of each instance that its newest object in the bucket can speak of."""
        self._numbers = 0
        self.invariants = Invariants(self)
        self.quietly(self._create_all())
        self._running: list[Coroutine[Any, Any, None]] = [
            *(self.writer() for _ in range(3)),
            *(self.manifest() for _ in range(2)),
            *(self.uploader() for _ in range(2)),
            *(self.vacuum() for _ in range(2)),
        ]
        self._operator = self.operator()
        self._running.append(self._operator)

    async def _create_all(self) -> None:
        for number in range(3):
            await self._create(number)

    async def _create(self, number: int) -> None:
        record = a_stream(number)
        stream_id = record.stream_id
        await self.until_done(lambda: self._entered(record))
        self.active.append(stream_id)

    async def _entered(self, record: StreamRecord) -> None:
        with suppress(Exists):
            # Then an attempt that was lost did arrive.
            await tails.create(self.streams, record)

    def quietly(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something whole, without trouble and with nothing beside it."""
        before, self.coordination.trouble = self.coordination.trouble, 0.0
        try:
            while True:
                work.send(None)
        except StopIteration as done:
            value: T = done.value
            return value
        finally:
            self.coordination.trouble = before

    def run(self, steps: int) -> None:
        """Let so many calls happen, and look at everything after each change."""
        # Drawn by a number of its own, so that a run without a loss is the same until then.
        draw = Random(self.random.getstate()[1][0])
        copied_at = draw.randrange(steps // 8, steps // 2) if self.loss else steps
        lost_at = copied_at + draw.randrange(steps // 4)
        copy: Stored | None = None
        for step in range(steps):
            if step == copied_at:
                copy = self.coordination.copy()
            if step == lost_at and copy is not None:
                self._lose(copy)
            self.clock += self.random.randrange(3)
            if self.coordination.late and self.random.random() < 0.1:
                self.coordination.arrive(self.random.randrange(100))
                self.events["a late EXEC arrived"] += 1
            elif self._running:
                self._go_on(self.random.choice(self._running))
            if self.coordination.changed or self.lost:
                self.coordination.changed = False
                self.invariants.check()

    def _lose(self, copy: Stored) -> None:
        self.invariants.lose(copy)
        self.lost = True
        self.stopped.clear()
        self._running.remove(self._operator)
        self._operator.close()
        if self.loss is LossKind.EMPTIED:
            self.coordination.lose()
            return
        self.coordination.put_back(copy)
        # The connections went with the run of the store to which they were.
        self.coordination.late.clear()

    def _go_on(self, one: Coroutine[Any, Any, None]) -> None:
        try:
            one.send(None)
        except Unavailable as error:
            if not self.lost or error.code is not Code.COORDINATION_REGRESSED:
                raise Violation(f"nobody expects it: {error!r}") from error
            self.events["heard of the loss"] += 1
            self._running.remove(one)
        except (AssertionError, StoreError) as error:
            raise Violation(f"nobody expects it: {error!r}") from error

    def close(self) -> None:
        """End whatever is under way."""
        for one in self._running:
            one.close()

    async def until_done(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do what may be done twice, until there is an answer."""
        while True:
            try:
                return await work()
            except (CoordinationUnavailable, CoordinationUnknown, CoordinationConflict):
                continue

    def uid(self) -> Uid:
        self._numbers += 1
        return Uid(f"{self._numbers:032x}")

    # A writer: it may stand still between any two of its calls, and be taken for dead.

    async def writer(self) -> None:
        left: list[Append] = []
        seen: dict[StreamId, SeenTail] = {}
        while True:
            begun = await self.until_done(self._begin)
            left = await self._write(begun, left, seen)

    async def _begin(self) -> AttemptNumbers:
        # Another one each time: one whose reply was lost may be there.
        instance = self.uid()
        numbers = AttemptNumbers(
            instance, GENERATION, lambda: instance not in self.lapsed, await self._check()
        )
        await wal.begin(self.coordination, numbers, "http://ingest-0", 10_000)
        return numbers

    async def _check(self) -> int:
        return await check_wal(self.drive, self.coordination, GENERATION)

    async def _write(
        self, numbers: AttemptNumbers, appends: list[Append], seen: dict[StreamId, SeenTail]
    ) -> list[Append]:
        """Write as one instance; returns what has to be put again under another."""
        sequence = 0
        notes: list[Note] = []
        waiting: dict[StreamId, Pieces] = {}
        while self.random.random() < 0.9:
            appends = appends or [self._append() for _ in range(self.random.randint(1, 3))]
            put = await self._put(numbers, sequence, appends, notes)
            notes = []
            put = {one: waiting.get(one, []) + put.get(one, []) for one in {**waiting, **put}}
            lowest = _lowest(put, sequence)
            waiting = self._leave(put)
            groups = self._groups(put)
            for number, group in enumerate(groups):
                if self.random.random() < 0.03:
                    self.events["killed between two EXECs"] += 1
                    return []
                last = number + 1 == len(groups)
                settled = _lowest(waiting, sequence + 1) if last else lowest
                flush = Flush(lowest, settled, sequence + 1)
                done = await self._commit(numbers, flush, group, dict(seen))
                if isinstance(done, Loss):
                    self.events[f"put again: {done.name}"] += 1
                    return [append for one in (put, waiting) for append in _appends(one)]
                if done is None:
                    self.events["nobody can tell"] += 1
                    return []
                self._acknowledge(done, group, seen)
                committed = [one for one in done.streams.values() if isinstance(one, Committed)]
                notes += [note for one in committed for _, note in one.notes]
                put = {one: pieces for one, pieces in put.items() if one not in group}
            appends = []
            sequence += 1
        return _appends(waiting)

    def _leave(self, put: dict[StreamId, Pieces]) -> dict[StreamId, Pieces]:
        """Take out what waits for a later flush, as a stream does whose commit met another."""
        left = [one for one in put if self.random.random() < 0.1]
        self.events["a stream waits"] += len(left)
        return {one: put.pop(one) for one in left}

    def _append(self) -> Append:
        self._numbers += 1
        return Append(self._numbers, self.random.choice(self.active), 2)

    async def _put(
        self,
        numbers: AttemptNumbers,
        sequence: int,
        appends: Sequence[Append],
        notes: Sequence[Note],
    ) -> dict[StreamId, list[tuple[Append, Accepted]]]:
        instance = numbers.instance
        pieces = [
            Piece(one.stream_id, [_chunk_of(one.number)], one.record_count, 1, 1) for one in appends
        ]
        packed = pack_wal(
            instance,
            sequence,
            pieces,
            notes,
            noted_below=sequence,
            attempt=numbers.attempt,
            created_at=0,
            generation=GENERATION,
        )
        await self.drive.put(wal_key(instance, sequence), packed.parts, packed.crc)
        self.durable[instance] = packed.header.attempt
        put: dict[StreamId, list[tuple[Append, Accepted]]] = {}
        for append, number in zip(appends, packed.numbers, strict=True):
            line = packed.lines[number]
            self.appends[instance, sequence, number] = append
            piece = Accepted(
                instance, sequence, number, line.position, line.size, line.record_count, 0
            )
            put.setdefault(line.stream_id, []).append((append, piece))
        self.directories[instance, sequence] = set(put)
        self.data_positions[instance, sequence] = packed.header.data_position
        return put

    def _groups(
        self, put: dict[StreamId, list[tuple[Append, Accepted]]]
    ) -> list[dict[StreamId, list[tuple[Append, Accepted]]]]:
        """All streams in one EXEC, or one EXEC each."""
        if self.random.random() < 0.5:
            return [put]
        return [{stream_id: pieces} for stream_id, pieces in put.items()]

    async def _commit(
        self,
        numbers: AttemptNumbers,
        flush: "Flush",
        group: dict[StreamId, Pieces],
        seen: Mapping[StreamId, SeenTail],
    ) -> Commit | Loss | None:
        """Commit one group; None where nobody can tell whether it happened."""

        def asked(stream_id: StreamId) -> Asked:
            accepted = [piece for _, piece in group[stream_id]]
            before = seen.get(stream_id, UNSEEN)
            return Asked(stream_id, (), before, lambda *_: Decided(accepted, {}))

        while True:
            try:
                return await commit(
                    self.coordination,
                    numbers,
                    [asked(stream_id) for stream_id in group],
                    sequence=flush.lowest,
                    clock=self.clock,
                    settled=flush.settled,
                    next_sequence=flush.next_sequence,
                    bounds=BOUNDS,
                )
            except Unchecked:
                numbers.checked = await self._check()
            except CommitUnknown as error:
                self.events["a lost commit"] += 1
                fate = await self._decide(numbers)
                if fate is Fate.UNKNOWN:
                    return None
                if fate is Fate.APPLIED:
                    self.events["a lost commit was applied"] += 1
                    return error.commit
            except (CoordinationUnavailable, CoordinationUnknown, CoordinationConflict):
                continue

    async def _decide(self, numbers: AttemptNumbers) -> Fate:
        while True:
            try:
                return await decide_lost(self.coordination, numbers)
            except Unchecked:
                numbers.checked = await self._check()
            except (CoordinationUnavailable, CoordinationUnknown, CoordinationConflict) as error:
                self.events["a lost bump"] += isinstance(error, CoordinationUnknown)

    def _acknowledge(
        self,
        done: Commit,
        group: dict[StreamId, list[tuple[Append, Accepted]]],
        seen: dict[StreamId, SeenTail],
    ) -> None:
        for stream_id, pieces in group.items():
            found = done.streams[stream_id]
            if not isinstance(found, Committed):
                self.events[f"refused: {found.name}"] += 1
                continue
            seen[stream_id] = seen_of(found.tail, seen.get(stream_id, UNSEEN))
            offset = found.entries[0].first_offset
            for append, _ in pieces:
                self.answered.append((append, offset))
                offset += append.record_count
            self.events["acknowledged"] += 1

    # The others: each may be there twice, and go on with what it saw long ago.

    async def manifest(self) -> None:
        while True:
            stream_id = self.random.choice(self.active)
            found = await self.until_done(
                partial(load_tails, self.coordination, [stream_id], GENERATION)
            )
            tail = found[stream_id]
            assert not isinstance(tail, Corrupt)
            if tail is None or tail.state is TailState.CLOSED:
                continue
            published = tail.published_next + 2 * self.random.randrange(4)
            target = min(published, tail.next_offset)
            try:
                await self.until_done(partial(self._publish, stream_id, target))
            except NotFound:
                continue
            prune = partial(tails.prune, self.coordination, stream_id, GENERATION, limit=2)
            await self.until_done(prune)
            self.events["pruned"] += 1

    async def _publish(self, stream_id: StreamId, target: int) -> None:
        def publish(record: StreamRecord) -> StreamRecord:
            published = max(record.published_next, target)
            return replace(record, published_next=published, version=record.version + 1)

        await self.streams.update(stream_id, publish)

    async def uploader(self) -> None:
        while True:
            instances = await self.until_done(lambda: wal.load_instances(self.coordination))
            if not instances:
                continue
            # The newest are written to, so most happens there.
            instance = self.random.choice(sorted(instances)[-4:])
            shards = set(self.random.sample(range(16), 12))
            streams = {
                sequence: sorted(one for one in held if shard_of(one) in shards)
                for (other, sequence), held in self.directories.items()
                if other == instance
            }
            done = await self.until_done(
                partial(releases.release, self.coordination, instance, GENERATION, streams, shards)
            )
            self.events["released"] += len(done.gone)

    async def vacuum(self) -> None:
        while True:
            instances = await self.until_done(lambda: wal.load_instances(self.coordination))
            for instance in sorted(instances):
                if self.random.random() < 0.25:
                    # Its writer is believed to be dead, whether it is or not; in an older copy
                    # each is, since no lease of it is held any more.
                    if not self.lost:
                        self.lapsed.add(instance)
                    await self.coordination.release(wal.live_key(instance), instance.encode())
                    settle = partial(wal.settle, self.coordination, instance, GENERATION)
                    await self.until_done(settle)
                await self._reclaim(instance)

    async def _reclaim(self, instance: Uid) -> None:
        found = await self.until_done(
            lambda: wal.deletable(self.drive, self.coordination, instance, GENERATION)
        )
        # What was reserved and never put is passed over quickly: it takes no time of the run.
        there = [one for one in found.sequences if (instance, one) in self.directories]
        await wal.delete_objects(self.drive, instance, there)
        self.events["deleted"] += len(there)
        if found.sequences:
            await self.until_done(
                lambda: wal.note_deleted(
                    self.coordination, instance, GENERATION, found.sequences.stop
                )
            )

    async def operator(self) -> None:
        number = 3
        while True:
            stream_id = self.random.choice(self.active)
            if self.random.random() < 0.3:
                self.active.remove(stream_id)
                await self._delete(stream_id)
                await self._create(number)
                number += 1
                continue
            await self._fence(stream_id, fenced=True)
            self.stopped[stream_id] = self._tail(stream_id).number
            for _ in range(self.random.randrange(20)):
                await self.coordination.get("anything")
            del self.stopped[stream_id]
            await self._fence(stream_id, fenced=False)
            self.events["fenced"] += 1

    async def _fence(self, stream_id: StreamId, *, fenced: bool) -> None:
        def change(record: StreamRecord) -> StreamRecord:
            config = record.config.model_copy(update={"fenced": fenced})
            return replace(record, config=config)

        await self.until_done(
            lambda: tails.configure(self.coordination, stream_id, GENERATION, change)
        )

    async def _delete(self, stream_id: StreamId) -> None:
        record = await self.until_done(lambda: self.streams.load(stream_id))

        def decide(record: StreamRecord) -> StreamRecord:
            return replace(record, state=StreamState.DELETING, version=record.version + 1)

        await self.until_done(
            lambda: tails.close(
                self.streams, stream_id, record.full_name, GENERATION, decide, Changes()
            )
        )
        tail = self._tail(stream_id)
        self.stopped[stream_id] = tail.number
        while await self.until_done(
            lambda: tails.clear_page(self.coordination, stream_id, GENERATION, limit=2)
        ):
            pass
        self.events["deleted a stream"] += 1

    def _tail(self, stream_id: StreamId) -> Tail:
        return decode_tail(self.coordination.peek(tail_key(stream_id)) or b"")


class Invariants:
    """What must hold after every change; the numbers are those of the design's list."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._tails: dict[StreamId, Tail] = {}
        self._instances: dict[Uid, WalInstance] = {}
        self._history: dict[StreamId, dict[int, TailEntry]] = {}
        self._attempts: dict[StreamId, dict[int, int]] = {}
        """The attempt that wrote each entry."""
        self._placed: dict[int, tuple[StreamId, int]] = {}
        """Where each append is, in a stream."""
        self._at: dict[tuple[StreamId, int], int] = {}
        """The append at each offset."""
        self._needed: list[tuple[StreamId, TailEntry]] = []
        """Entries that a rebuild would bring back after the loss, from their objects."""

    def check(self) -> None:
        try:
            for stream_id in {*self._world.active, *self._tails}:
                self._check_stream(stream_id)
            self._check_instances()
            self._check_answers()
            self._check_needed()
        except Violation:
            raise
        except AssertionError as error:
            raise Violation(str(error)) from error

    def append_at(self, stream_id: StreamId, offset: int) -> int:
        """The number of the append that begins at an offset."""
        return self._at[stream_id, offset]

    def _check_needed(self) -> None:
        # What was in an older copy too may have been published from there.
        self._needed = [
            (stream_id, entry)
            for stream_id, entry in self._needed
            if entry.next_offset > self._published_next(stream_id)
        ]
        for _, entry in self._needed:
            if not self._world.drive.has(wal_key(entry.instance, entry.sequence)):
                raise Violation("an object is deleted that a rebuild needs")

    def lose(self, copy: Stored) -> None:
        """Note what the loss of coordination must not cost.

        Objects that hold what is in no fragment yet stay, and no offset is given again. Where a
        copy is put back that is promised of what the bucket can prove: of a commit of which a later
        object of the same instance speaks, and, if the copy knows no such instance, whose stream
        has a tail in the copy.
        """
        world, proven = self._world, set[tuple[StreamId, int]]()
        for stream_id, entries in self._history.items():
            for next_offset, entry in entries.items():
                if self._is_promised(copy, stream_id, entry):
                    proven.add((stream_id, next_offset))
        for stream_id in world.active:
            published = self._published_next(stream_id)
            for entry in self._entries(stream_id):
                if (stream_id, entry.next_offset) in proven and entry.next_offset > published:
                    self._needed.append((stream_id, entry))
        self._tails.clear()
        self._instances.clear()
        for stream_id, entries in self._history.items():
            for next_offset in list(entries):
                if (stream_id, next_offset) not in proven:
                    self._forget(stream_id, entries.pop(next_offset))

    def _is_promised(self, copy: Stored, stream_id: StreamId, entry: TailEntry) -> bool:
        world = self._world
        if world.loss is LossKind.EMPTIED:
            return True
        if self._attempts[stream_id][entry.next_offset] > world.durable.get(entry.instance, 0):
            return False
        tail = copy.values.get(tail_key(stream_id))
        open_ = tail is not None and decode_tail(tail.value).state is not TailState.CLOSED
        return wal.instance_key(entry.instance) in copy.values or open_

    def _forget(self, stream_id: StreamId, entry: TailEntry) -> None:
        for offset in range(entry.first_offset, entry.next_offset):
            number = self._at.pop((stream_id, offset), None)
            if number is not None:
                del self._placed[number]

    def _published_next(self, stream_id: StreamId) -> int:
        value = self._world.coordination.peek(stream_key(stream_id))
        return 0 if value is None else decode_record(value, SERVED).published_next

    def _entries(self, stream_id: StreamId) -> list[TailEntry]:
        members = self._world.coordination.peek_members(tail_index_key(stream_id))
        return [decode_entry(member) for member in members]

    def _check_stream(self, stream_id: StreamId) -> None:
        world = self._world
        value = world.coordination.peek(tail_key(stream_id))
        entries = self._entries(stream_id)
        if value is None:
            assert not entries, "what is cleared comes back"
            return
        tail = decode_tail(value)
        before = self._tails.get(stream_id, tail)
        check_step(before, tail)
        self._tails[stream_id] = tail
        if stream_id in world.stopped:
            assert tail.number == world.stopped[stream_id], "it commits after a fence was answered"
        if tail.state is TailState.CLOSED:
            return
        # 2: no hole; 3: nothing goes back, which check_step says.
        check_index(tail, entries)
        for entry in entries:
            self._check_entry(stream_id, entry)

    def _check_entry(self, stream_id: StreamId, entry: TailEntry) -> None:
        world = self._world
        if not world.lost:
            self._check_object(stream_id, entry)
        # 4: an append is in one entry.
        history = self._history.setdefault(stream_id, {})
        if history.setdefault(entry.next_offset, entry) != entry:
            raise Violation("offsets are given twice")
        value = world.coordination.peek(wal.instance_key(entry.instance))
        attempts = self._attempts.setdefault(stream_id, {})
        if entry.next_offset not in attempts:
            attempts[entry.next_offset] = 0 if value is None else decode_instance(value).attempt
        offset, number = entry.first_offset, self._number(entry)
        while offset < entry.next_offset:
            append = world.appends[entry.instance, entry.sequence, number]
            assert append.stream_id == stream_id
            if self._placed.setdefault(append.number, (stream_id, offset)) != (stream_id, offset):
                raise Violation("an append is there twice")
            if self._at.setdefault((stream_id, offset), append.number) != append.number:
                raise Violation("offsets are given twice")
            offset, number = offset + append.record_count, number + 1
        assert offset == entry.next_offset

    def _check_object(self, stream_id: StreamId, entry: TailEntry) -> None:
        """1: its object is there, and is held in its shard."""
        world = self._world
        if not world.drive.has(wal_key(entry.instance, entry.sequence)):
            raise Violation("an entry names an object that is deleted")
        held = world.coordination.peek_members(wal.held_key(entry.instance))
        places = {(one.sequence, one.shard) for one in map(decode_held, held)}
        if (entry.sequence, shard_of(stream_id)) not in places:
            raise Violation("an entry names an object that nothing holds")

    def _number(self, entry: TailEntry) -> int:
        """The number of its first piece in the directory."""
        first = self._world.data_positions[entry.instance, entry.sequence]
        return (entry.position - first) // _CHUNK_SIZE

    def _check_instances(self) -> None:
        coordination = self._world.coordination
        for member in coordination.peek_members(wal.INSTANCES_KEY):
            instance = Uid(member.decode())
            record = decode_instance(coordination.peek(wal.instance_key(instance)) or b"")
            before = self._instances.get(instance, record)
            for name in ("deleted", "settled", "reserved", "attempt"):
                assert getattr(before, name) <= getattr(record, name), f"{name} goes back"
            self._instances[instance] = record

    def _check_answers(self) -> None:
        for append, offset in () if self._world.lost else self._world.answered:
            # Once it is there it stays: every later look at an entry compares.
            if self._placed.get(append.number) != (append.stream_id, offset):
                raise Violation("what was acknowledged is not there")
        self._world.answered.clear()
