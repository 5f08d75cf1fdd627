"""A super stream as one DataFrame, as a batch and as a streaming query, against a running service."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession
from support.server import AllInOne
from support.spark_queries import begun
from support.spark_session import Streams

from bottomless.client import Client

pytestmark = pytest.mark.timeout(600)
SMALL = {"fragment": {"target_bytes": 64 * 1024, "max_age_ms": 200}}
KEYS = [f"hello{number}" for number in range(1, 11)]
COUNTS = {0: 4, 1: 3, 2: 3}
"""How many of these keys each of three partitions gets."""


@pytest.fixture
def streams(spark_server: AllInOne, spark: SparkSession) -> Iterator[Streams]:
    with Client(spark_server.url) as client:
        yield Streams(client, spark, spark_server)


def fill(streams: Streams, name: str, first: int, count: int) -> None:
    numbers = range(first, first + count)
    table = pa.table(
        {"value": [str(n) for n in numbers], "key": [KEYS[n % len(KEYS)] for n in numbers]}
    )
    with streams.client.super_producer(name) as producer:
        producer.send_table(table)


def load(streams: Streams, name: str, **options: str | int) -> DataFrame:
    given = {"url": streams.server.url, "superStream": name, **options}
    return streams.spark.read.format("bottomless").options(**given).load()


def seen(frame: DataFrame) -> list[tuple[int, int, str]]:
    rows = frame.select("partition", "offset", "value").collect()
    return sorted((row.partition, row.offset, bytes(row.value).decode()) for row in rows)


def over_http(client: Client, name: str) -> list[tuple[int | None, int, str]]:
    return sorted(
        (record.partition, record.offset, record.text)
        for batch in client.read_super(name)
        for record in batch.records
    )


def test_all_partitions_are_one_dataframe(streams: Streams) -> None:
    client = streams.client
    client.create_super_stream("super-batch", partitions=3, config=SMALL)
    fill(streams, "super-batch", 0, 500)
    for index in range(3):
        client.wait_until_stored(f"super-batch-{index}", timeout_seconds=240)
    fill(streams, "super-batch", 500, 100)
    frame = load(streams, "super-batch")
    assert frame.columns == ["partition", "offset", "timestamp", "value"]
    assert seen(frame) == over_http(client, "super-batch")
    counts = {
        row["partition"]: row["count"] for row in frame.groupBy("partition").count().collect()
    }
    assert counts == {index: 60 * count for index, count in COUNTS.items()}
    # Neither is anything else than offsets and times read for this.
    light = load(streams, "super-batch", columns="offset,partition")
    assert light.columns == ["offset", "partition"]
    assert light.count() == 600
    since = '{"super-batch-0": 230, "super-batch-1": "next", "super-batch-2": 179}'
    rest = [(row[0], row[1]) for row in seen(load(streams, "super-batch", startingOffsets=since))]
    assert rest == [*((0, offset) for offset in range(230, 240)), (2, 179)]
    with pytest.raises(AnalysisException, match="names each partition"):
        load(streams, "super-batch", startingOffsets='{"super-batch-0": 1}')
    with pytest.raises(AnalysisException, match="stream and superStream"):
        load(streams, "super-batch", stream="super-batch-0")
    given = {"url": streams.server.url, "stream": "super-batch"}
    with pytest.raises(AnalysisException, match="by the option superStream"):
        streams.spark.read.format("bottomless").options(**given).load().count()
    with pytest.raises(PythonException, match=r"writes to a stream.*client\.super_producer"):
        frame.select("value").write.format("bottomless").options(**given).mode("append").save()
    assert client.super_positions("super-batch") == {
        f"super-batch-{index}": 60 * count for index, count in COUNTS.items()
    }


def test_a_query_goes_on_in_each_partition_and_finds_new_ones(
    streams: Streams, tmp_path: Path
) -> None:
    name = "super-query"
    streams.client.create_super_stream(name, partitions=2, config=SMALL)
    got: list[tuple[int, int, str]] = []

    def note(frame: DataFrame, _batch: int) -> None:
        got.extend(seen(frame))

    def run(**options: str | int) -> int:
        given = {"url": streams.server.url, "superStream": name, "startingOffsets": "earliest"}
        frame = streams.spark.readStream.format("bottomless").options(**given, **options).load()
        writer = frame.writeStream.foreachBatch(note).trigger(availableNow=True)
        query = begun(writer.option("checkpointLocation", str(tmp_path / "state")).start, 300)
        assert query.awaitTermination(300)
        return len([one for one in query.recentProgress if one["numInputRows"]])

    fill(streams, name, 0, 100)
    assert run(maxOffsetsPerTrigger=40) > 1
    assert sorted(got) == over_http(streams.client, name)
    streams.client.grow_super_stream(name, partitions=3, accept_rehash=True)
    fill(streams, name, 100, 100)
    run()
    assert {partition for partition, _, _ in got} == {0, 1, 2}
    assert sorted(got) == over_http(streams.client, name)
    run()
    assert len(got) == 200
