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
    stream, stream_id, end_offset = ends
    if begins is not None:
        start_offset = begins[2]
    else:
        # Of a first batch Spark has no start; our source reports it beside the newest end. A
        # worker of an older release does not: then the batch has these rows at least.
        began = None if newest is None else beginning_of(json.loads(latest or "{}"))
        start_offset = max(0, end_offset - rows) if began is None else began
    return StreamProgress(
        query_id,
        query_name,
        batch_id,
        stream,
        stream_id,
        start_offset,
        end_offset,
        None if newest is None else newest[2],
        rows,
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


def _read(position: str | None) -> tuple[str, str, int] | None:
    """Stream, its id and the offset; a position of another source is none."""
    try:
        value: Any = json.loads(position or "null")
        ((stream, one),) = value["s"].items()
        return str(stream), str(one["u"]), int(one["o"])
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
