"""Streaming queries against a running service: every record once, whatever comes between."""

import itertools
import json
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import PythonException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.streaming.query import StreamingQuery
from support.fault_proxy import running_fault_proxy
from support.rounds import compact_now
from support.same_examples import read_nothing_in_sources
from support.server import AllInOne
from support.spark_queries import begun
from support.spark_session import ALL_COLUMNS, Streams
from support.waiting import until

from bottomless.client import Client
from bottomless.errors import OffsetGone, WrongOffset
from bottomless.model.names import StreamId, StreamName
from bottomless.spark.partitions import SharePartition
from bottomless.spark.positions import began_at, position_of
from bottomless.spark.progress import StreamProgress, StreamProgressListener
from bottomless.spark.read import sum_counts
from bottomless.spark.source import BottomlessSource
from bottomless.spark.stream import BottomlessStreamReader

SMALL = {"fragment": {"target_bytes": 64 * 1024, "max_age_ms": 200}}
"""Everything is in object storage soon."""
TAIL = {"fragment": {"target_bytes": 1024**3, "max_age_ms": 3_600_000}}
BUSY_SECONDS = 300
"""For what takes a second, on a machine with ten times as much to do as it can."""
pytestmark = pytest.mark.timeout(2 * BUSY_SECONDS)

_numbers = itertools.count()

read_nothing_in_sources()


@pytest.fixture
def streams(spark_server: AllInOne, spark: SparkSession) -> Iterator[Streams]:
    with Client(spark_server.url) as client:
        yield Streams(client, spark, spark_server)


class Batch(NamedTuple):
    batch_id: int
    offsets: list[int]


class Query:
    """A streaming query that notes the offsets of its batches, with a checkpoint of its own."""

    def __init__(self, streams: Streams, name: str, checkpoint: Path) -> None:
        self.streams = streams
        self.name = name
        self.checkpoint = checkpoint
        self.batches: list[Batch] = []
        self.fails_at: int | None = None
        """Batch in which the query is killed, after it has noted its rows."""

    def start(self, *, available_now: bool = True, **options: str | int) -> StreamingQuery:
        given = {"url": self.streams.server.url, "startingOffsets": "earliest", **options}
        frame = (
            self.streams.spark.readStream.format("bottomless")
            .option("stream", self.name)
            .options(**{key: str(value) for key, value in given.items()})
            .load()
        )
        writer = frame.writeStream.foreachBatch(self._note)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        begin = (writer.trigger(availableNow=True) if available_now else writer).start
        query: StreamingQuery = begun(begin, BUSY_SECONDS)
        return query

    def run(self, **options: str | int) -> list[Batch]:
        """Read what is there; the batches of this run."""
        before = len(self.batches)
        query = self.start(available_now=True, **options)
        assert query.awaitTermination(BUSY_SECONDS)
        return self.batches[before:]

    def _note(self, frame: DataFrame, batch_id: int) -> None:
        offsets = [row.offset for row in frame.select("offset").collect()]
        self.batches.append(Batch(batch_id, sorted(offsets)))
        if batch_id == self.fails_at:
            raise RuntimeError("killed in the middle of a batch")

    @property
    def committed(self) -> list[int]:
        """All offsets as a sink has them that replaces a batch that comes again."""
        by_id = {batch.batch_id: batch.offsets for batch in self.batches}
        return [offset for number in sorted(by_id) for offset in by_id[number]]


@pytest.fixture
def a_query(streams: Streams, tmp_path: Path) -> Callable[..., Query]:
    def make(config: dict[str, object], count: int) -> Query:
        name = f"stream-{next(_numbers)}"
        streams.client.create_stream(name, config)
        if count:
            streams.produce(name, count)
        return Query(streams, name, tmp_path / name)

    return make


def test_a_growing_stream_is_read_trigger_by_trigger_within_the_limits(
    streams: Streams, a_query: Callable[..., Query]
) -> None:
    query = a_query(SMALL, 100)
    streams.client.wait_until_stored(query.name, timeout_seconds=240)

    first = query.run(maxOffsetsPerTrigger=40)
    assert [batch.offsets for batch in first] == [
        list(range(40)),
        list(range(40, 80)),
        list(range(80, 100)),
    ]

    streams.produce(query.name, 50)
    streams.client.wait_until_stored(query.name, timeout_seconds=240)
    streams.produce(query.name, 50)
    second = query.run(maxBytesPerTrigger=3_000)
    assert len(second) > 1
    assert query.committed == list(range(200))


