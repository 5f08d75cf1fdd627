"""The sink against a running service: every row becomes one record, whatever is run again.

Streams of both profiles take part, where the profile can make a difference.
"""

import itertools
import json
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType
from support.server import AllInOne
from support.spark_session import Streams, milliseconds

from bottomless.client import Client
from bottomless.spark.sink import BottomlessStreamWriter
from bottomless.spark.sink_options import parse_sink_options
from bottomless.spark.source import BottomlessSource

BUSY_SECONDS = 300
"""For what takes a second, on a machine with ten times as much to do as it can."""
pytestmark = pytest.mark.timeout(2 * BUSY_SECONDS)

_numbers = itertools.count()


@pytest.fixture
def streams(spark_server: AllInOne, spark: SparkSession) -> Iterator[Streams]:
    with Client(spark_server.url) as client:
        yield Streams(client, spark, spark_server)


def a_stream(streams: Streams, profile: str) -> str:
    made = f"sink-{next(_numbers)}"
    streams.client.create_stream(made, {"profile": profile})
    return made


@pytest.fixture(params=["local", "leaderless"])
def name(streams: Streams, request: pytest.FixtureRequest) -> str:
    """An empty stream of either profile."""
    return a_stream(streams, request.param)


def write(
    streams: Streams, frame: DataFrame, name: str, mode: str = "append", **options: str
) -> None:
    given = {"url": streams.server.url, "stream": name, **options}
    frame.write.format("bottomless").options(**given).mode(mode).save()


def numbered(streams: Streams, count: int, partitions: int) -> DataFrame:
    frame = streams.spark.range(0, count, 1, partitions)
    return frame.select(sql.col("id").cast("string").alias("value"))


def values(streams: Streams, name: str) -> list[bytes]:
    return [value for _, _, value in streams.rows_over_http(name)]


def producers(streams: Streams, name: str) -> list[dict[str, Any]]:
    with streams.server.client() as client:
        items: list[dict[str, Any]] = client.get(f"/v1/streams/{name}/producers").json()["items"]
    return items


def test_every_column_is_written_and_read_back(streams: Streams, name: str) -> None:
    frame = streams.spark.sql(
        """SELECT * FROM VALUES
        ('héllo', CAST('k' AS BINARY), map('type', 'order'),
         TIMESTAMP '2026-08-22 09:19:59.120456', 'emea'),
        ('', NULL, NULL, NULL, NULL)
        AS t(value, key, headers, event_time, filter_value)"""
    ).coalesce(1)
    write(streams, frame, name)

    columns = "offset,value,key,headers,event_time,content,filter_value"
    first, second = streams.load(name, columns=columns).orderBy("offset").collect()
    assert (bytes(first.value), bytes(first.key), first.content) == ("héllo".encode(), b"k", 1)
    assert {key: bytes(value) for key, value in first.headers.items()} == {"type": b"order"}
    assert milliseconds(first.event_time) == 1787390399120
    assert first.filter_value == "emea"
    assert (bytes(second.value), second.content) == (b"", 1)
    assert (second.key, second.headers, second.event_time, second.filter_value) == (None,) * 4


def test_rows_of_many_tasks_become_one_append_in_the_order_of_partitions(
    streams: Streams, name: str
) -> None:
    write(streams, numbered(streams, 1000, partitions=4), name)
    assert values(streams, name) == [b"%d" % number for number in range(1000)]
    timestamps = {timestamp for _, timestamp, _ in streams.rows_over_http(name)}
    assert len(timestamps) == 1


def test_a_second_run_with_the_same_txn_id_writes_nothing(streams: Streams, name: str) -> None:
    write(streams, numbered(streams, 100, partitions=2), name, txnId="2026-08-22")
    write(streams, numbered(streams, 100, partitions=3), name, txnId="2026-08-22")
    assert len(values(streams, name)) == 100
    write(streams, numbered(streams, 100, partitions=1), name, txnId="2026-08-23")
    write(streams, numbered(streams, 100, partitions=1), name)
    write(streams, numbered(streams, 100, partitions=1), name)
    assert len(values(streams, name)) == 400


def test_no_rows_make_no_request(streams: Streams, name: str) -> None:
    write(streams, numbered(streams, 100, 2).where("value = 'none'"), name, txnId="empty")
    assert (values(streams, name), producers(streams, name)) == ([], [])


def test_a_batch_above_the_bound_is_written_in_parts_under_one_number(
    streams: Streams, name: str
) -> None:
    """Each of three tasks stages more than one append may have."""
    frame = streams.spark.range(0, 6000, 1, 3).select(
        sql.concat(sql.col("id").cast("string"), sql.lit(" " + "x" * 200)).alias("value")
    )
    for _ in range(2):
        write(streams, frame, name, txnAppId="load", txnId="large")
    assert [value.split()[0] for value in values(streams, name)] == [
        b"%d" % number for number in range(6000)
    ]
    [producer] = producers(streams, name)
    assert (producer["producer_id"], producer["last_seq"]) == ("load.large", 0)


def test_a_stream_with_replicas_takes_such_a_batch_too(streams: Streams) -> None:
    """What the tasks stage, and the plan of the parts, is in the object store."""
    name = f"sink-{next(_numbers)}"
    streams.client.create_stream(name, {"replication": {"replicas": 3, "min_in_sync": 1}})
    test_a_batch_above_the_bound_is_written_in_parts_under_one_number(streams, name)


