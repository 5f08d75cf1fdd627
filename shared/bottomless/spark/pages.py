"""Read a range of offsets through the reader service, page by page, as Arrow.

For the tail, which no object holds yet, and for what a worker cannot read by itself.
The reader serves both tiers, so a range that moves to object storage meanwhile is still
read whole.
"""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import urllib3

from bottomless.client.parameters import query_of
from bottomless.client.transport import QueryValue
from bottomless.errors import Code, NotFound, OffsetGone
from bottomless.formats.checks import check
from bottomless.model.filter import Filter
from bottomless.model.limits import PAGE_RECORD_COUNT_ARROW_MAX, PAGE_SIZE_MAX
from bottomless.spark.losses import Losses
from bottomless.spark.options import parameters_of
from bottomless.spark.rows import RowShape
from bottomless.spark.service import Source, ask
from bottomless.spark.store import Counts

ARROW: Final = "application/vnd.apache.arrow.stream"

SAMPLE_RECORD_COUNT: Final = 1000
SAMPLE_SIZE: Final = 64 * 1024


def read_pages(
    source: Source,
    first_offset: int,
    next_offset: int,
    shape: RowShape,
    counts: Counts,
    losses: Losses,
) -> Iterator[pa.RecordBatch]:
    """Read every record from `first_offset` to `next_offset`, exclusive, that the shape wants, in
    order; the reader leaves out the others.

    Raises:
        OffsetGone: `offset-trimmed`, and `losses` does not allow for it.
        NotFound: `data-missing`, the stream ends before `next_offset`.
        WrongOffset: `stream-replaced`, another stream has taken the name.
        StoreError: the reader's answer says why.
    """
    offset = first_offset
    while offset < next_offset:
        try:
            answer = _get(source, offset, next_offset, shape.wanted)
        except OffsetGone as error:
            offset = _readable_after(error, offset, next_offset, losses)
            continue
        counts.page_reads += 1
        counts.page_bytes += len(answer.data)
        with pa.ipc.open_stream(answer.data) as page:
            for batch in page:
                if batch.num_rows:
                    _check_range(batch, offset, next_offset)
                    yield shape.of_page(batch)
        following = int(answer.headers["Page-Next-Offset"])
        if following <= offset:
            raise NotFound(
                "the stream ends before the offset that it had",
                code=Code.DATA_MISSING,
                facts={"offset": offset, "next_offset": next_offset},
            )
        offset = following


def record_size_at(source: Source, offset: int, next_offset: int) -> float:
    """Estimate the bytes of a record from `offset` on, by a sample of the next few."""
    query = _query(source, offset, next_offset, SAMPLE_RECORD_COUNT, SAMPLE_SIZE)
    try:
        answer = ask(source, "records", query, ARROW)
    except OffsetGone as error:
        readable = _readable(error, offset)
        if readable is None:
            raise
        return record_size_at(source, readable, next_offset) if readable < next_offset else 0.0
    count = int(answer.headers["Page-Next-Offset"]) - offset
    return len(answer.data) / max(count, 1)


def _readable_after(error: OffsetGone, offset: int, next_offset: int, losses: Losses) -> int:
    """The offset to go on from, where `offset` and some after it cannot be read."""
    readable = _readable(error, offset)
    if readable is not None:
        return readable
    floor = error.facts.get("first_offset")
    if error.code is not Code.OFFSET_TRIMMED or not isinstance(floor, int) or floor <= offset:
        raise error
    losses.note(offset, min(floor, next_offset), error)
    return min(floor, next_offset)


def _readable(error: OffsetGone, offset: int) -> int | None:
    """Where the gap ends that `offset` lies in: nothing was stored under its offsets, or an
    operator has given up what was, so that it is no loss to a job."""
    readable = error.facts.get("readable_offset")
    return readable if isinstance(readable, int) and readable > offset else None


def _check_range(batch: pa.RecordBatch, first_offset: int, next_offset: int) -> None:
    offsets = batch.column("offset")
    inside = offsets[0].as_py() >= first_offset and offsets[-1].as_py() < next_offset
    check("page", inside, "it holds records that were not asked for")


def _get(
    source: Source, offset: int, next_offset: int, wanted: Filter | None
) -> urllib3.BaseHTTPResponse:
    count = min(next_offset - offset, PAGE_RECORD_COUNT_ARROW_MAX)
    query = _query(source, offset, next_offset, count, PAGE_SIZE_MAX)
    if wanted is not None:
        query |= query_of(parameters_of(wanted))
    return ask(source, "records", query, ARROW)


def _query(
    source: Source, offset: int, next_offset: int, count: int, size: int
) -> dict[str, QueryValue]:
    return {
        "offset": str(offset),
        "until_offset": str(next_offset),
        "limit": str(count),
        "max_bytes": str(size),
        "on_out_of_range": "error",
        "expect_stream_id": source.stream_id,
    }