def test_a_query_that_died_in_a_batch_does_that_batch_again_with_the_same_records(
    streams: Streams, a_query: Callable[..., Query]
) -> None:
    query = a_query(TAIL, 60)
    query.fails_at = 1
    with pytest.raises(StreamingQueryException, match="killed in the middle"):
        query.run(maxOffsetsPerTrigger=25)
    died = query.batches[-1]
    assert died == Batch(1, list(range(25, 50)))

    # More records and other limits do not change what was planned.
    query.fails_at = None
    streams.produce(query.name, 10)
    again = query.run()
    assert again[0] == died
    assert query.committed == list(range(70))


def test_a_query_over_a_leaderless_stream_is_one_over_a_local_stream(
    streams: Streams, a_query: Callable[..., Query]
) -> None:
    """L30: from WAL objects, from fragments, and a batch that was planned before a compaction and is done
    again after it."""
    query = a_query({"profile": "leaderless", "fragment": {"max_age_ms": 1_800_000}}, 60)
    query.fails_at = 1
    with pytest.raises(StreamingQueryException, match="killed in the middle"):
        query.run(maxOffsetsPerTrigger=25)
    died = query.batches[-1]
    assert died == Batch(1, list(range(25, 50)))

    compact_now(streams.server)
    streams.client.wait_until_stored(query.name, timeout_seconds=240)
    query.fails_at = None
    streams.produce(query.name, 10)
    again = query.run()
    assert again[0] == died
    assert query.committed == list(range(70))


def test_a_query_that_was_stopped_goes_on_where_it_was(
    streams: Streams, a_query: Callable[..., Query]
) -> None:
    query = a_query(TAIL, 20)
    seen: list[StreamProgress] = []
    listener = StreamProgressListener(seen.append)
    streams.spark.streams.addListener(listener)
    running = query.start(available_now=False)
    try:
        until(lambda: len(query.committed) == 20, BUSY_SECONDS, "the first records")
        streams.produce(query.name, 30)
        until(lambda: len(query.committed) == 50, BUSY_SECONDS, "the records that came later")
        until(lambda: any(one.end_offset == 50 for one in seen), BUSY_SECONDS, "its progress")
    finally:
        running.stop()
        streams.spark.streams.removeListener(listener)
    streams.produce(query.name, 10)
    query.run()

    assert query.committed == list(range(60))
    first, last = (next(one for one in seen if one.end_offset == end) for end in (20, 50))
    assert (first.start_offset, first.rows, first.absent) == (0, 20, 0)
    assert (last.stream, last.rows, last.lag, last.absent) == (query.name, 30, 0, 0)
    assert last.stream_id == streams.client.offsets(query.name).stream_id


def trim_all(streams: Streams, name: str) -> None:
    """Remove all that a stream holds, also from the clients' sight."""
    streams.client.wait_until_stored(name, timeout_seconds=240)
    end = streams.client.offsets(name).next_offset
    streams.client.trim(name, end, allow_empty=True)
    until(lambda: streams.client.offsets(name).first_offset == end, what="the trim")


def test_records_that_were_trimmed_unread_are_an_error_or_are_left_out(
    streams: Streams, a_query: Callable[..., Query]
) -> None:
    query = a_query(SMALL, 20)
    query.run()
    streams.produce(query.name, 20)
    trim_all(streams, query.name)
    streams.produce(query.name, 10)
    with pytest.raises(StreamingQueryException, match=r"data lost.*first_offset=20 next_offset=40"):
        query.run()
    assert query.committed == list(range(20))

    query.run(failOnDataLoss="false")
    assert query.committed == [*range(20), *range(40, 50)]


def test_a_stream_that_was_made_anew_is_not_taken_for_the_one_that_was_read(
    streams: Streams, a_query: Callable[..., Query]
) -> None:
    query = a_query(TAIL, 20)
    old = streams.client.offsets(query.name).stream_id
    query.run()
    streams.client.delete_stream(query.name)
    streams.client.create_stream(query.name, TAIL)
    streams.produce(query.name, 50)
    new = streams.client.offsets(query.name).stream_id
    with pytest.raises(StreamingQueryException) as caught:
        query.run()
    assert f"expected_stream_id={old} stream_id={new}" in str(caught.value)
    assert query.committed == list(range(20))


def test_an_idle_query_asks_seldom(streams: Streams, a_query: Callable[..., Query]) -> None:
    query = a_query(TAIL, 5)
    with running_fault_proxy(streams.server.url) as proxy:
        running = query.start(available_now=False, url=proxy.endpoint)
        try:
            until(lambda: len(query.committed) == 5, BUSY_SECONDS, "the first records")
            asked, began = proxy.request_count, time.monotonic()
            until(lambda: proxy.request_count >= asked + 6, BUSY_SECONDS, "six more requests")
            # Spark itself asks the source some 80 times a second.
            assert time.monotonic() - began > 6 * 0.25 - 0.5
        finally:
            running.stop()


