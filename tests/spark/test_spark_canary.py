"""Faults of PySpark that we go round: a test that fails here says that the way round may go."""

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition

SETTING = "spark.sql.python.filterPushdown.enabled"


def numbers_with_pushed_filters() -> type[DataSource]:
    """A source of 0 to 99 that keeps what is below 10 once any filter was pushed into it."""

    # Defined within a function, so that Spark's workers get them by value.
    class Reader(DataSourceReader):
        count = 100

        def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802
            self.count = 10
            yield from filters

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
            yield pa.record_batch({"number": pa.array(range(self.count), pa.int64())})

    class Numbers(DataSource):
        @classmethod
        def name(cls) -> str:
            return "numbers"

        def schema(self) -> str:
            return "number long"

        def reader(self, schema: object) -> DataSourceReader:  # noqa: ARG002
            return Reader()

    return Numbers


@pytest.fixture
def with_push_down(spark: SparkSession) -> Iterator[SparkSession]:
    spark.conf.set(SETTING, "true")
    yield spark
    spark.conf.unset(SETTING)


def test_a_pushed_filter_stays_for_later_queries(with_push_down: SparkSession) -> None:
    with_push_down.dataSource.register(numbers_with_pushed_filters())
    frame = with_push_down.read.format("numbers").load()
    assert frame.count() == 100
    assert frame.where("number < 10").count() == 10
    mended = frame.count() == 100
    assert not mended, "Spark forgets pushed filters now: the data source may have pushFilters"
