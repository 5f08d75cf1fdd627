"""Stats: what a stream holds, counted in Spark's workers: sizes, rates, keys, filter values.

Workers count with Arrow and numpy and return sums; the JVM adds these up, and estimates how many
different keys there are. Records stay in the workers, except for keys and filter values.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from bottomless.errors import InvalidRequest
from bottomless.extras import how_to_install
from bottomless.model.offset_spec import format_timestamp
from bottomless.spark.jobs.tasks import answer_schema, collected, frame_of_work
from bottomless.spark.jobs.watching import watched
from bottomless.spark.options import Options, parse_options
from bottomless.spark.partitions import SharePartition, leased, plan_partitions
from bottomless.spark.session import register
from bottomless.spark.snapshot import take_snapshot
from bottomless.spark.source import schema_of_rows

BUCKET_MS: Final = 60_000
"""The width of a bucket of times, in ms; buckets are joined when there are too many to show."""
BUCKET_COUNT_MAX: Final = 200
FILTER_VALUES_SHOWN_MAX: Final = 20
_SAMPLE_SIZE: Final = 1024 * 1024
"""Bytes of values of each task that are compressed to see what it brings."""
_PLOTS: Final = "a plot is a file such as stats.png, stats.svg or stats.pdf"
_DISTINCT_ERROR: Final = 0.02

_PARTIAL: Final = answer_schema(
    {
        "kind": pa.string(),
        "text": pa.binary(),
        "number": pa.int64(),
        "count": pa.int64(),
        "size": pa.int64(),
    }
)


@dataclass(slots=True)
class Stats:
    """What was counted. Sizes are in bytes, times in ms since 1970; `next_offset` is exclusive."""

    stream: str
    first_offset: int
    next_offset: int
    records: int = 0
    """Records in the range."""
    value_size: int = 0
    """Bytes of all values."""
    smallest: int | None = None
    """Bytes of the smallest value; None without records."""
    largest: int | None = None
    """Bytes of the largest value; None without records."""
    keys: int = 0
    """Records that have a key."""
    distinct_keys: int = 0
    """Different keys, estimated."""
    distinct_filter_values: int = 0
    """Different filter values, estimated."""
    filter_values: dict[str, int] = field(default_factory=dict)
    """The most frequent filter values, and how many records have them."""
    sizes: dict[int, int] = field(default_factory=dict)
    """Records by the size of their value: at most this many bytes, a power of two or 0."""
    bucket_ms: int = BUCKET_MS
    times: dict[int, int] = field(default_factory=dict)
    """Records by the time when they were appended, as the start of a bucket."""
    compressed_to: float | None = None
    """The size of a sample of the values after zstd, as a fraction of the size before it."""

    @property
    def records_per_second(self) -> float | None:
        """Records per second from the start of the first bucket to the end of the last.

        None without any.
        """
        if not self.times:
            return None
        span = max(self.times) - min(self.times) + self.bucket_ms
        return self.records * 1000 / span

    @property
    def records_per_second_max(self) -> float | None:
        """Records per second in the fullest bucket; None without records."""
        return max(self.times.values()) * 1000 / self.bucket_ms if self.times else None

    def members(self) -> dict[str, Any]:
        """Make the members of the answer as JSON, with times as people read them."""
        rates = {
            "records_per_second": self.records_per_second,
            "records_per_second_max": self.records_per_second_max,
        }
        times = {format_timestamp(start): count for start, count in self.times.items()}
        return {**asdict(self), "times": times, **rates}


def stats(spark: SparkSession, options: Mapping[str, str]) -> Stats:
    """Count what a range of a stream holds; `options` are those of a read."""
    chosen = parse_options({**options, "columns": "timestamp,value,key,filter_value"})
    snapshot = take_snapshot(chosen)
    found = Stats(chosen.stream, snapshot.first_offset, snapshot.next_offset)
    from bottomless.client import Client  # noqa: PLC0415  # executors have no library

    with leased(chosen, snapshot) as lease:
        with Client(chosen.url) as client:
            partitions = plan_partitions(client, chosen, snapshot, lease)
        if partitions:
            _gather(spark, chosen, partitions, found)
    return found


def _gather(
    spark: SparkSession, chosen: Options, partitions: list[SharePartition], found: Stats
) -> None:
    # Types in SQL are read by Spark; all that comes before is answered without it.
    register(spark)
    work = partial(_count, chosen, schema_of_rows(chosen))
    counted = frame_of_work(spark, work, partitions, _PARTIAL)
    # Keys are counted and then forgotten; what is small comes to the driver as it is.
    text = sql.when(sql.col("kind") == "filter", sql.col("text"))
    number = sql.when(sql.col("kind").isin("size", "time"), sql.col("number"))
    groups = (
        counted.groupBy("kind", text.alias("text"), number.alias("number"))
        .agg(
            sql.min(counted["number"]).alias("least"),
            sql.max(counted["number"]).alias("most"),
            sql.sum("count").alias("count"),
            sql.sum("size").alias("size"),
            sql.approx_count_distinct(sql.col("text"), _DISTINCT_ERROR).alias("distinct"),
        )
        .withColumn(
            "rank",
            sql.expr("row_number() OVER (PARTITION BY kind ORDER BY count DESC, text)"),
        )
        .where(f"kind != 'filter' OR rank <= {FILTER_VALUES_SHOWN_MAX}")
        .drop("rank")
    )
    with watched(spark, f"stats {chosen.stream}"):
        rows = collected(groups).to_pylist()
    for row in rows:
        _add(found, row)
    _settle(found)


def check_plot(path: str) -> None:
    """Refuse a file that `draw` could not make, before anything is counted.

    Raises:
        InvalidRequest: the library is not installed, or knows no such kind of file.
    """
    kind = Path(path).suffix.removeprefix(".").lower()
    # Without an ending it is the library's own choice.
    if kind and kind not in _figure().canvas.get_supported_filetypes():
        raise InvalidRequest(_PLOTS)


def draw(found: Stats, path: str) -> None:
    """Draw records over time and over sizes into a file; its suffix says of which kind.

    Raises:
        InvalidRequest: the library is not installed, or knows no such kind of file.
    """
    figure = _figure()
    over_time, over_sizes = figure.subplots(2)
    starts = sorted(found.times)
    over_time.bar(
        [np.datetime64(start, "ms") for start in starts],
        [found.times[start] * 1000 / found.bucket_ms for start in starts],
        width=np.timedelta64(found.bucket_ms, "ms"),
        align="edge",
    )
    over_time.set_ylabel("records per second")
    over_time.set_title(found.stream)
    sizes = sorted(found.sizes)
    over_sizes.bar([str(size) for size in sizes], [found.sizes[size] for size in sizes])
    over_sizes.set_xlabel("bytes of the value, up to")
    over_sizes.set_ylabel("records")
    try:
        figure.savefig(path)
    except ValueError as error:
        raise InvalidRequest(_PLOTS) from error


def _figure() -> Any:
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise InvalidRequest(
            f"a plot needs the library matplotlib: {how_to_install('plot')}"
        ) from error
    return Figure(figsize=(10, 7), layout="constrained")


def _add(found: Stats, row: Mapping[str, Any]) -> None:
    match row["kind"]:
        case "total":
            found.records, found.value_size = row["count"], row["size"]
        case "size":
            found.sizes[row["number"]] = row["count"]
        case "time":
            found.times[row["number"]] = row["count"]
        case "key":
            found.keys, found.distinct_keys = row["count"], row["distinct"]
        case "filters":
            found.distinct_filter_values = row["distinct"]
        case "filter":
            found.filter_values[row["text"].decode()] = row["count"]
        case "sample":
            found.compressed_to = row["count"] / row["size"]
        case "bound":
            found.smallest, found.largest = row["least"], row["most"]


def _settle(found: Stats) -> None:
    """Bring what was counted into order, and times into few buckets."""
    found.sizes = dict(sorted(found.sizes.items()))
    ordered = sorted(found.filter_values.items(), key=lambda one: (-one[1], one[0]))
    found.filter_values = dict(ordered)
    while len(found.times) > BUCKET_COUNT_MAX:
        found.bucket_ms *= 2
        wider: dict[int, int] = {}
        for start, count in found.times.items():
            into = start // found.bucket_ms * found.bucket_ms
            wider[into] = wider.get(into, 0) + count
        found.times = wider
    found.times = dict(sorted(found.times.items()))


def _count(
    options: Options, schema: StructType, partition: SharePartition
) -> Iterator[pa.RecordBatch]:
    """What a task counts in its share."""
    from bottomless.spark.partitions import read_partition  # noqa: PLC0415

    sampled = 0
    for batch in read_partition(options, schema, partition):
        rows = list(_sums(batch))
        if sampled < _SAMPLE_SIZE:
            raw, packed = _sample(batch.column("value"))
            sampled += raw
            if raw:
                rows.append(_row("sample", count=packed, size=raw))
        yield pa.RecordBatch.from_pylist(rows, schema=_PARTIAL)
        keys = batch.column("key").drop_null()
        yield from _texts("key", keys)
        yield from _texts("filters", batch.column("filter_value").drop_null().cast(pa.binary()))


def _sums(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    sizes = _lengths(batch.column("value")).to_numpy(zero_copy_only=False)
    yield _row("total", count=batch.num_rows, size=int(sizes.sum()))
    yield _row("bound", number=int(sizes.min()))
    yield _row("bound", number=int(sizes.max()))
    powers = np.ceil(np.log2(np.maximum(sizes, 1))).astype(np.int64)
    uppers = np.where(sizes == 0, 0, 1 << powers)
    for upper, count in zip(*np.unique(uppers, return_counts=True), strict=True):
        yield _row("size", number=int(upper), count=int(count))
    times = batch.column("timestamp").cast(pa.int64()).to_numpy() // 1000
    starts = times // BUCKET_MS * BUCKET_MS
    for start, count in zip(*np.unique(starts, return_counts=True), strict=True):
        yield _row("time", number=int(start), count=int(count))
    values: Any = pc.value_counts(batch.column("filter_value").drop_null())
    for one in values.to_pylist():
        yield _row("filter", text=one["values"].encode(), count=one["counts"])


def _lengths(values: Any) -> Any:
    return pc.binary_length(values)


def _texts(kind: str, texts: "pa.Array[Any]") -> Iterator[pa.RecordBatch]:
    """Each text once with how often it comes."""
    if not len(texts):
        return
    counted: Any = pc.value_counts(texts)
    nothing = pa.nulls(len(counted), pa.int64())
    yield pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar(kind), len(counted)),
            counted.field(0).cast(pa.binary()),
            nothing,
            counted.field(1),
            nothing,
        ],
        schema=_PARTIAL,
    )


def _sample(values: "pa.Array[Any]") -> tuple[int, int]:
    """Bytes of some values, and what zstd makes of them."""
    held: list[bytes] = []
    size = 0
    for value in values:
        if size >= _SAMPLE_SIZE:
            break
        held.append(value.as_py())
        size += len(held[-1])
    packed = pa.Codec("zstd").compress(b"".join(held), asbytes=True)
    return size, len(packed)


def _row(
    kind: str,
    *,
    text: bytes | None = None,
    number: int | None = None,
    count: int = 0,
    size: int = 0,
) -> dict[str, Any]:
    return {"kind": kind, "text": text, "number": number, "count": count, "size": size}