@pytest.mark.parametrize(
    ("select", "mode", "options", "sentence"),
    [
        ("value", "overwrite", {}, "use mode append"),
        ("value AS v", "append", {}, "the column value is missing"),
        ("value, 1 AS offset", "append", {}, "offset int is no column of a record; leave out"),
        ("CAST(value AS INT) AS value", "append", {}, "value int is no column"),
        ("value", "append", {"txnid": "a b"}, "the option txnId"),
        ("value", "append", {"batch": "7"}, "unknown option batch"),
        ("nullif(value, '3') AS value", "append", {}, "a row has no value"),
    ],
)
def test_what_is_no_record_is_refused_and_nothing_is_written(
    streams: Streams, select: str, mode: str, options: dict[str, str], sentence: str
) -> None:
    name = a_stream(streams, "local")
    frame = numbered(streams, 10, 1).selectExpr(*select.split(", ", 1 if "(" not in select else 0))
    with pytest.raises((AnalysisException, PythonException), match=sentence):
        write(streams, frame, name, mode, **options)
    assert values(streams, name) == []


class Query:
    """A query from files of text into a stream, which is run until all files are read."""

    def __init__(self, streams: Streams, name: str, directory: Path) -> None:
        self._streams = streams
        self._name = name
        self._directory = directory
        self.written: list[bytes] = []
        (directory / "in").mkdir()

    def add_files(self, count: int) -> None:
        for _ in range(count):
            lines = [f"{len(self.written) + index}" for index in range(10)]
            self.written += [line.encode() for line in lines]
            path = self._directory / "in" / f"{len(self.written):06d}.txt"
            draft = path.with_name(f".{path.name}")
            draft.write_text("\n".join(lines) + "\n")
            draft.rename(path)

    def run(
        self, source: str = "bottomless", *, partitions: int = 1, checkpoint: str = "checkpoint"
    ) -> None:
        reader = self._streams.spark.readStream.format("text").option("maxFilesPerTrigger", 1)
        query = (
            reader.load(str(self._directory / "in"))
            .repartition(partitions)
            .writeStream.format(source)
            .option("checkpointLocation", str(self._directory / checkpoint))
            .options(url=self._streams.server.url, stream=self._name, txnAppId="copy")
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(BUSY_SECONDS)
        error = query.exception()
        if error is not None:
            raise error

    @property
    def found(self) -> list[bytes]:
        return sorted(values(self._streams, self._name), key=int)


@pytest.fixture
def query(streams: Streams, name: str, tmp_path: Path) -> Query:
    return Query(streams, name, tmp_path)


def register_failing(
    spark: SparkSession, flag: Path, when: Literal["before", "after"], *, doubling: bool = False
) -> str:
    """A sink that dies once in the commit of batch 1, where its append is not known to Spark."""
    source = f"failing-{uuid.uuid4().hex}"

    # Within a function, so that workers get them by value: they do not have this module.
    class Failing(BottomlessStreamWriter):
        def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803
            dies = batchId == 1 and not flag.exists()
            if not dies or when == "after":
                super().commit(messages, batchId)
            if dies:
                flag.touch()
                raise RuntimeError("the driver dies here")

        def producer_of(self, query_id: str) -> str:
            known = super().producer_of(query_id)
            # What the sink would be without its number: every commit is a new one.
            return f"{known}-{uuid.uuid4().hex}" if doubling else known

    class FailingSource(BottomlessSource):
        @classmethod
        def name(cls) -> str:
            return source

        def streamWriter(self, schema: StructType, overwrite: bool) -> Failing:  # noqa: N802
            options = parse_sink_options(self.options, streaming=True)
            return Failing(options, schema, overwrite=overwrite)

    spark.dataSource.register(FailingSource)
    return source


def test_a_query_writes_each_row_once_over_restarts(query: Query) -> None:
    query.add_files(2)
    query.run()
    query.add_files(1)
    query.run(partitions=2)
    query.run()
    assert query.found == query.written


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_batch_that_died_around_its_commit_is_written_once_when_it_is_cut_otherwise(
    query: Query, streams: Streams, tmp_path: Path, when: Literal["before", "after"]
) -> None:
    source = register_failing(streams.spark, tmp_path / "flag", when)
    query.add_files(3)
    with pytest.raises(StreamingQueryException, match="the driver dies here"):
        query.run(source, partitions=2)
    assert len(query.found) == (10 if when == "before" else 20)

    query.run(source, partitions=3)
    assert query.found == query.written


def test_without_the_idempotent_commit_the_same_death_writes_twice(
    query: Query, streams: Streams, tmp_path: Path
) -> None:
    """What the test above would not see is no test: here its guard is gone."""
    source = register_failing(streams.spark, tmp_path / "flag", "after", doubling=True)
    query.add_files(3)
    with pytest.raises(StreamingQueryException, match="the driver dies here"):
        query.run(source)
    query.run(source)
    assert len(query.found) == len(query.written) + 10


def test_a_checkpoint_that_was_removed_fails_the_query_and_writes_nothing(query: Query) -> None:
    query.add_files(1)
    query.run()
    with pytest.raises(StreamingQueryException, match="another checkpoint has written"):
        query.run(checkpoint="another")
    assert query.found == query.written


def test_the_producer_of_a_query_is_its_app_id_and_the_id_in_its_checkpoint(
    query: Query, streams: Streams, name: str, tmp_path: Path
) -> None:
    query.add_files(2)
    query.run()
    query_id = json.loads((tmp_path / "checkpoint" / "metadata").read_text())["id"]
    [producer] = producers(streams, name)
    assert producer["producer_id"] == f"copy.{query_id}"
    assert (producer["mode"], producer["last_seq"]) == ("txn", 2**20)
