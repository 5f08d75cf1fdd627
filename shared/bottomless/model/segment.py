"""Segments: local files of chunks before upload, and the checkpoint beside them."""

from typing import NamedTuple

from bottomless.model.names import StreamId


class SegmentHeader(NamedTuple):
    """The first 64 bytes of a segment, and of an index file too, under another magic."""

    stream_id: StreamId
    first_offset: int
    epoch: int
    """Epoch of the owner that created the file; its chunks carry their own."""


class Checkpoint(NamedTuple):
    """What is certainly durable of a stream on this disk. Fields stand in wire order.

    Below byte `synced_position` of the segment that starts at `segment_first_offset`, index records
    are trusted; above it every chunk is walked with its checksums. `epoch`, `version` and
    `published_next` are the highest ever seen in coordination: a store that shows less has lost
    data. `synced_next`, `published_next` and `reserved_next` are offsets and exclusive ends.
    """

    stream_id: StreamId
    segment_first_offset: int
    synced_position: int
    synced_next: int
    last_timestamp: int
    epoch: int
    version: int
    published_next: int
    reserved_next: int
