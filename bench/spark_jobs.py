"""Spark jobs beside the least that could do the same, on the same stream in one run.

    .venv/bin/python -m bench.spark_jobs [--mebibytes 512] [--record-bytes 1024] [--rounds 3]
        [--warm-ups 8] [--directory /tmp]

verify is compared with a loop that reads the same files and makes one checksum of each, in as
many processes as Spark has cores; export with `df.write.parquet` of the same columns. Both
sides take turns in every round, in a session that is warm, and a ratio is of the medians. CPU
seconds are those of all processes until they are quiet again: the driver, Java, its workers, the
service, and what the other side has. The start of Spark is told apart: it is the same for any job.
"""

import argparse
import json
import multiprocessing
import os
import platform
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fastcrc
import pyarrow as pa
from pyspark.sql import SparkSession

from bench.backing import prepare_turn
from bench.tree import Tree
from bottomless.client import Client
from bottomless.spark import configure, register
from bottomless.spark.jobs import export, verify

CORES = 2
RANGE_SIZE = 8 * 1024 * 1024
STREAM = "bench-jobs"
WARM_UP_COUNT = 8
"""Until then the JVM compiles what it runs, on the same two cores."""
SETTLE_SECONDS = 10
TOUCHED_BYTES = 3 << 30
"""More than a side writes: what it exports, and what its programs take meanwhile."""


def checksum(path: str) -> int:
    crc = 0
    with Path(path).open("rb", buffering=0) as file:
        while data := file.read(RANGE_SIZE):
            crc = fastcrc.crc32.iscsi(data, crc)
    return crc


def fill(client: Client, size: int, record_size: int) -> None:
    count = max(1, 1024 * 1024 // record_size)
    pool = secrets.token_bytes(record_size * count)
    values = [pool[n * record_size : (n + 1) * record_size] for n in range(count)]
    table = pa.table({"value": pa.array(values, pa.binary())})
    client.create_stream(STREAM, {"fragment": {"max_age_ms": 1000}})
    for _ in range(max(1, size // (record_size * count))):
        client.append_arrow(STREAM, table)
    client.wait_until_stored(STREAM, timeout_seconds=300)


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    """Seconds, and CPU seconds of all processes."""
    tree = Tree(os.getpid())
    began, spent = time.perf_counter(), tree.cpu_seconds()
    work()
    seconds = time.perf_counter() - began
    tree.settle(SETTLE_SECONDS)
    return seconds, tree.cpu_seconds() - spent


def alternate(
    given: argparse.Namespace, ours: Callable[[], Any], theirs: Callable[[], Any]
) -> dict[str, Any]:
    """Both some times to warm up, then in turns, each on a machine that is prepared (backing.py)."""
    for _ in range(given.warm_ups):
        ours(), theirs()
    mine, other = [], []
    for _ in range(given.rounds):
        prepare_turn(TOUCHED_BYTES)
        mine.append(timed(ours))
        prepare_turn(TOUCHED_BYTES)
        other.append(timed(theirs))
    return {**compared("seconds", mine, other, 0), **compared("cpu_seconds", mine, other, 1)}


def compared(name: str, mine: Sequence[Any], other: Sequence[Any], place: int) -> dict[str, Any]:
    ratios = sorted(b[place] / a[place] for a, b in zip(mine, other, strict=True))
    middle, its = (statistics.median(one[place] for one in side) for side in (mine, other))
    return {
        name: round(middle, 3),
        f"compared_{name}": round(its, 3),
        f"ratio_of_{name}": round(its / middle, 3),
        f"ratio_of_{name}_spread": [round(ratios[0], 3), round(ratios[-1], 3)],
    }


def measure(url: str, objects: Path, directory: Path, given: argparse.Namespace) -> None:
    with Client(url) as client:
        fill(client, given.mebibytes * 1024 * 1024, given.record_bytes)
        listed = list(client.list_fragments(STREAM, {"locations": "true"}))
    files = [str(objects / item["object_key"]) for item in listed]
    size = sum(item["size_bytes"] for item in listed)
    began = time.perf_counter(), Tree(os.getpid()).cpu_seconds()
    spark = configure(SparkSession.builder, master=f"local[{CORES}]").getOrCreate()
    register(spark)
    # Its first job starts the workers of Python too.
    spark.range(1).mapInPandas(lambda frames: frames, "id long").collect()
    start = [time.perf_counter() - began[0], Tree(os.getpid()).cpu_seconds() - began[1]]
    print("start of Spark", json.dumps([round(one, 2) for one in start]), "s, CPU s", flush=True)
    options = {"url": url, "stream": STREAM, "mode": "direct", "minPartitions": str(CORES)}
    place = str(directory / "out")

    def exported() -> None:
        shutil.rmtree(place, ignore_errors=True)
        export(spark, options, place)

    def written() -> None:
        frame = spark.read.format("bottomless").options(**options).load()
        frame.write.mode("overwrite").parquet(place)

    def verified() -> None:
        assert verify(spark, options).sound

    with multiprocessing.get_context("spawn").Pool(CORES) as pool:
        rows = {
            "verify": alternate(given, verified, lambda: pool.map(checksum, files, chunksize=1)),
            "export": alternate(given, exported, written),
        }
    for name, row in rows.items():
        row["megabytes_per_second"] = round(size / row["seconds"] / 1e6)
        row["compared_megabytes_per_second"] = round(size / row["compared_seconds"] / 1e6)
        row["megabytes_per_cpu_second"] = round(size / row["cpu_seconds"] / 1e6)
        row["compared_megabytes_per_cpu_second"] = round(size / row["compared_cpu_seconds"] / 1e6)
        print(name, json.dumps(row), flush=True)
    facts = {
        "record_bytes": given.record_bytes,
        "megabytes": round(size / 1e6),
        "fragments": len(files),
        "cores": CORES,
        "python": platform.python_version(),
        "goals": {"verify": 0.5, "export": 2.0},
        "ratios": {name: row["ratio_of_seconds"] for name, row in rows.items()},
        "ratios_of_cpu_seconds": {name: row["ratio_of_cpu_seconds"] for name, row in rows.items()},
        "load": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(facts))
    spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mebibytes", type=int, default=512)
    parser.add_argument("--record-bytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm-ups", type=int, default=WARM_UP_COUNT)
    parser.add_argument("--directory", help="where there is room for three times as much")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.directory) as text:
        directory = Path(text)
        program = str(Path(sys.executable).parent / "bottomless")
        command = [program, "serve", "--port", "0", "--data-dir", str(directory / "data")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                url = server.stdout.readline().split()[1]
                measure(url, directory / "data" / "objects", directory, given)
            finally:
                server.terminate()
                server.wait(30)


if __name__ == "__main__":
    main()
