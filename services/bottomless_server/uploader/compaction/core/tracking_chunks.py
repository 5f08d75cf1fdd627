"""The tracking chunks with which fragments of leaderless streams end.

Coordination knows the producers and keys of such a stream, and the trailers of its chunks say what each
append did. So what is lost with coordination can be made of fragments again, but for two things: an
epoch that was raised without an append stands in no trailer, and to read every trailer of a stream
would take too long. A fragment therefore ends with a tracking chunk

- if the epoch of a producer was raised without an append at or below its end,
- if the trailers that told of a producer or key went with what was removed from the beginning of the
  stream, and the last tracking chunk with them, or
- if trailers since the last tracking chunk take more room than one.

Each of them says everything that was known at the end of its fragment: whoever restores a stream takes
the last one, and the trailers after it.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from bottomless.formats.chunk import decode_trailer
from bottomless.formats.placing import Placed
from bottomless.formats.tracking import encode_tracking, seal_tracking
from bottomless.guards import guard
from bottomless.model.chunk import AppendMode, ChunkFlags, ChunkHeader, TrackedEntry, TrackedKind
from bottomless_server.core.tracking.known_producers import (
    APPEND_COUNT_MIN,
    TrackingBounds,
    tracked,
)
from bottomless_server.core.tracking.tracking import Tracking
from bottomless_server.leaderless.tail_format import Known

_UNBOUNDED: Final = 2**62


class LastTold(NamedTuple):
    """Where the last tracking chunk of a stream stands, as far as one uploader has seen."""

    next_offset: int = 0
    """The end of its fragment; 0 if none was seen."""
    trailer_size: int = 0
    """Bytes of trailers since then."""


class FragmentTracking:
    """What the fragments of one run end with, one after the other."""

    def __init__(self, known: Sequence[Known], last: LastTold, floor: int = 0) -> None:
        """`known` is what coordination knows of the stream's names, read after the run's entries;
        what lies below `floor` was removed from the stream."""
        self._known = known
        self.last = last
        self._floor = floor
        self._changed_at = max((one.changed_at for one in known), default=0)
        self._told = told_by([])
        """What trailers say of producers, up to the last fragment after which any has changed."""

    def after(self, chunks: Sequence[Placed]) -> bytes | None:
        """The tracking chunk with which a fragment of these chunks ends, the next of the run; None
        if it ends with none."""
        trailer_size = self.last.trailer_size + sum(one.header.trailer_size for one in chunks)
        self.last = self.last._replace(trailer_size=trailer_size)
        first, last = chunks[0].header, chunks[-1].header
        if self._changed_at > last.next_offset:
            take_trailers(self._told, chunks)
        entries = known_at(self._known, self._told, last.next_offset)
        raised = any(
            is_raised_alone(one, first.first_offset, last.next_offset) for one in self._known
        )
        wanted = (
            raised
            or is_removed(self._known, self.last, self._floor)
            or trailer_size > len(encode_tracking(entries))
        )
        if not entries or not wanted:
            return None
        self.last = LastTold(last.next_offset)
        return b"".join(
            seal_tracking(
                entries,
                first_offset=last.next_offset,
                timestamp=last.timestamp,
                epoch=last.epoch,
            )
        )


@guard("a producer of whom only what was removed told")
def is_removed(known: Sequence[Known], last: LastTold, floor: int) -> bool:
    """Whether what told of some producer or key lies below the floor, with the last tracking chunk:
    then no fragment that is left tells of it."""
    return last.next_offset <= floor and any(one.changed_at <= floor for one in known)


@guard("an epoch that no append tells")
def is_raised_alone(known: Known, first_offset: int, next_offset: int) -> bool:
    """Whether the epoch of a producer was raised without an append, between these offsets or at one
    of them: no trailer says it."""
    producer = known.entries[0]
    if producer.kind is not TrackedKind.PRODUCER:
        return False
    told = max((one.producer_epoch for one in known.entries[1:]), default=-1)
    return producer.producer_epoch > told and first_offset <= known.changed_at <= next_offset


def known_at(known: Sequence[Known], told: Tracking, next_offset: int) -> list[TrackedEntry]:
    """What was known at an offset, as a tracking chunk says it: of what changed later only what lies
    below, with what trailers of the run have told up to there."""
    entries: list[TrackedEntry] = []
    later: list[str] = []
    for one in known:
        if one.changed_at <= next_offset:
            entries += one.entries
        elif one.entries[0].producer_id is not None:
            later.append(one.entries[0].producer_id)
            if below := _below(one.entries, next_offset):
                later.pop()
                entries += below
        else:
            entries += [entry for entry in one.entries if entry.first_offset < next_offset]
    for producer_id in later:
        if producer_id in told.producers:
            entries += tracked(producer_id, told.producers[producer_id])
    return entries


def _below(entries: Sequence[TrackedEntry], next_offset: int) -> list[TrackedEntry]:
    """What is known of a producer by its remembered appends below an offset; nothing if there is none."""
    producer = entries[0]
    appends = [entry for entry in entries[1:] if entry.first_offset < next_offset]
    if not appends:
        return []
    last = appends[-1]
    sequence = last.sequence
    if producer.mode is AppendMode.STRICT:
        sequence += last.record_count - 1
    began = producer.epoch_sequence
    if last.producer_epoch != producer.producer_epoch:
        # The first of its epoch that is remembered: what came before it is not recognised any more.
        began = next(one.sequence for one in appends if one.producer_epoch == last.producer_epoch)
    told = producer._replace(
        sequence=sequence,
        epoch_sequence=began,
        producer_epoch=last.producer_epoch,
        timestamp=last.timestamp,
    )
    return [told, *appends]


def told_by(chunks: Sequence[Placed]) -> Tracking:
    """What the trailers of chunks say of producers, and nothing else."""
    tracking = Tracking(TrackingBounds(_UNBOUNDED, APPEND_COUNT_MIN, _UNBOUNDED, _UNBOUNDED))
    take_trailers(tracking, chunks)
    return tracking


def take_trailers(tracking: Tracking, chunks: Sequence[Placed]) -> None:
    """Let a tracking know what the trailers of the next chunks say of producers."""
    for header, _, body in chunks:
        entries = decode_trailer(_trailer_of(header, body))
        tracking.take_chunk(
            header.first_offset,
            header.timestamp,
            [entry for entry in entries if entry.producer_id is not None],
            more_follows=ChunkFlags.MORE_FOLLOWS in header.flags,
        )


def _trailer_of(header: ChunkHeader, body: memoryview) -> memoryview:
    """The trailer in the bytes after a chunk's header."""
    start = header.filter_size + header.batches_size
    return body[start : start + header.trailer_size]
