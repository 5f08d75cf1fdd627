"""The data source `bottomless`: from `load()` to rows.

`schema()` resolves the stream's id and bounds once, so a DataFrame is a pinned snapshot: what is
appended later is not in it, however often it is counted. If the user gives a schema, Spark does not
call `schema()`; then each query pins its own end. The fragment list is asked for at each query,
within the pinned bounds, so that what has moved to object storage since is read from there.

There is no `pushFilters`, on purpose: in PySpark 4.1 to 4.3 a filter that was pushed for one query
stays for later queries on the same DataFrame, which then lose rows. Ranges and columns are options
instead.

On the record's path: after shared/bottomless/spark/read.py; here it is a row, the last stop.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from bottomless.errors import InvalidRequest, OffsetGone
from bottomless.model.offset_spec import First
from bottomless.spark.json_values import check_types
from bottomless.spark.options import (
    PARTITION_COLUMN,
    Limits,
    Options,
    check_batch,
    check_streaming,
    options_of_partition,
    parse_options,
)
from bottomless.spark.partitions import SharePartition, lease_range, plan_partitions, read_partition
from bottomless.spark.rows import JSON_COLUMN
from bottomless.spark.sink import BottomlessStreamWriter, BottomlessWriter
from bottomless.spark.sink_options import parse_sink_options
from bottomless.spark.snapshot import Snapshot, take_snapshot
from bottomless.spark.stream import BottomlessStreamReader
from bottomless.spark.super_stream import (
    BottomlessSuperStreamReader,
    PartitionSnapshot,
    named,
    take_super_snapshot,
)

_TYPES: Final[dict[str, DataType]] = {
    PARTITION_COLUMN: IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "value": BinaryType(),
    "key": BinaryType(),
    "headers": MapType(StringType(), BinaryType()),
    "event_time": TimestampType(),
    "content": ByteType(),
    "filter_value": StringType(),
}


class BottomlessSource(DataSource):
    """The data source `format("bottomless")`.

    options.py lists the options of a read, sink_options.py those of a write.
    """

    # Spark asks that the constructor be left alone, and pickles what schema() sets.
    _snapshot: Snapshot | list[PartitionSnapshot] | None = None

    @classmethod
    def name(cls) -> str:
        """The name by which `format` finds this source."""
        return "bottomless"

    def schema(self) -> Any:
        """Give the columns as a StructType, or with the option jsonSchema as Spark's DDL text."""
        options = parse_options(self.options)
        self._snapshot = _pin(options)
        return _schema(options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Make the reader of a batch read.

        Raises:
            InvalidRequest: an option or the schema is wrong.
        """
        options = parse_options(self.options)
        check_batch(options)
        _check_schema(schema, options)
        if options.is_super:
            pinned = self._snapshot if isinstance(self._snapshot, list) else None
            found = take_super_snapshot(options) if pinned is None else pinned
            return BottomlessSuperReader(options, found, schema)
        one = self._snapshot if isinstance(self._snapshot, Snapshot) else None
        return BottomlessReader(options, one or take_snapshot(options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Make the reader of a streaming query.

        Raises:
            InvalidRequest: an option or the schema is wrong.
        """
        options = parse_options(self.options)
        check_streaming(options)
        _check_schema(schema, options)
        if options.is_super:
            return BottomlessSuperStreamReader(options, schema)
        return BottomlessStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BottomlessWriter:  # Spark's own
        """Make the writer of one write.

        Raises:
            InvalidRequest: an option or the schema is wrong.
        """
        options = parse_sink_options(self.options, streaming=False)
        return BottomlessWriter(options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> BottomlessStreamWriter:  # noqa: N802  # Spark's own
        """Make the writer of a streaming query.

        Raises:
            InvalidRequest: an option or the schema is wrong.
        """
        options = parse_sink_options(self.options, streaming=True)
        return BottomlessStreamWriter(options, schema, overwrite=overwrite)


def schema_of_rows(options: Options) -> StructType:
    """Make the columns that a read with these options has; needs a session.

    Raises:
        InvalidRequest: JSON values cannot be turned into one of the types.
    """
    found = _schema(options)
    schema = StructType.fromDDL(found) if isinstance(found, str) else found
    assert isinstance(schema, StructType)
    _check_schema(schema, options)
    return schema


def _schema(options: Options) -> StructType | str:
    if options.json_schema is None:
        return StructType([StructField(name, _TYPES[name]) for name in options.columns])
    # In words, since it is Spark that understands those of the option.
    stored = [f"`{name}` {_TYPES[name].simpleString()}" for name in options.columns]
    return ", ".join([*stored, f"{JSON_COLUMN} STRUCT<{options.json_schema}>"])


def _pin(options: Options) -> Snapshot | list[PartitionSnapshot] | None:
    """What the DataFrame is of; Spark does not say whether it is to be a batch or a stream."""
    if options.limits != Limits():
        return None
    try:
        return take_super_snapshot(options) if options.is_super else take_snapshot(options)
    except OffsetGone:
        # A streaming query that goes on from a checkpoint does not begin here any more. A
        # batch is told when it is planned.
        if options.ending is not None or options.starting is None:
            raise
        return None


class BottomlessReader(DataSourceReader):
    """The reader of a batch read: plans on the driver, reads in the workers."""

    def __init__(self, options: Options, snapshot: Snapshot, schema: StructType) -> None:
        self._options = options
        self._snapshot = snapshot
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Plan what each task reads, on the driver; takes a lease on the range first."""
        options, snapshot = self._options, self._snapshot
        if snapshot.first_offset == snapshot.next_offset:
            return []
        from bottomless.client import Client  # noqa: PLC0415  # executors have no library for it

        # Held before it is listed: what is listed cannot be deleted from then on.
        everything = options.starting is None or isinstance(options.starting, First)
        lease = lease_range(options, snapshot, from_what_is_there=everything)
        with Client(options.url) as client:
            return plan_partitions(client, options, snapshot, lease, from_what_is_there=everything)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition, in a worker."""
        if not isinstance(partition, SharePartition):
            # Spark makes one partition of nothing where the plan is empty.
            return iter(())
        return read_partition(self._options, self._schema, partition)


class BottomlessSuperReader(DataSourceReader):
    """The reader of a batch read of a super stream: each partition is read as a stream is."""

    def __init__(
        self, options: Options, snapshots: list[PartitionSnapshot], schema: StructType
    ) -> None:
        self._options = options
        self._snapshots = snapshots
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Plan what each task reads, on the driver: of one partition of the super stream."""
        count = len(self._snapshots)
        planned: list[InputPartition] = []
        for index, stream, snapshot in self._snapshots:
            own = options_of_partition(self._options, stream, count)
            reader = BottomlessReader(own, snapshot, self._schema)
            planned += named(reader.partitions(), stream, index)
        return planned

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition, in a worker."""
        if not isinstance(partition, SharePartition):
            return iter(())
        return read_partition(self._options, self._schema, partition)


def _check_schema(schema: StructType, options: Options) -> None:
    for field in schema.fields:
        if field.name == PARTITION_COLUMN and not options.is_super:
            raise InvalidRequest("only a super stream has the column partition")
        if field.name == JSON_COLUMN and isinstance(field.dataType, StructType):
            check_types(to_arrow_type(field.dataType, timezone="UTC"))
            continue
        wanted = _TYPES.get(field.name)
        if wanted is None or field.dataType != wanted:
            known = ", ".join(f"{name} {kind.simpleString()}" for name, kind in _TYPES.items())
            raise InvalidRequest(f"the schema may have these columns: {known}")