def test_a_trim_during_a_job_takes_nothing_that_the_job_has_planned(
    streams: Streams, a_query: Callable[..., Query], tmp_path: Path
) -> None:
    """A job is planned, its stream is trimmed, and then its tasks start."""
    held, bare, patient = (a_query(SMALL, 100).name for _ in range(3))
    for name in (held, bare, patient):
        streams.client.wait_until_stored(name, timeout_seconds=240)
    frames = {
        held: streams.load(held, mode="direct"),
        bare: streams.load(bare, leaseSeconds=0),
        patient: streams.load(
            patient, leaseSeconds=0, failOnDataLoss="false", metricsDir=str(tmp_path)
        ),
    }
    for name, frame in frames.items():
        assert frame.rdd.getNumPartitions() == 1
        trim_all(streams, name)
    for name in (bare, patient):
        stream_id = streams.client.offsets(name).stream_id
        until(lambda: not objects_of(streams, stream_id), what="the objects to go")  # noqa: B023

    assert [row.offset for row in frames[held].orderBy("offset").collect()] == list(range(100))
    with pytest.raises(PythonException, match=r"data lost.*first_offset=0 next_offset=100"):
        frames[bare].collect()
    assert frames[patient].collect() == []
    assert sum_counts(tmp_path).lost_offsets == 100


def objects_of(streams: Streams, stream_id: str) -> list[Path]:
    return list(streams.server.objects.rglob(f"{stream_id}/data/*.fragment"))


records = st.fixed_dictionaries(
    {"value_base64": st.binary(max_size=60).map(lambda data: b64encode(data).decode())},
    optional={
        "key": st.text("abc", max_size=4),
        "headers": st.dictionaries(st.sampled_from(["type", "v"]), st.text("xyz", max_size=3)),
        "filter_value": st.sampled_from(["emea", "apac", ""]),
        "event_time": st.integers(0, 10**12),
    },
)
appends = st.lists(st.lists(records, min_size=1, max_size=30), min_size=1, max_size=4)


@given(
    appended=appends,
    stored_count=st.integers(0, 4),
    bounds=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    index=st.sampled_from(["none", "values"]),
    options=st.fixed_dictionaries(
        {"mode": st.sampled_from(["auto", "direct", "reader"])},
        optional={
            "targetPartitionBytes": st.integers(50, 2000),
            "minPartitions": st.integers(1, 4),
            "rangeBytes": st.sampled_from([1, 500]),
            "prefetch": st.integers(0, 3),
            "filterValues": st.sampled_from(["emea", '["", "apac"]']),
        },
    ),
    limits=st.fixed_dictionaries(
        {},
        optional={
            "maxOffsetsPerTrigger": st.integers(5, 40),
            "maxBytesPerTrigger": st.integers(200, 3000),
            "maxFragmentsPerTrigger": st.integers(1, 3),
        },
    ),
)
@settings(
    max_examples=12,
    deadline=None,
    # The same in every run, as of all properties: no verdict is a matter of luck.
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_any_range_of_any_stream_is_what_plain_reads_show(
    streams: Streams,
    appended: list[list[dict[str, object]]],
    stored_count: int,
    bounds: tuple[float, float],
    index: str,
    options: dict[str, object],
    limits: dict[str, object],
) -> None:
    """Through the data source alone: starting a job of Spark for each would take too long."""
    name = f"stream-{next(_numbers)}"
    streams.client.create_stream(name, {**SMALL, "filter": {"index": index}})
    for number, batch in enumerate(appended):
        if number == stored_count:
            streams.client.wait_until_stored(name, timeout_seconds=240)
        streams.client.append(name, batch)
    end = sum(map(len, appended))
    rows = streams.plain_rows(name)
    assert [row["offset"] for row in rows] == list(range(end))
    if "filterValues" in options:
        values = {"emea"} if options["filterValues"] == "emea" else {"", "apac"}
        rows = [row for row in rows if row["filter_value"] in values]
    first, stop = sorted(round(part * end) for part in bounds)

    given = {"url": streams.server.url, "stream": name, "columns": ALL_COLUMNS, **options}
    ranged = {**given, "startingOffsets": first, "endingOffsets": stop}
    assert batch_rows(ranged) == [row for row in rows if first <= row["offset"] < stop]
    assert streamed_rows({**given, **limits, "startingOffsets": first}) == [
        row for row in rows if first <= row["offset"]
    ]


def test_a_new_query_begins_at_the_end_as_it_was_when_it_first_asked(streams: Streams) -> None:
    name = f"stream-{next(_numbers)}"
    streams.client.create_stream(name, SMALL)
    streams.produce(name, 10)
    reader = stream_reader({"url": streams.server.url, "stream": name})
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadAllAvailable()) is start
    streams.produce(name, 5)
    # Spark asks again until a first batch is done.
    assert reader.initialOffset() == start
    end = until(lambda: news(reader, start), what="the new records")
    streams.client.wait_until_stored(name, timeout_seconds=240)
    (share,) = reader.partitions(start, end)
    assert [row["offset"] for row in rows_in(reader.read(share))] == list(range(10, 15))
    assert isinstance(share, SharePartition)
    assert share.lease is not None
    assert reader.reportLatestOffset() == began_at(end, 10)
    reader.stop()


