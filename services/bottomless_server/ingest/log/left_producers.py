"""Begin the log of a stream with what its last owner left of producers.

An owner that leaves a stream clean writes down in coordination, as a tracking chunk, what it knows of
producers. The next owner makes its log begin with that chunk before it claims the stream, so that it
is in one of both logs whenever coordination is lost. It is written as it was left, under the epoch of
the last owner: nothing is written under an epoch before the bucket says who has the stream.

What is on this disk after a crash that follows each step:

1. the directory is made                nothing of the stream
2. a checkpoint, with what coordination  the next opening removes it if another node has the stream,
   shows of the stream                   as one that is published whole
3. a segment with the chunk, synced      the same; if this node has the stream, its log

On the record's path: beside it; local/opening.py calls it before a claim.
"""

from typing import NamedTuple

from bottomless.formats.checks import check
from bottomless.formats.chunk import decode_header, split_chunks, trailer_of
from bottomless.formats.tracking import decode_tracking
from bottomless.model.chunk import ChunkHeader, ChunkKind
from bottomless.model.segment import Checkpoint
from bottomless.model.stream import StreamRecord
from bottomless_server.core.tracking.tracking import Tracking
from bottomless_server.ingest.log.core.batcher import Round, SealedChunk
from bottomless_server.ingest.log.segments import SegmentLog
from bottomless_server.node.core.ownership import LocalView


class LeftChunk(NamedTuple):
    """What was left, as the tracking chunk that it is."""

    header: ChunkHeader
    data: bytes


def left_chunk(left: bytes) -> LeftChunk:
    """What was left, with its header; its body is verified when it is taken.

    Raises:
        Corrupt: it is not what was written.
    """
    header = decode_header(left)
    check("producers", header.kind is ChunkKind.TRACKING, "it holds records")
    check("producers", header.total_size == len(left), "it is not one chunk")
    return LeftChunk(header, left)


def take_left(tracking: Tracking, left: LeftChunk) -> None:
    """Take what another owner has left.

    Raises:
        Corrupt: it is not what was written.
    """
    for header, chunk in split_chunks(left.data):
        tracking.take_tracked(decode_tracking(trailer_of(header, chunk)))


def begin_with_left(
    log: SegmentLog, left: LeftChunk, record: StreamRecord, local: LocalView, elapsed: int
) -> None:
    """Make what was left durable as the first chunk of a log; in a worker thread.

    The log's directory is there, and no chunk lies in it; `local` is what the disk has seen of
    coordination so far.

    Raises:
        WriteRefused, LogBroken, OSError: the same again is right.
    """
    header = left.header
    chunk = SealedChunk(
        [left.data], len(left.data), 0, header.first_offset, header.timestamp, header.epoch
    )
    written = Round([chunk], [], header.timestamp, header.first_offset)
    try:
        log.save_checkpoint(_seen(record, local, header))
        log.extend(log.sync(log.write(written, header.epoch, elapsed)))
    finally:
        log.close()


def _seen(record: StreamRecord, local: LocalView, header: ChunkHeader) -> Checkpoint:
    """What this disk has seen of a stream that is about to be claimed.

    Of epochs that is the one of the last owner, and not the newest: with that one this disk would
    prove that the bucket knows of this node.
    """
    return Checkpoint(
        stream_id=record.stream_id,
        segment_first_offset=header.first_offset,
        synced_position=0,
        synced_next=header.first_offset,
        last_timestamp=header.timestamp,
        epoch=max(local.epoch, header.epoch),
        version=max(local.version, record.version),
        published_next=max(local.published_next, record.published_next),
        reserved_next=record.reserved_next,
    )
