"""How far streaming queries have come in their streams, as they report it themselves.

    spark.streams.addListener(StreamProgressListener())

Spark gives positions as JSON and does not know what they mean; here they become records
that were read and records that are left.
"""

import json
import logging
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from bottomless.spark.positions import beginning_of

_log: Final = logging.getLogger(__name__)


class StreamProgress(NamedTuple):
    """What one micro-batch of one query has read of one stream."""

    query_id: str
    query_name: str | None
    batch_id: int
    """Number of the micro-batch."""
    stream: str
    stream_id: str
    start_offset: int
    """The first offset of the batch; for a query's first batch it is where the query began."""
    end_offset: int
    """The end (exclusive) of the batch."""
    latest_offset: int | None
    """The end of the stream as it was known then; None if it was not known."""
    rows: int
    """Rows that the batch gave."""
    partition_count: int = 1
    """Partitions, where it is a super stream: offsets are then sums over all of them, and the id is
    that of the first."""

    @property
    def lag(self) -> int | None:
        """Offsets that are left to read; None if the stream's end is not known."""
        return None if self.latest_offset is None else max(0, self.latest_offset - self.end_offset)

    @property
    def absent(self) -> int:
        """Offsets of the batch that gave no row: trimmed and skipped, filtered out, or in a gap."""
        return max(0, self.end_offset - self.start_offset - self.rows)


def progress_of(
    query_id: str,
    query_name: str | None,
    batch_id: int,
    start: str | None,
    end: str | None,
    latest: str | None,
    rows: int,
) -> StreamProgress | None:
    """Read what one source of a query reports; None if it is not ours, or has read nothing yet."""
    ends = _read(end)
    if ends is None:
        return None
    begins, newest = _read(start), _read(latest)
    if begins is not None:
        start_offset = begins.offset
    else:
        # Of a first batch Spark has no start; our source reports it beside the newest end. A
        # worker of an older release does not: then the batch has these rows at least.
        began = None if newest is None else beginning_of(json.loads(latest or "{}"))
        start_offset = max(0, ends.offset - rows) if began is None else began
    return StreamProgress(
        query_id,
        query_name,
        batch_id,
        ends.stream,
        ends.stream_id,
        start_offset,
        ends.offset,
        None if newest is None else newest.offset,
        rows,
        ends.partition_count,
    )


class StreamProgressListener(StreamingQueryListener):
    """Passes the progress of every stream on, to the log unless told otherwise."""

    def __init__(self, report: Callable[[StreamProgress], None] | None = None) -> None:
        self._report = report or _to_log

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Do nothing: nothing has been read yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Pass on the progress of each of our streams in a micro-batch."""
        progress = event.progress
        for source in progress.sources:
            made = progress_of(
                str(progress.id),
                progress.name,
                progress.batchId,
                source.startOffset,
                source.endOffset,
                source.latestOffset,
                source.numInputRows,
            )
            if made is not None:
                self._report(made)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Do nothing: the last progress says what was read."""


def _to_log(progress: StreamProgress) -> None:
    _log.info(
        "%s batch %d: stream %s from %d to %d, %d rows, %s behind",
        progress.query_name or progress.query_id,
        progress.batch_id,
        progress.stream,
        progress.start_offset,
        progress.end_offset,
        progress.rows,
        "unknown" if progress.lag is None else progress.lag,
    )


class _Read(NamedTuple):
    """What a position says, of all its streams together."""

    stream: str
    stream_id: str
    offset: int
    partition_count: int


def _read(position: str | None) -> _Read | None:
    """Read a position; that of another source is none. One that names several streams is that of a
    super stream, whose partitions are called as it is, with their numbers."""
    try:
        value: Any = json.loads(position or "null")
        streams = {
            str(stream): (str(one["u"]), int(one["o"])) for stream, one in value["s"].items()
        }
        first = next(iter(streams))
    except (ValueError, TypeError, KeyError, AttributeError, StopIteration):
        return None
    offset = sum(offset for _, offset in streams.values())
    name = first if len(streams) == 1 else first.rpartition("-")[0]
    return _Read(name, streams[first][0], offset, len(streams))
