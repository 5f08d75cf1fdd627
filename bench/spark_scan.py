"""What Spark gets out of a stream, beside Parquet of the same rows, in one run.

    PYTHONPATH=tests:docs/examples .venv/bin/python bench/spark_scan.py [--mib 512] [--rounds 5] [--out FILE]

For records of 100 bytes and of 1 KiB: a full scan and a scan of `columns=offset` of the data
source, and a full scan of Parquet, each into the no-op sink on local[2]; the sides take turns
in every round, so a busy machine slows all of them, and what counts is the median of each
round's ratio: of the time that passed, and of the processor time that Spark and its workers
took, which others on the machine do not distort. Then micro-batches of a streaming query, and the sink beside `df.write.parquet`.

`--profile` shows what the worker's Python does in one full scan instead.
"""

import argparse
import cProfile
import json
import os
import pstats
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from support.server import AllInOne

from bottomless.client import Client
from bottomless.spark import configure, register
from bottomless.spark.source import BottomlessSource

MIB: Final = 1024 * 1024
REQUEST_SIZE: Final = 4 * MIB
GOALS: Final = {100: 0.65, 1024: 0.75}
"""Of a full scan, by the size of records: at least so much of Parquet's rate."""
WARM_ROUNDS: Final = 2
SINK_ROW_COUNT: Final = 500_000
BATCH_ROW_COUNT: Final = 10_000

_TICKS: Final = os.sysconf("SC_CLK_TCK")


class Took(NamedTuple):
    """Seconds of one side in one round."""

    wall: float
    cpu: float
    """Of Spark's process and its workers together."""


Rounds = dict[str, list[Took]]


