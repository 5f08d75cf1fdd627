"""What is known of one producer and of one key, and how a tracking chunk says it.

These are values: tracking.py keeps them, and replaces them as a whole.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from bottomless.model.chunk import AppendMode, TrackedEntry, TrackedKind

KEY_SIZE: Final = 512
"""Bytes of memory that a key takes at most, with its place in a table."""
_PRODUCER_SIZE: Final = 1_200
"""Bytes of memory that a producer takes at most, with the longest id and without its appends."""
_APPEND_SIZE: Final = 256
APPEND_COUNT_MIN: Final = 5
"""The lowest that `append_count_max` may be set to (settings.py), and so ever was."""


class Remembered(NamedTuple):
    """An append of a producer, as its repeat would look."""

    sequence: int
    """The base_sequence of its entry in the trailer."""
    record_count: int
    body_crc: int
    epoch: int
    first_offset: int
    timestamp: int


def with_append(
    appends: Sequence[Remembered], mode: AppendMode, append: Remembered
) -> tuple[Remembered, ...]:
    """Remember one more append, the newest.

    One number of a transaction may stand in several chunks that are no group: those of a commit that
    fills several objects, all of which one EXEC makes visible. Together they are one append.
    """
    before = appends[-1] if appends else None
    goes_on = (
        mode is AppendMode.TRANSACTION
        and before is not None
        and (before.sequence, before.epoch) == (append.sequence, append.epoch)
        and before.first_offset + before.record_count == append.first_offset
    )
    if before is None or not goes_on:
        return (*appends, append)
    return (*appends[:-1], before._replace(record_count=before.record_count + append.record_count))


@dataclass(frozen=True, slots=True)
class Producer:
    """What is known of one producer; replaced as a whole."""

    mode: AppendMode
    """The mode in which it writes; PLAIN as long as it has not written."""
    epoch: int
    last_sequence: int | None
    epoch_sequence: int
    """Numbers below were written in an earlier epoch, or never."""
    timestamp: int
    appends: tuple[Remembered, ...] = ()
    """Its last appends, the newest one last."""
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


def tracked(producer_id: str, producer: Producer) -> Iterator[TrackedEntry]:
    """The entries by which a tracking chunk says what is known of a producer."""
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


def tracked_key(key_hash: bytes, use: KeyUse) -> TrackedEntry:
    """The entry by which a tracking chunk says what a key stands for."""
    return TrackedEntry(
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


def forgotten(producer_id: str, timestamp: int) -> TrackedEntry:
    """The entry by which a tracking chunk says that a producer is not known any more."""
    kind, mode = TrackedKind.FORGOTTEN, AppendMode.PLAIN
    return TrackedEntry(kind, mode, 0, timestamp, 0, 0, 0, 0, 0, producer_id)


def producer_of(entry: TrackedEntry, taken_at: int) -> Producer:
    """A producer as its entry in a tracking chunk says it, without its appends."""
    return Producer(
        mode=entry.mode,
        epoch=entry.producer_epoch,
        last_sequence=None if entry.mode is AppendMode.PLAIN else entry.sequence,
        epoch_sequence=entry.epoch_sequence,
        timestamp=entry.timestamp,
        taken_at=taken_at,
    )


def remembered_of(entry: TrackedEntry) -> Remembered:
    """An append of a producer as its entry in a tracking chunk says it."""
    return Remembered(
        entry.sequence,
        entry.record_count,
        entry.body_crc,
        entry.producer_epoch,
        entry.first_offset,
        entry.timestamp,
    )


def key_use_of(entry: TrackedEntry) -> KeyUse:
    """The use of a key as its entry in a tracking chunk says it."""
    return KeyUse(
        entry.body_hash, entry.body_crc, entry.record_count, entry.first_offset, entry.timestamp
    )
