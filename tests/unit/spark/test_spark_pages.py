"""Pages of the reader, also where some of what was asked for is not there (any more)."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs, urlsplit

import orjson
import pyarrow as pa
import pytest

from bottomless.errors import NotFound, OffsetGone
from bottomless.model.filter import Filter
from bottomless.model.names import StreamId, StreamName
from bottomless.spark.losses import Losses
from bottomless.spark.pages import read_pages, record_size_at
from bottomless.spark.rows import RowShape
from bottomless.spark.service import Source
from bottomless.spark.store import Counts

SCHEMA = pa.schema([pa.field("offset", pa.int64())]).append(pa.field("value", pa.binary()))


class Reader(HTTPServer):
    """A stream of the offsets from `floor` to `end`, without those of `gap`, by pages of three."""

    floor, end, gap = 0, 10, range(0)

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: dict[str, list[str]] = {}
        """The parameters of the last request."""

    @property
    def source(self) -> Source:
        stream_id = StreamId("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11")
        return Source(f"http://127.0.0.1:{self.server_port}", StreamName("orders"), stream_id)

    def page(self, offset: int, until: int) -> tuple[int, bytes, int]:
        facts: dict[str, object] = {"first_offset": self.floor, "code": "offset-trimmed"}
        if offset < self.floor:
            return 410, orjson.dumps(facts), 0
        if offset in self.gap[1:]:
            return 410, orjson.dumps(facts | {"readable_offset": self.gap.stop}), 0
        there = [n for n in range(offset, min(until, self.end)) if n not in self.gap][:3]
        rows = pa.record_batch({"offset": there, "value": [b"x" * 10] * len(there)}, schema=SCHEMA)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, SCHEMA) as writer:
            writer.write_batch(rows)
        return 200, sink.getvalue().to_pybytes(), there[-1] + 1 if there else min(until, self.end)


class _Handler(BaseHTTPRequestHandler):
    server: Reader

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        self.server.asked = query
        answer = self.server.page(int(query["offset"][0]), int(query["until_offset"][0]))
        status, data, following = answer
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Page-Next-Offset", str(following))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def reader() -> Iterator[Reader]:
    with Reader() as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def read(reader: Reader, first: int, end: int, losses: Losses | None = None) -> list[int]:
    losses = losses or Losses(fail=True)
    pages = read_pages(reader.source, first, end, RowShape(SCHEMA), Counts(), losses)
    return [row["offset"] for page in pages for row in page.to_pylist()]


def test_pages_are_read_one_after_the_other(reader: Reader) -> None:
    assert read(reader, 1, 9) == list(range(1, 9))


def test_a_filter_goes_along_and_has_the_last_word(reader: Reader) -> None:
    wanted = Filter(("emea", ""), match_unfiltered=True, keys=(b"\xff",))
    shape = RowShape(SCHEMA, wanted)
    pages = read_pages(reader.source, 1, 9, shape, Counts(), Losses(fail=True))
    # The server here knows nothing of filters: none of what it sends has the key.
    assert [row for page in pages for row in page.to_pylist()] == []
    assert reader.asked["filter"] == ["emea", ""]
    assert reader.asked["match_unfiltered"] == ["true"]
    assert reader.asked["key_base64"] == ["/w=="]


def test_what_was_trimmed_is_an_error_with_its_offsets(reader: Reader) -> None:
    reader.floor = 4
    with pytest.raises(OffsetGone, match=r"data lost.*first_offset=1 next_offset=4"):
        read(reader, 1, 9)


def test_what_was_trimmed_can_be_left_out_and_is_counted(reader: Reader) -> None:
    reader.floor = 4
    counts = Counts()
    assert read(reader, 1, 9, Losses(fail=False, counts=counts)) == list(range(4, 9))
    assert counts.lost_offsets == 3
    assert read(reader, 1, 3, Losses(fail=False, counts=counts)) == []
    assert counts.lost_offsets == 5


@pytest.mark.parametrize("first", [1, 3, 4, 5])
def test_a_gap_is_no_loss_wherever_a_range_begins(reader: Reader, first: int) -> None:
    reader.gap = range(3, 6)
    assert read(reader, first, 9) == [n for n in range(first, 9) if n not in reader.gap]
    assert read(reader, first, 5) == [n for n in range(first, 5) if n not in reader.gap]


def test_a_stream_that_ends_before_the_range_is_an_error(reader: Reader) -> None:
    with pytest.raises(NotFound, match="ends before"):
        read(reader, 8, 12)


def test_a_sample_says_what_records_cost(reader: Reader) -> None:
    assert record_size_at(reader.source, 0, 10) > 10
    reader.gap = range(3, 6)
    assert record_size_at(reader.source, 4, 10) > 10
    assert record_size_at(reader.source, 4, 5) == 0
