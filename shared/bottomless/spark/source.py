"""The data source `bottomless`: from `load()` to rows.

`schema()` resolves the stream's id and bounds once, so a DataFrame is a pinned snapshot:
what is appended later is not in it, however often it is counted. With a schema of the
user's own Spark does not call `schema()`; then each query pins its own end.
The fragment list is asked for at each query, within the pinned bounds, so that what has
moved to object storage since is read from there.

There is no `pushFilters`, on purpose: in PySpark 4.1 to 4.3 a filter that was pushed for
one query stays for later queries on the same DataFrame, which then lose rows. Ranges and
columns are options instead.

On the record's path: after shared/bottomless/spark/read.py; here it is a row, the last stop.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from bottomless.client import BottomlessClient, Fragment, Offsets
from bottomless.errors import Code, InvalidRequest, OffsetGone
from bottomless.model.names import StreamId
from bottomless.model.offset_spec import At
from bottomless.spark.options import Mode, Options, S3View, parse_options
from bottomless.spark.plan import Share, Stored, plan
from bottomless.spark.read import Task, read_share
from bottomless.spark.service import Source
from bottomless.spark.sink import BottomlessStreamWriter, BottomlessWriter
from bottomless.spark.sink_options import parse_sink_options
from bottomless.spark.store import StorePlace

_TYPES: Final[dict[str, DataType]] = {
    "offset": LongType(),
    "timestamp": TimestampType(),
    "value": BinaryType(),
    "key": BinaryType(),
    "headers": MapType(StringType(), BinaryType()),
    "event_time": TimestampType(),
    "content": ByteType(),
    "filter_value": StringType(),
}


class Snapshot(NamedTuple):
    """What a DataFrame is of: this stream, these offsets."""

    stream_id: StreamId
    first_offset: int
    next_offset: int


@dataclass
class SharePartition(InputPartition):
    """A share as it travels to a worker: offsets and places, no URL and no secret."""

    share: Share
    place: StorePlace | None


class BottomlessSource(DataSource):
    """`format("bottomless")`; options.py says what a read takes, sink_options.py what a write."""

    # Spark asks that the constructor be left alone, and pickles what schema() sets.
    _snapshot: Snapshot | None = None

    @classmethod
    def name(cls) -> str:
        return "bottomless"

    def schema(self) -> StructType:
        options = parse_options(self.options)
        self._snapshot = take_snapshot(options)
        return StructType([StructField(name, _TYPES[name]) for name in options.columns])

    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse_options(self.options)
        _check_schema(schema)
        return BottomlessReader(options, self._snapshot or take_snapshot(options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> BottomlessWriter:  # Spark's own
        options = parse_sink_options(self.options, streaming=False)
        return BottomlessWriter(options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> BottomlessStreamWriter:  # noqa: N802  # Spark's own
        options = parse_sink_options(self.options, streaming=True)
        return BottomlessStreamWriter(options, schema, overwrite=overwrite)


class BottomlessReader(DataSourceReader):
    """Plans on the driver, reads in the workers."""

    def __init__(self, options: Options, snapshot: Snapshot, schema: StructType) -> None:
        self._options = options
        self._snapshot = snapshot
        self._task = Task(
            source=Source(options.url, options.stream, snapshot.stream_id),
            schema=to_arrow_schema(schema, timezone="UTC"),
            mode=options.mode,
            verify_checksums=options.verify_checksums,
            ca=options.s3.ca,
            metrics_dir=options.metrics_dir,
        )

    def partitions(self) -> Sequence[InputPartition]:
        options, snapshot = self._options, self._snapshot
        if snapshot.first_offset == snapshot.next_offset:
            return []
        with BottomlessClient(options.url) as client:
            fragments = list(
                client.fragments(
                    options.stream,
                    first_offset=snapshot.first_offset,
                    next_offset=snapshot.next_offset,
                    locations=options.mode in (Mode.AUTO, Mode.DIRECT),
                    stream_id=snapshot.stream_id,
                )
            )
        shares = plan(
            [stored_of(fragment) for fragment in fragments],
            first_offset=snapshot.first_offset,
            next_offset=snapshot.next_offset,
            target_bytes=options.target_partition_bytes,
            min_shares=options.min_partitions,
        )
        place = _place(fragments, options.s3)
        return [SharePartition(share, place) for share in shares]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, SharePartition):
            # Spark makes one partition of nothing where the plan is empty.
            return iter(())
        return read_share(self._task, partition.share, partition.place)


def take_snapshot(options: Options) -> Snapshot:
    """Ask once for the stream's id and bounds, and resolve the options against them.

    Raises:
        OffsetGone: the stream does not hold an offset that was asked for.
    """
    with BottomlessClient(options.url) as client:
        offsets = client.offsets(options.stream)
    end = offsets.next_offset if options.include_tail else offsets.object_store_next_offset
    first = options.starting.offset if isinstance(options.starting, At) else offsets.first_offset
    if isinstance(options.ending, At):
        _check_inside("endingOffsets", options.ending.offset, offsets)
        end = min(end, options.ending.offset)
    _check_inside("startingOffsets", first, offsets)
    if isinstance(options.ending, At) and options.ending.offset < first:
        raise InvalidRequest("endingOffsets lies before startingOffsets")
    return Snapshot(offsets.stream_id, first, max(first, end))


def _check_inside(name: str, offset: int, offsets: Offsets) -> None:
    # Never moved silently to what is there: a job would not notice that data is missing.
    if not offsets.first_offset <= offset <= offsets.next_offset:
        raise OffsetGone(
            f"{name} lies outside what the stream holds",
            code=Code.OFFSET_OUT_OF_RANGE,
            facts={"first_offset": offsets.first_offset, "next_offset": offsets.next_offset},
        )


def _check_schema(schema: StructType) -> None:
    for field in schema.fields:
        wanted = _TYPES.get(field.name)
        if wanted is None or field.dataType != wanted:
            known = ", ".join(f"{name} {kind.simpleString()}" for name, kind in _TYPES.items())
            raise InvalidRequest(f"the schema may have these columns: {known}")


def stored_of(fragment: Fragment) -> Stored:
    return Stored(
        fragment.fragment_id,
        fragment.object_key,
        fragment.first_offset,
        fragment.next_offset,
        fragment.size,
        fragment.index_position,
    )


def _place(fragments: Sequence[Fragment], s3: S3View) -> StorePlace | None:
    """Where the objects lie as workers see it, None where they were not to be told."""
    store: Any = fragments[0].store if fragments else None
    if store is None:
        return None
    if store["kind"] != "s3":
        return StorePlace(store["kind"], store["root"])
    endpoint = s3.endpoint or store.get("endpoint")
    styles = (s3.path_style, store.get("path_style"), endpoint is not None)
    return StorePlace(
        kind="s3",
        root=store["root"],
        endpoint=endpoint,
        region=s3.region or store.get("region"),
        path_style=next(style for style in styles if style is not None),
        ca=s3.ca,
    )
