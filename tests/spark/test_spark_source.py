"""The data source against running services: every row of a stream, once, as plain reads show it."""

import itertools
import os
import random
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyspark_bottomless
import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.datasource import DataSource
from support.rounds import compact_now
from support.server import AllInOne
from support.spark_session import ALL_COLUMNS, Streams, milliseconds, rows_of

from bottomless.client import Client
from bottomless.spark.read import sum_counts
from bottomless.spark.store import Counts

SMALL = {"fragment": {"target_bytes": 64 * 1024, "max_age_ms": 200}}
"""Everything is in object storage soon."""
TAIL = {"fragment": {"target_bytes": 1024**3, "max_age_ms": 3_600_000}}
"""Nothing is, within a test."""

SEED = int(os.environ.get("BOTTOMLESS_TEST_SEED", "2013"))

pytestmark = pytest.mark.timeout(600)
"""The first test starts Spark, which takes seconds, or minutes on a machine with much to do."""

_numbers = itertools.count()


@pytest.fixture
def streams(spark_server: AllInOne, spark: SparkSession) -> Iterator[Streams]:
    with Client(spark_server.url) as client:
        yield Streams(client, spark, spark_server)


@pytest.fixture
def metrics_dir(tmp_path: Path) -> Path:
    path = tmp_path / "reads"
    path.mkdir()
    return path


def a_name() -> str:
    return f"batch-{next(_numbers)}"


@pytest.fixture(scope="module")
def _names() -> dict[str, str]:
    return {}


@pytest.fixture
def stored(streams: Streams, _names: dict[str, str]) -> str:
    """A stream of several fragments, each of several chunks, all in object storage."""
    if "stored" not in _names:
        name = a_name()
        streams.client.create_stream(name, SMALL)
        streams.produce(name, count=700, requests=8)
        streams.client.wait_until_stored(name, timeout_seconds=240)
        _names["stored"] = name
    return _names["stored"]


@pytest.fixture
def tail(streams: Streams, _names: dict[str, str]) -> str:
    """A stream that is all tail."""
    if "tail" not in _names:
        name = a_name()
        streams.client.create_stream(name, TAIL)
        streams.produce(name, count=300, requests=3)
        assert streams.client.offsets(name).object_store_next_offset == 0
        _names["tail"] = name
    return _names["tail"]


@pytest.mark.parametrize("mode", ["auto", "direct", "reader"])
def test_all_rows_are_those_of_plain_reads(streams: Streams, stored: str, mode: str) -> None:
    assert rows_of(streams.load(stored, mode=mode)) == streams.rows_over_http(stored)


def test_a_leaderless_stream_is_read_as_a_local_one_is(streams: Streams, tmp_path: Path) -> None:
    """L30: from WAL objects alone, and from fragments and WAL objects; with a filter as well."""
    name = a_name()
    config = {"profile": "leaderless", "fragment": {"max_age_ms": 1_800_000}}
    streams.client.create_stream(name, {**config, "filter": {"index": "values"}})
    values = pa.array(["emea", None] * 50, pa.utf8())
    marked = pa.table({"value": pa.array([b"v"] * 100, pa.binary()), "filter_value": values})
    streams.client.append_arrow(name, marked)
    assert rows_of(streams.load(name)) == streams.rows_over_http(name)

    compact_now(streams.server)
    streams.client.wait_until_stored(name, timeout_seconds=240)
    streams.produce(name, count=50)
    assert rows_of(streams.load(name)) == streams.rows_over_http(name)
    assert len(streams.rows_over_http(name)) == 150

    reads = tmp_path / "filtered"
    reads.mkdir()
    filtered = streams.load(
        name, filterValues="nowhere", metricsDir=str(reads), includeTail="false"
    )
    assert filtered.count() == 0
    counts = sum_counts(reads)
    assert (counts.left_out_fragments, counts.object_reads) == (1, 0)
    assert counts.left_out_bytes > 0


@pytest.mark.parametrize("mode", ["direct", "reader"])
def test_the_mode_decides_who_reads(
    streams: Streams, stored: str, mode: str, metrics_dir: Path
) -> None:
    count = streams.load(stored, mode=mode, metricsDir=str(metrics_dir)).count()
    counts = sum_counts(metrics_dir)
    assert counts.record_count == count == 5600
    assert (counts.object_reads > 0) == (mode == "direct")
    assert (counts.page_reads > 0) == (mode == "reader")