def news(reader: BottomlessStreamReader, start: dict[str, Any]) -> dict[str, Any] | None:
    end = reader.latestOffset(start, ReadAllAvailable())
    return None if end == start else end


def test_without_the_tail_a_query_takes_what_is_in_object_storage(streams: Streams) -> None:
    name = f"stream-{next(_numbers)}"
    streams.client.create_stream(name, TAIL)
    streams.produce(name, 10)
    options: dict[str, object] = {"url": streams.server.url, "stream": name, "includeTail": "false"}
    assert streamed_rows({**options, "startingOffsets": "earliest"}) == []
    assert len(streamed_rows({**options, "startingOffsets": 0, "includeTail": "true"})) == 10


def test_positions_mean_what_they_say(streams: Streams) -> None:
    name = f"stream-{next(_numbers)}"
    stream_id = streams.client.create_stream(name, SMALL)["stream_id"]
    for _ in range(2):
        streams.produce(name, 10)
        last = streams.plain_rows(name)[-1]["timestamp"].timestamp()
        until(lambda: time.time() > last + 0.002, what="the next millisecond")  # noqa: B023
    second = streams.plain_rows(name)[10]["timestamp"]
    in_ms = round(second.timestamp() * 1000)

    def offsets(**options: str | int) -> range:
        found = [row["offset"] for row in batch_rows({**here, **options})]
        assert found == list(range(found[0], found[0] + len(found))) if found else True
        return range(found[0], found[-1] + 1) if found else range(0)

    here: dict[str, object] = {"url": streams.server.url, "stream": name}
    assert offsets(startingOffsets="earliest", endingOffsets="latest") == range(20)
    assert offsets(startingOffsets="latest") == range(0)
    assert offsets(startingOffsets=-5) == range(15, 20)
    assert offsets(endingOffsets=-5) == range(15)
    assert offsets(startingOffsets=-500) == range(20)
    assert offsets(startingOffsets="-1h") == range(20)
    assert offsets(endingOffsets="-1h") == range(0)
    assert offsets(startingTimestamp=second.isoformat()) == range(10, 20)
    assert offsets(endingTimestamp=in_ms) == range(10)
    assert offsets(startingTimestamp="2999-01-01T00:00:00Z") == range(0)
    assert offsets(startingOffsets=f'{{"{name}": 3}}', endingOffsets=7) == range(3, 7)

    def pinned(stream_id: str) -> str:
        return json.dumps(position_of(3, StreamName(name), StreamId(stream_id)))

    assert offsets(startingOffsets=pinned(stream_id)) == range(3, 20)
    other = "0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11"
    with pytest.raises(WrongOffset, match=f"expected_stream_id={other} stream_id={stream_id}"):
        offsets(startingOffsets=pinned(other))

    trim_all(streams, name)
    with pytest.raises(OffsetGone, match="startingOffsets lies outside"):
        offsets(startingOffsets=3)
    streams.produce(name, 5)
    assert offsets(startingOffsets=3, failOnDataLoss="false") == range(20, 25)


def batch_rows(options: dict[str, object]) -> list[dict[str, Any]]:
    source = BottomlessSource({name: str(value) for name, value in options.items()})
    schema = source.schema()
    reader = source.reader(schema)
    return [row for one in reader.partitions() for row in rows_in(reader.read(one))]


def streamed_rows(options: dict[str, object]) -> list[dict[str, Any]]:
    """What a query with availableNow brings, driven as Spark drives the source."""
    reader = stream_reader(options)
    rows: list[dict[str, Any]] = []
    try:
        start = reader.initialOffset()
        reader.prepareForTriggerAvailableNow()
        while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
            for one in reader.partitions(start, end):
                rows += rows_in(reader.read(one))
            start = end
    finally:
        reader.stop()
    return rows


def stream_reader(options: dict[str, object]) -> BottomlessStreamReader:
    source = BottomlessSource({name: str(value) for name, value in options.items()})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, BottomlessStreamReader)
    return reader


def rows_in(batches: Iterable[object]) -> list[dict[str, Any]]:
    rows = []
    for batch in batches:
        assert isinstance(batch, pa.RecordBatch)
        rows += batch.to_pylist()
    return rows
