"""What a stream remembers of its producers and keys: made of committed chunks and nothing else.

The same function takes a chunk when it was just committed and when a log is read again, so
that state after a restart is the state before it. Nothing else changes it: an append that
failed was never here.

Bounded: of each producer its last few appends; so many producers, of whom the one that was
silent longest goes first; keys for as long as their window, and so many. What goes too early
by that is refused before it comes (places.py), never forgotten without a word.

All streams of a process together have a bound as well (tracking_room.py).

Kept durable by tracking chunks (formats/tracking.py) in each segment. A node that loses its
disk loses this too, until the published root names a snapshot of it.

On the record's path: beside it; asked by producers.py.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, Protocol

from bottomless.model.chunk import AppendEntry, AppendMode, TrackedEntry, TrackedKind
from bottomless_server.ingest.producers.open_commits import OpenCommits
from bottomless_server.ingest.producers.part_names import is_of_parts

KEY_SIZE: Final = 512
"""Bytes of memory that a key takes at most, with its place in a table."""
_PRODUCER_SIZE: Final = 1_200
"""Bytes of memory that a producer takes at most, with the longest id and without its appends."""
_APPEND_SIZE: Final = 256
APPEND_COUNT_MIN: Final = 5
"""The lowest that `append_count_max` may be set to (settings.py), and so ever was."""


class TrackingBounds(NamedTuple):
    producer_count_max: int
    append_count_max: int
    """Remembered appends of one producer."""
    key_count_max: int
    keep_ms: int
    """How long a key is bound to its request, and a producer safe from being forgotten."""

    def has_all(self, appends: Sequence["Remembered"]) -> bool:
        """Whether these are all that a producer made since it is known, under any setting that its
        node may have had before."""
        return len(appends) < min(self.append_count_max, APPEND_COUNT_MIN)

    @property
    def producer_size(self) -> int:
        """Bytes of memory that a producer takes once it has made all appends that are kept."""
        return _PRODUCER_SIZE + self.append_count_max * _APPEND_SIZE


class SharedRoom(Protocol):
    """Memory for all streams of a process; see tracking_room.py."""

    elapsed: int
    """The time of this node, in ms of a clock that never goes back."""

    def count(self, tracking: "Tracking", size: int, /) -> None: ...

    def fits(self, size: int, /) -> bool: ...


class Remembered(NamedTuple):
    """An append of a producer, as its repeat would look."""

    sequence: int
    """As the trailer entry's base_sequence."""
    record_count: int
    body_crc: int
    epoch: int
    first_offset: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class Producer:
    """What is known of one producer; replaced as a whole."""

    mode: AppendMode
    """PLAIN as long as it has not written."""
    epoch: int
    last_sequence: int | None
    epoch_sequence: int
    """Numbers below were written in an earlier epoch, or never."""
    timestamp: int
    appends: tuple[Remembered, ...] = ()
    """Newest last."""
    taken_at: int = field(default=0, compare=False)
    """When this node heard it, by its own time."""


class KeyUse(NamedTuple):
    """The append that a key stands for."""

    body_hash: bytes | None
    body_crc: int
    record_count: int
    first_offset: int
    timestamp: int
    taken_at: int = 0
    """When this node heard it, by its own time."""


class _Part(NamedTuple):
    entry: AppendEntry
    first_offset: int