def test_a_range_skips_fragments_and_chunks_that_it_does_not_lie_in(
    streams: Streams, stored: str, tmp_path: Path
) -> None:
    def cost(name: str, **options: str | int) -> Counts:
        directory = tmp_path / name
        directory.mkdir()
        frame = streams.load(stored, metricsDir=str(directory), rangeBytes=1, **options)
        frame.count()
        return sum_counts(directory)

    def fragments_in(first: int, end: int) -> int:
        listed = streams.client.fragments(stored, first_offset=first, next_offset=end)
        return len(list(listed))

    everything = cost("everything")
    some = cost("some", startingOffsets=1500, endingOffsets=1510)
    bounds_only = cost("offsets", columns="offset,timestamp")
    # Of each fragment its index, and each of the eight chunks by itself.
    assert everything.object_reads == fragments_in(0, 5600) + 8
    assert (some.object_reads, some.record_count, fragments_in(1500, 1510)) == (2, 10, 1)
    assert some.object_bytes < everything.object_bytes / 4
    assert (bounds_only.object_reads, bounds_only.record_count) == (fragments_in(0, 5600), 5600)
    assert bounds_only.object_bytes < everything.object_bytes / 50


def test_small_partitions_hold_the_same_rows(streams: Streams, stored: str) -> None:
    frame = streams.load(stored, targetPartitionBytes=20_000)
    assert frame.rdd.getNumPartitions() > 10
    assert rows_of(frame) == streams.rows_over_http(stored)


@pytest.mark.parametrize(("first", "end"), [(0, 1), (3, 5), (699, 701), (650, 3001), (5599, 5600)])
def test_ranges_inside_chunks_and_across_them_are_cut_exactly(
    streams: Streams, stored: str, first: int, end: int
) -> None:
    frame = streams.load(stored, startingOffsets=first, endingOffsets=end)
    assert rows_of(frame) == streams.rows_over_http(stored)[first:end]


def test_the_tail_is_read_too(streams: Streams, tail: str) -> None:
    assert rows_of(streams.load(tail)) == streams.rows_over_http(tail)
    assert (
        rows_of(streams.load(tail, startingOffsets=450, endingOffsets=460))
        == (streams.rows_over_http(tail)[450:460])
    )


def test_the_tail_can_be_left_out(streams: Streams, tail: str, stored: str) -> None:
    assert streams.load(tail, includeTail="false").count() == 0
    assert streams.load(stored, includeTail="false").count() == 5600


def test_an_empty_stream_has_no_rows(streams: Streams) -> None:
    name = a_name()
    streams.client.create_stream(name)
    frame = streams.load(name)
    assert frame.columns == ["offset", "timestamp", "value"]
    assert frame.collect() == []


def test_a_frame_is_a_snapshot(streams: Streams) -> None:
    name = a_name()
    streams.client.create_stream(name, SMALL)
    streams.produce(name, count=10)
    frame = streams.load(name)
    assert frame.count() == 10
    streams.produce(name, count=10)
    assert frame.count() == 10
    streams.client.wait_until_stored(name, timeout_seconds=240)
    assert [row.offset for row in frame.orderBy("offset").collect()] == list(range(10))
    assert streams.load(name).count() == 20


def test_every_column_comes_on_request(streams: Streams) -> None:
    name = a_name()
    streams.client.create_stream(name, SMALL)
    streams.client.append(
        name,
        [
            {"json": {"id": 7}, "key": "k", "headers": {"type": "order", "v": "1"}},
            {"value": "text", "filter_value": "emea", "event_time": "2026-08-22T09:19:59.120Z"},
            {"value_base64": "AAEC/w=="},
        ],
    )
    columns = "offset,value,key,headers,event_time,content,filter_value"
    for mode in ("reader", "direct"):
        frame = streams.load(name, columns=columns, mode=mode)
        first, second, third = frame.orderBy("offset").collect()
        assert (bytes(first.value), bytes(first.key), first.content) == (b'{"id":7}', b"k", 2)
        assert {name: bytes(value) for name, value in first.headers.items()} == {
            "type": b"order",
            "v": b"1",
        }
        assert (bytes(second.value), second.content, second.filter_value) == (b"text", 1, "emea")
        assert milliseconds(second.event_time) == 1787390399120
        assert (bytes(third.value), third.content) == (b"\x00\x01\x02\xff", 0)
        assert (third.key, third.headers, third.event_time, third.filter_value) == (None,) * 4
        streams.client.wait_until_stored(name, timeout_seconds=240)


