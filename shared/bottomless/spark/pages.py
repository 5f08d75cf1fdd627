"""Read a range of offsets through the reader service, page by page, as Arrow.

For the tail, which no object holds yet, and for what a worker cannot read by itself.
The reader serves both tiers, so a range that moves to object storage meanwhile is still
read whole.
"""

from collections.abc import Iterator
from functools import cache
from typing import Final, NamedTuple
from urllib.parse import quote

import orjson
import pyarrow as pa
import urllib3

from bottomless.client.problems import error_from_problem
from bottomless.errors import Code, NotFound, Unavailable
from bottomless.formats.checks import check
from bottomless.model.limits import PAGE_RECORD_COUNT_ARROW_MAX, PAGE_SIZE_MAX
from bottomless.model.names import StreamId, StreamName
from bottomless.spark.rows import RowShape
from bottomless.spark.store import Counts

ARROW: Final = "application/vnd.apache.arrow.stream"
_REQUEST_COUNT_MAX: Final = 6
"""Attempts of one page: with the waits between them some six seconds, enough for a restart."""


class Source(NamedTuple):
    """Which stream, and where it is asked for."""

    url: str
    name: StreamName
    stream_id: StreamId


def read_pages(
    source: Source, first_offset: int, next_offset: int, shape: RowShape, counts: Counts
) -> Iterator[pa.RecordBatch]:
    """Every record from `first_offset` to `next_offset`, exclusive, in order.

    Raises:
        NotFound: `data-missing`, the stream ends before `next_offset`.
        WrongOffset: `stream-replaced`, another stream has taken the name.
        StoreError: as the reader answers.
    """
    offset = first_offset
    while offset < next_offset:
        answer = _get(source, offset, next_offset)
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


def _check_range(batch: pa.RecordBatch, first_offset: int, next_offset: int) -> None:
    offsets = batch.column("offset")
    inside = offsets[0].as_py() >= first_offset and offsets[-1].as_py() < next_offset
    check("page", inside, "it holds records that were not asked for")


def _get(source: Source, offset: int, next_offset: int) -> urllib3.BaseHTTPResponse:
    url = f"{source.url}/v1/streams/{quote(source.name, safe='')}/records"
    query = {
        "offset": str(offset),
        "until_offset": str(next_offset),
        "limit": str(min(next_offset - offset, PAGE_RECORD_COUNT_ARROW_MAX)),
        "max_bytes": str(PAGE_SIZE_MAX),
        "on_out_of_range": "error",
        "expect_stream_id": source.stream_id,
    }
    try:
        answer = _pool().request("GET", url, fields=query, headers={"Accept": ARROW})
    except urllib3.exceptions.HTTPError as error:
        raise Unavailable("the reader does not answer") from error
    if answer.status != 200:
        raise error_from_problem(answer.status, _json_or_none(answer.data))
    return answer


@cache
def _pool() -> urllib3.PoolManager:
    # One a worker process: Spark uses workers again for later tasks.
    retries = urllib3.Retry(
        total=_REQUEST_COUNT_MAX - 1,
        backoff_factor=0.2,
        status_forcelist=(429, 503, 504),
        raise_on_status=False,
        redirect=False,
    )
    return urllib3.PoolManager(retries=retries, timeout=urllib3.Timeout(connect=5, read=60))


def _json_or_none(data: bytes) -> object:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