class Tracking:
    """Owned by one appender; looked at by others in the same loop."""

    def __init__(self, bounds: TrackingBounds) -> None:
        self.bounds = bounds
        self.producers: OrderedDict[str, Producer] = OrderedDict()
        """Silent longest first."""
        self.keys: OrderedDict[bytes, KeyUse] = OrderedDict()
        """Oldest first."""
        self.open_commits = OpenCommits()
        """Whose names nobody else gets the places of."""
        self._parts: list[_Part] = []
        """Parts of an append whose last chunk has not come."""
        self.room: SharedRoom | None = None
        self.busy = False
        """Whether a round is under way: it is decided and written on the ground of what is known,
        also where it has no identities, since its segment may begin with all that is known."""
        self._kept_size = 0
        """Room of what is about to be remembered."""
        self._told_size = 0

    def __bool__(self) -> bool:
        return bool(self.producers or self.keys)

    @property
    def size(self) -> int:
        """Bytes of memory of what is remembered or about to be, counted at their largest."""
        keys, producers = len(self.keys), len(self.producers)
        return keys * KEY_SIZE + producers * self.bounds.producer_size + self._kept_size

    def begin(self) -> None:
        """A round begins, and nothing is forgotten before its end; so what may be is forgotten
        now, where there is hardly any room left."""
        if self.room is not None:
            self.room.fits(self.bounds.producer_size)
        self.busy = True

    def keep_room(self, size: int) -> bool:
        """Keep room for what may become known, until the round ends; False if there is none."""
        if size and self.room is not None and not self.room.fits(size):
            return False
        self._kept_size += size
        self._tell_size()
        return True

    def end(self) -> None:
        """The round is over: what room was kept for is known now, or will not be."""
        self.busy = False
        self._kept_size = 0
        self._tell_size()

    def date(self, wall: int, elapsed: int) -> None:
        """Say when what was read from a log was heard, in the time of this node."""

        def taken_at(timestamp: int) -> int:
            return elapsed - max(wall - timestamp, 0)

        for key_hash, use in self.keys.items():
            self.keys[key_hash] = use._replace(taken_at=taken_at(use.timestamp))
        for producer_id, producer in self.producers.items():
            heard = taken_at(producer.timestamp)
            self.producers[producer_id] = replace(producer, taken_at=heard)

    def key_due_at(self) -> int | None:
        """When the oldest key may be forgotten, by the time of this node; None without keys."""
        oldest = next(iter(self.keys.values()), None)
        return None if oldest is None else oldest.taken_at + self.bounds.keep_ms

    def producer_due_at(self) -> int | None:
        """When the producer that was silent longest may be forgotten; None if none may be."""
        oldest = self._silent_longest()
        return None if oldest is None else self.producers[oldest].taken_at + self.bounds.keep_ms

    def forget_key(self, elapsed: int) -> bool:
        """Forget the oldest key, if its time is over, by the time of this node."""
        due_at = self.key_due_at()
        if due_at is None or due_at > elapsed:
            return False
        self.keys.popitem(last=False)
        self._tell_size()
        return True

    def forget_producer(self, elapsed: int) -> bool:
        """Forget the producer that was silent longest, if that was long enough."""
        oldest = self._silent_longest()
        if oldest is None or not self._is_over(self.producers[oldest].taken_at, elapsed):
            return False
        del self.producers[oldest]
        self._tell_size()
        return True

    def _silent_longest(self) -> str | None:
        return next((one for one in self.producers if not self.open_commits.needs(one)), None)

    def _tell_size(self) -> None:
        size = self.size
        if self.room is not None:
            self.room.count(self, size - self._told_size)
        self._told_size = size

    def key(self, key_hash: bytes, now: int) -> KeyUse | None:
        """The use of a key within its window."""
        use = self.keys.get(key_hash)
        return None if use is None or self._is_over(use.timestamp, now) else use

    def take_chunk(
        self,
        first_offset: int,
        timestamp: int,
        entries: Sequence[AppendEntry],
        *,
        more_follows: bool = False,
    ) -> None:
        """Take a committed data chunk, in the order of the log."""
        for entry in entries:
            if entry.mode is not AppendMode.PLAIN:
                self._parts.append(_Part(entry, first_offset + entry.first_record))
                if not more_follows:
                    self._take_append(timestamp)
        self._forget_oldest(timestamp)

    def take_tracked(self, entries: Sequence[TrackedEntry]) -> None:
        """Take a committed tracking chunk: each entry in place of what it names."""
        producer_id = ""
        for entry in entries:
            if entry.kind is TrackedKind.APPEND:
                producer = self.producers[producer_id]
                appends = (*producer.appends, _remembered(entry))
                self.producers[producer_id] = replace(
                    producer, appends=appends[-self.bounds.append_count_max :]
                )
            elif entry.kind is TrackedKind.KEY:
                assert entry.idempotency_hash is not None
                self._take_key(entry.idempotency_hash, _use(entry))
            else:
                assert entry.producer_id is not None
                producer_id = entry.producer_id
                self.producers.pop(producer_id, None)
                if entry.kind is TrackedKind.PRODUCER:
                    self.producers[producer_id] = _producer(entry, self._elapsed)
        self._note_open(entries)
        self._forget_oldest(max((entry.timestamp for entry in entries), default=0))

    def _note_open(self, entries: Sequence[TrackedEntry]) -> None:
        """Which commits are open, after a tracking chunk; only one that says everything names parts
        that are known."""
        named = [one.producer_id for one in entries if is_of_parts(one.producer_id or "")]
        for name in filter(None, named):
            parts = self.producers.get(name)
            if parts is None or parts.last_sequence is None:
                self.open_commits.note_forgotten(name)
            else:
                self.open_commits.note_part(name, parts.epoch)
        if named:
            self.open_commits.note_wholes(
                (producer_id, known.last_sequence)
                for producer_id, known in self.producers.items()
                if known.mode is AppendMode.TRANSACTION
                and known.last_sequence is not None
                and not is_of_parts(producer_id)
            )

    def snapshot(self) -> list[TrackedEntry]:
        """Everything, as a tracking chunk says it."""
        entries = [
            entry
            for producer_id, producer in self.producers.items()
            for entry in tracked(producer_id, producer)
        ]
        entries += [
            TrackedEntry(
                TrackedKind.KEY,
                AppendMode.KEY,
                use.first_offset,
                use.timestamp,
                use.record_count,
                use.body_crc,
                0,
                0,
                0,
                idempotency_hash=key_hash,
                body_hash=use.body_hash,
            )
            for key_hash, use in self.keys.items()
        ]
        return entries

    def _take_append(self, timestamp: int) -> None:
        parts, self._parts = self._parts, []
        entry, first_offset = parts[0]
        count = sum(part.entry.record_count for part in parts)
        if entry.mode is AppendMode.KEY:
            if entry.idempotency_hash is not None:
                use = KeyUse(entry.body_hash, entry.body_crc, count, first_offset, timestamp)
                self._take_key(entry.idempotency_hash, use)
            return
        if entry.producer_id is None:
            return
        append = Remembered(
            entry.base_sequence,
            count,
            entry.body_crc,
            entry.producer_epoch,
            first_offset,
            timestamp,
        )
        before = self.producers.pop(entry.producer_id, None)
        self.producers[entry.producer_id] = self._after(before, entry.mode, append)
        if is_of_parts(entry.producer_id):
            self.open_commits.note_part(entry.producer_id, append.epoch)
        elif entry.mode is AppendMode.TRANSACTION:
            self.open_commits.note_whole(entry.producer_id, append.sequence)

    def _after(self, before: Producer | None, mode: AppendMode, append: Remembered) -> Producer:
        last = append.sequence
        if mode is AppendMode.STRICT:
            last += append.record_count - 1
        begins = before is None or before.last_sequence is None or append.epoch > before.epoch
        kept = () if before is None else before.appends
        return Producer(
            mode=mode,
            epoch=append.epoch,
            last_sequence=last,
            epoch_sequence=append.sequence if begins or before is None else before.epoch_sequence,
            timestamp=append.timestamp,
            appends=(*kept, append)[-self.bounds.append_count_max :],
            taken_at=self._elapsed,
        )

    def _take_key(self, key_hash: bytes, use: KeyUse) -> None:
        self.keys.pop(key_hash, None)
        self.keys[key_hash] = use._replace(taken_at=self._elapsed)

    @property
    def _elapsed(self) -> int:
        """The time of this node; what is read before there is one is dated when it is known."""
        return 0 if self.room is None else self.room.elapsed

    def _forget_oldest(self, now: int) -> None:
        """After a whole chunk: what it names has its place before anybody loses his."""
        while len(self.producers) > self.bounds.producer_count_max:
            # Where bounds were made smaller all names may be needed.
            del self.producers[self._silent_longest() or next(iter(self.producers))]
        while len(self.keys) > self.bounds.key_count_max or (
            self.keys and self._is_over(next(iter(self.keys.values())).timestamp, now)
        ):
            self.keys.popitem(last=False)
        self._tell_size()

    def _is_over(self, timestamp: int, now: int) -> bool:
        return now - timestamp >= self.bounds.keep_ms


