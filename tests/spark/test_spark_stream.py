"""Streaming queries against a running service: every record once, whatever comes between."""

import itertools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from support.server import AllInOne
from support.spark_session import Streams, spark
from support.waiting import until

from bottomless.client import BottomlessClient
from bottomless.spark.progress import StreamProgress, StreamProgressListener

__all__ = ["spark"]

SMALL = {"fragment": {"target_bytes": 64 * 1024, "max_age_ms": 200}}
"""Everything is in object storage soon."""
TAIL = {"fragment": {"target_bytes": 1024**3, "max_age_ms": 3_600_000}}
SETTINGS = {"BOTTOMLESS_MANIFEST_FANOUT": "4", "BOTTOMLESS_INGEST_LOCAL_KEEP_MS": "500"}

_numbers = itertools.count()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AllInOne]:
    with AllInOne(tmp_path_factory.mktemp("spark-stream") / "data", SETTINGS) as server:
        yield server


@pytest.fixture
def streams(running: AllInOne, spark: SparkSession) -> Iterator[Streams]:
    with BottomlessClient(running.url) as client:
        yield Streams(client, spark, running)


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

    def start(self, *, available_now: bool = True, **options: object) -> StreamingQuery:
        given = {"startingOffsets": "earliest", **options}
        frame = (
            self.streams.spark.readStream.format("bottomless")
            .options(url=self.streams.server.url, stream=self.name)
            .options(**{key: str(value) for key, value in given.items()})
            .load()
        )
        writer = frame.writeStream.foreachBatch(self._note)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        return (writer.trigger(availableNow=True) if available_now else writer).start()

    def run(self, **options: object) -> list[Batch]:
        """Read what is there; the batches of this run."""
        before = len(self.batches)
        query = self.start(**options)
        assert query.awaitTermination(90)
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
    streams.client.wait_until_stored(query.name, timeout_seconds=30)

    first = query.run(maxOffsetsPerTrigger=40)
    assert [batch.offsets for batch in first] == [
        list(range(40)),
        list(range(40, 80)),
        list(range(80, 100)),
    ]

    streams.produce(query.name, 50)
    streams.client.wait_until_stored(query.name, timeout_seconds=30)
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


def test_a_query_that_was_stopped_goes_on_where_it_was(
    streams: Streams, a_query: Callable[..., Query]
) -> None:
    query = a_query(TAIL, 20)
    seen: list[StreamProgress] = []
    listener = StreamProgressListener(seen.append)
    streams.spark.streams.addListener(listener)
    running = query.start(available_now=False)
    try:
        until(lambda: len(query.committed) == 20, 60, "the first records")
        streams.produce(query.name, 30)
        until(lambda: len(query.committed) == 50, 60, "the records that came later")
        until(lambda: any(one.end_offset == 50 for one in seen), 30, "its progress")
    finally:
        running.stop()
        streams.spark.streams.removeListener(listener)
    streams.produce(query.name, 10)
    query.run()

    assert query.committed == list(range(60))
    last = next(one for one in seen if one.end_offset == 50)
    assert (last.stream, last.rows, last.lag, last.absent) == (query.name, 30, 0, 0)
    assert last.stream_id == streams.client.offsets(query.name).stream_id