def cpu_seconds(pid: int) -> float:
    """Processor time of a process and all that it has started, dead or alive."""
    parents: dict[int, int] = {}
    used: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            process = int(path.parent.name)
            parents[process] = int(fields[1])
            used[process] = sum(map(int, fields[11:15]))
    family = {pid}
    while more := {one for one, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(used.get(one, 0) for one in family) / _TICKS


@contextmanager
def local_spark(directory: Path) -> Iterator[SparkSession]:
    builder = SparkSession.builder.config("spark.sql.shuffle.partitions", "2")
    builder = builder.config("spark.local.dir", str(directory))
    # Parquet at its best: the default for times is older than 64-bit ones, and slower.
    builder = builder.config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    spark = configure(builder.config("spark.driver.memory", "2g"), master="local[2]").getOrCreate()
    register(spark)
    try:
        yield spark
    finally:
        spark.stop()


def spark_pid(spark: SparkSession) -> int:
    """The process of Spark, whose children its workers are."""
    gateway = spark.sparkContext._gateway  # noqa: SLF001  # nothing else knows the process
    assert gateway is not None
    pid: int = gateway.proc.pid
    return pid


def fill(client: Client, name: str, size: int, total: int) -> int:
    """Append random values of `size` bytes, which no codec makes smaller; returns how many."""
    client.create_stream(name)
    random = np.random.default_rng(size)
    count = REQUEST_SIZE // size
    offsets = np.arange(0, (count + 1) * size, size, dtype=np.int32)
    request_count = -(-total // REQUEST_SIZE)
    for _ in range(request_count):
        data = random.integers(0, 256, count * size, dtype=np.uint8)
        buffers = [None, pa.py_buffer(offsets.data), pa.py_buffer(data.data)]
        values = pa.Array.from_buffers(pa.binary(), count, buffers)
        client.append_arrow(name, pa.table({"value": values}))
    client.wait_until_stored(name, timeout_seconds=180)
    return count * request_count


def load(spark: SparkSession, url: str, name: str, **options: str) -> DataFrame:
    return spark.read.format("bottomless").options(url=url, stream=name, **options).load()


def scan(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def take_turns(spark: SparkSession, sides: Mapping[str, Callable[[], None]], rounds: int) -> Rounds:
    """Let the sides take turns, each round in another order; two rounds before are for warmth."""
    pid = spark_pid(spark)
    found: Rounds = {name: [] for name in sides}
    names = list(sides)
    for number in range(-WARM_ROUNDS, rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            started, used = time.perf_counter(), cpu_seconds(pid)
            sides[name]()
            took = Took(time.perf_counter() - started, cpu_seconds(pid) - used)
            if number >= 0:
                found[name].append(took)
    return found


def compared(found: Rounds, side: str, other: str) -> dict[str, float]:
    """How much faster a side is than another, as the median of all rounds."""
    pairs = list(zip(found[side], found[other], strict=True))
    return {
        "wall": round(statistics.median(two.wall / one.wall for one, two in pairs), 3),
        "cpu": round(statistics.median(two.cpu / one.cpu for one, two in pairs), 3),
    }


def rates(found: Rounds, row_count: int) -> dict[str, dict[str, int]]:
    """Rows a second, and rows a second of processor time, of each side: medians."""
    return {
        side: {
            "wall": round(statistics.median(row_count / took.wall for took in all_)),
            "cpu": round(statistics.median(row_count / took.cpu for took in all_)),
        }
        for side, all_ in found.items()
    }


def scans(
    spark: SparkSession, url: str, client: Client, size: int, options: Any, place: Path
) -> dict[str, Any]:
    name = f"scan-{size}"
    row_count = fill(client, name, size, options.mib * MIB)
    parquet = str(place / name)
    load(spark, url, name).write.parquet(parquet)
    sides = {
        "full": lambda: scan(load(spark, url, name)),
        "parquet": lambda: scan(spark.read.parquet(parquet)),
        "offset": lambda: scan(load(spark, url, name, columns="offset")),
    }
    found = take_turns(spark, sides, options.rounds)
    full, pruned = (compared(found, side, "parquet") for side in ("full", "offset"))
    print(
        f"{size:>5} B  full {full} x Parquet (goal {GOALS[size]}),"
        f" columns=offset {pruned} x Parquet's full scan (goal 1)",
        flush=True,
    )
    return {
        "record_bytes": size,
        "rows": row_count,
        "rows_per_second": rates(found, row_count),
        "full_of_parquet": full,
        "goal": GOALS[size],
        "offset_of_parquet": pruned,
        "rounds": found,
    }


def micro_batches(
    spark: SparkSession, url: str, client: Client, options: Any, place: Path
) -> dict[str, Any]:
    """How long a batch of 10,000 records takes while a query follows a stream."""
    name = "followed"
    client.create_stream(name)
    records = pa.table({"value": pa.array([bytes(100)] * BATCH_ROW_COUNT, pa.binary())})
    stream = spark.readStream.format("bottomless").options(url=url, stream=name)
    writer = stream.option("startingOffsets", "earliest").load().writeStream.format("noop")
    query = writer.option("checkpointLocation", str(place / name)).start()
    try:
        for _ in range(options.batches + 3):
            client.append_arrow(name, records)
            query.processAllAvailable()
        done = [progress for progress in query.recentProgress if progress.numInputRows]
    finally:
        query.stop()
    warm = sorted(progress.durationMs["triggerExecution"] for progress in done[3:])
    result = {
        "rows": BATCH_ROW_COUNT,
        "batches": len(warm),
        "p50_ms": statistics.median(warm),
        "p90_ms": warm[len(warm) * 9 // 10],
    }
    print(f"micro-batch of {BATCH_ROW_COUNT} rows: p50 {result['p50_ms']:.0f} ms", flush=True)
    return result


def sink(
    spark: SparkSession, url: str, client: Client, options: Any, place: Path
) -> dict[str, Any]:
    """Rows that are already in Spark, into a stream and into Parquet."""
    client.create_stream("sink")
    frame = spark.range(0, SINK_ROW_COUNT, 1, 2).select(
        sql.concat(sql.sha2(sql.col("id").cast("string"), 256), sql.lit("x" * 36)).alias("value")
    )
    frame.cache().count()
    stream = frame.write.format("bottomless").options(url=url, stream="sink").mode("append")
    parquet = frame.write.mode("overwrite")
    sides: dict[str, Callable[[], None]] = {
        "stream": stream.save,
        "parquet": lambda: parquet.parquet(str(place / "sink")),
    }
    found = take_turns(spark, sides, options.rounds)
    frame.unpersist()
    ratios = compared(found, "stream", "parquet")
    print(f"sink: {ratios} x df.write.parquet", flush=True)
    return {
        "record_bytes": 100,
        "rows": SINK_ROW_COUNT,
        "rows_per_second": rates(found, SINK_ROW_COUNT),
        "stream_of_parquet": ratios,
    }


def profile(url: str, client: Client, options: Any) -> None:
    """What a worker does without Spark: every batch of a full scan is made and let go."""
    for size in GOALS:
        name = f"scan-{size}"
        count = fill(client, name, size, options.mib * MIB)
        source = BottomlessSource({"url": url, "stream": name})
        reader = source.reader(source.schema())
        partitions = reader.partitions()
        for seen in (False, True):
            profiler = cProfile.Profile()
            started = time.process_time()
            if seen:
                profiler.enable()
            for partition in partitions:
                for batch in reader.read(partition):
                    assert isinstance(batch, pa.RecordBatch)
            profiler.disable()
            seconds = time.process_time() - started
            print(f"{size} B: {count / seconds:,.0f} rows a CPU second, {seconds:.2f} s")
        pstats.Stats(profiler).sort_stats("tottime").print_stats(14)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=512, help="of values, for each size")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=30)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bottomless-bench-") as directory:
        place = Path(directory)
        with AllInOne(place / "data") as server, Client(server.url) as client:
            if options.profile:
                profile(server.url, client, options)
                return
            before = os.getloadavg()
            with local_spark(place / "spark") as spark:
                here = (spark, server.url, client)
                result = {
                    "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
                    "cores": os.cpu_count(),
                    "scans": [scans(*here, size, options, place) for size in GOALS],
                    "micro_batches": micro_batches(*here, options, place),
                    "sink": sink(*here, options, place),
                    "load_before": before,
                    "load_after": os.getloadavg(),
                }
    text = json.dumps(result, indent=2)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