def test_random_records_come_through_spark_as_plain_reads_show_them(streams: Streams) -> None:
    """Half of them in object storage, half in the tail, in appends of any size."""
    print(f"BOTTOMLESS_TEST_SEED={SEED}")
    choice = random.Random(SEED)
    name = a_name()
    streams.client.create_stream(name, SMALL)
    for number in range(12):
        streams.client.append(name, [a_random_record(choice) for _ in range(choice.randint(1, 40))])
        if number == 5:
            streams.client.wait_until_stored(name, timeout_seconds=240)
    wanted = streams.plain_rows(name)
    first = choice.randrange(len(wanted) // 4)
    end = choice.randint(len(wanted) * 3 // 4, len(wanted))
    frame = streams.load(
        name,
        columns=ALL_COLUMNS,
        startingOffsets=first,
        endingOffsets=end,
        targetPartitionBytes=choice.choice([500, 5_000, 1_000_000]),
    )
    assert frame.toArrow().sort_by("offset").to_pylist() == wanted[first:end]


def a_random_record(choice: random.Random) -> dict[str, object]:
    """Any value, also an empty one; each of the rest may be there, be empty, or not be."""
    record: dict[str, object] = {
        "value_base64": b64encode(choice.randbytes(choice.choice([0, 1, 30, 3000]))).decode()
    }
    others: dict[str, object] = {
        "key": choice.choice(["", "k", "schlüssel"]),
        "headers": choice.choice([{}, {"type": ""}, {"type": "order", "v": "1"}]),
        "filter_value": choice.choice(["", "emea"]),
        "event_time": choice.randrange(10**12),
    }
    return record | {name: value for name, value in others.items() if choice.random() < 0.5}


def test_one_frame_serves_filters_and_counts_after_each_other(
    streams: Streams, stored: str
) -> None:
    """A filter that Spark pushed into a data source once stayed for later queries: we take none."""
    frame = streams.load(stored)
    assert frame.where(sql.col("offset") < 10).count() == 10
    assert frame.count() == 5600


def test_a_schema_of_ones_own_names_the_columns(streams: Streams, stored: str) -> None:
    reader = streams.spark.read.format("bottomless").schema("value binary, offset long")
    rows = reader.options(url=streams.server.url, stream=stored).load().orderBy("offset").take(2)
    assert [(row.offset, bytes(row.value)[:3]) for row in rows] == [(0, b"0-0"), (1, b"0-1")]


def test_batches_reach_spark_bounded(streams: Streams, stored: str) -> None:
    def sizes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch({"rows": [batch.num_rows], "bytes": [batch.nbytes]})

    found = streams.load(stored).mapInArrow(sizes, "rows long, bytes long").collect()
    assert sum(row.rows for row in found) == 5600
    assert max(row.bytes for row in found) <= 8 * 1024 * 1024


def test_an_unknown_option_names_the_known_ones(streams: Streams, stored: str) -> None:
    with pytest.raises(AnalysisException, match=r"unknown option startoffset; .*startingOffsets"):
        streams.load(stored, startOffset=7)


def test_an_offset_that_is_not_there_is_an_error(streams: Streams, stored: str) -> None:
    with pytest.raises(AnalysisException, match="endingOffsets lies outside"):
        streams.load(stored, endingOffsets=5601)


def test_a_stream_that_is_not_there_is_an_error(streams: Streams) -> None:
    with pytest.raises(AnalysisException, match="NotFound"):
        streams.load("nobody-made-it")


def test_a_lost_object_fails_direct_and_comes_from_the_reader_in_auto(streams: Streams) -> None:
    name = a_name()
    made = streams.client.create_stream(name, SMALL)
    streams.produce(name, count=20)
    streams.client.wait_until_stored(name, timeout_seconds=240)
    frames = {mode: streams.load(name, mode=mode) for mode in ("direct", "auto")}
    wanted = streams.rows_over_http(name)
    for path in streams.server.objects.rglob(f"{made['stream_id']}/data/*.fragment"):
        path.rename(path.with_suffix(".away"))
    with pytest.raises(PythonException, match="not there"):
        frames["direct"].count()
    # The reader keeps recent blocks in memory, so it still has these.
    assert rows_of(frames["auto"]) == wanted


def test_spark_finds_the_source_without_registration() -> None:
    assert issubclass(pyspark_bottomless.DefaultSource, DataSource)
    assert pyspark_bottomless.DefaultSource.name() == "bottomless"