def tracked(producer_id: str, producer: Producer) -> Iterator[TrackedEntry]:
    """One producer as a tracking chunk says it."""
    yield TrackedEntry(
        TrackedKind.PRODUCER,
        producer.mode,
        0,
        producer.timestamp,
        0,
        0,
        producer.last_sequence or 0,
        producer.epoch_sequence,
        producer.epoch,
        producer_id,
    )
    for append in producer.appends:
        yield TrackedEntry(
            TrackedKind.APPEND,
            producer.mode,
            append.first_offset,
            append.timestamp,
            append.record_count,
            append.body_crc,
            append.sequence,
            0,
            append.epoch,
        )


def forgotten(producer_id: str, timestamp: int) -> TrackedEntry:
    """What a tracking chunk says of a producer that is not known any more."""
    kind, mode = TrackedKind.FORGOTTEN, AppendMode.PLAIN
    return TrackedEntry(kind, mode, 0, timestamp, 0, 0, 0, 0, 0, producer_id)


def _producer(entry: TrackedEntry, taken_at: int) -> Producer:
    return Producer(
        mode=entry.mode,
        epoch=entry.producer_epoch,
        last_sequence=None if entry.mode is AppendMode.PLAIN else entry.sequence,
        epoch_sequence=entry.epoch_sequence,
        timestamp=entry.timestamp,
        taken_at=taken_at,
    )


def _remembered(entry: TrackedEntry) -> Remembered:
    return Remembered(
        entry.sequence,
        entry.record_count,
        entry.body_crc,
        entry.producer_epoch,
        entry.first_offset,
        entry.timestamp,
    )


def _use(entry: TrackedEntry) -> KeyUse:
    return KeyUse(
        entry.body_hash, entry.body_crc, entry.record_count, entry.first_offset, entry.timestamp
    )
