"""One SparkSession for all tests, since it takes seconds to start and a process can have only one; and
one server for those of a file."""

import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from bottomless.client import Client
from bottomless.spark import configure, register
from support.server import AllInOne

ALL_COLUMNS = "offset,timestamp,value,key,headers,event_time,content,filter_value"

LAUNCHER_OPTIONS = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
    # Thousands of Spark's classes are checked for faults that a compiler does not make.
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""Of every Java that a test starts: each lives for seconds, in which a compiler and a collector
for long runs cost as much again and gain nothing."""
# Else all is collected at each of the sizes that it grows through on its way here.
JAVA_OPTIONS = f"{LAUNCHER_OPTIONS} -XX:MetaspaceSize=256m -Xms256m"
"""Of those that run Spark."""
QUICK = {
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.executor.extraJavaOptions": JAVA_OPTIONS,
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local session with two workers that knows the data source."""
    with warnings.catch_warnings():
        # Py4J and PySpark leave sockets and pipes of the JVM's start to the collector.
        warnings.simplefilter("ignore", ResourceWarning)
        builder = configure(SparkSession.builder, master="local[2]")
        for name, value in QUICK.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        register(session)
    yield session
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        session.stop()


SETTINGS = {
    # Small enough that a handful of fragments makes groups, and local files go within a test.
    "BOTTOMLESS_MANIFEST_FANOUT": "4",
    "BOTTOMLESS_INGEST_LOCAL_KEEP_MS": "500",
    # What is trimmed goes at once, unless somebody holds it.
    "BOTTOMLESS_MANIFEST_DELETE_GRACE_MS": "0",
    "BOTTOMLESS_MANIFEST_DELETE_INTERVAL_MS": "50",
    # A batch of a test can be larger than one append.
    "BOTTOMLESS_INGEST_GROUP_BYTES_MAX": "262144",
}


@pytest.fixture(scope="module")
def spark_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AllInOne]:
    """One server for the tests of a file, each of which has a stream of its own. It ends with them:
    one that looks every 50 ms for what to delete has no idle moment until its worker ends."""
    with AllInOne(tmp_path_factory.mktemp("spark") / "data", SETTINGS) as server:
        yield server


@contextmanager
def worker_environment(spark: SparkSession, variables: Mapping[str, str]) -> Iterator[None]:
    """Frames that are loaded within are read by workers that have these variables set.

    Spark keeps workers apart by their environment, so these are processes of their own.
    """
    before = dict(spark.sparkContext.environment)
    spark.sparkContext.environment.update(variables)
    register(spark)
    try:
        yield
    finally:
        spark.sparkContext.environment.clear()
        spark.sparkContext.environment.update(before)
        register(spark)


def rows_of(frame: DataFrame) -> list[tuple[int, int, bytes]]:
    """Offset, time in ms and value of every row."""
    # Sorted here: Spark would read all of it once more to find out how to.
    rows = frame.select("offset", "timestamp", "value").collect()
    return sorted((row.offset, milliseconds(row.timestamp), bytes(row.value)) for row in rows)


def milliseconds(moment: datetime) -> int:
    """Of a time as PySpark shows it: without a zone, in that of this machine."""
    return round(moment.astimezone(UTC).timestamp() * 1000)


class Streams(NamedTuple):
    """Looks at the streams of one server, over HTTP and as DataFrames."""

    client: Client
    spark: SparkSession
    server: AllInOne

    def load(self, name: str, **options: str | int) -> DataFrame:
        given: dict[str, str | int] = {"url": self.server.url, "stream": name, **options}
        return self.spark.read.format("bottomless").options(**given).load()

    def produce(self, name: str, count: int, requests: int = 1) -> list[bytes]:
        """Append `count` numbered values a request; returns all of them."""
        produced: list[bytes] = []
        for number in range(requests):
            values = [b"%d-%d" % (number, index) + b"x" * (index % 200) for index in range(count)]
            self.client.append_arrow(name, pa.table({"value": pa.array(values, pa.binary())}))
            produced += values
        return produced

    def rows_over_http(self, name: str) -> list[tuple[int, int, bytes]]:
        """Offset, time in ms and value of every record, as plain reads show them."""
        rows: list[tuple[int, int, bytes]] = []
        while True:
            page = self.client.read_arrow(name, len(rows), limit=1000)
            if page.table.num_rows == 0:
                return rows
            columns = page.table.select(["offset", "timestamp", "value"])
            rows += [
                (row["offset"], round(row["timestamp"].timestamp() * 1000), row["value"])
                for row in columns.to_pylist()
            ]

    def plain_rows(self, name: str) -> list[dict[str, Any]]:
        """All columns of every record as plain reads show them, null where one is not stored."""
        rows: list[dict[str, Any]] = []
        for page in self.client.arrow_pages(name, 0):
            rows += page.table.to_pylist()
        nothing = dict.fromkeys(ALL_COLUMNS.split(",")) | {"content": 0}
        return [nothing | row for row in rows]


def options(streams: Streams, name: str, **more: str) -> dict[str, str]:
    """The options of a job over a stream."""
    return {"url": streams.server.url, "stream": name, **more}


def after_planning(patch: pytest.MonkeyPatch, job: str, happens: Any) -> None:
    """Let something happen when a job has planned its tasks, and none has begun."""
    module = sys.modules[f"bottomless.spark.jobs.{job}"]
    inner = module.run_in_workers

    def late(*given: Any) -> Any:
        happens()
        return inner(*given)

    patch.setattr(module, "run_in_workers", late)
