"""Spark reads the partitions of a super stream as one DataFrame, beside one stream with the same rows."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import httpx

from bench.figures import Figure, times
from bench.rows.supers import PARTITIONS, RECORDS_1M, body
from bench.servers.ours import Ours, running_ours
from bench.turns import Row, Runner, Stage
from bench.wire import http

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

REQUESTS: Final = 320
"""Of 8,000 records each, whatever time a side is given: what a job costs at its start is not the row's."""
STORED_SECONDS_MAX: Final = 120
ONE: Final = "one stream"
MANY: Final = f"{PARTITIONS} partitions"


def _fill(ours: Ours, path: str) -> None:
    content, headers = body(), {"Content-Type": http.ARROW}
    with httpx.Client(base_url=ours.url, timeout=60) as client:
        for _ in range(REQUESTS):
            client.post(path, content=content, headers=headers).raise_for_status()


def _wait_until_stored(ours: Ours) -> None:
    """Until all fragments of both sides are in the store: what is not is read from the ingest node."""
    from bottomless.client import Client  # noqa: PLC0415

    told = httpx.get(f"{ours.url}/v1/super-streams/many").raise_for_status().json()
    with Client(ours.url) as client:
        for name in ("one", *(partition["stream"] for partition in told["partitions"])):
            client.wait_until_stored(name, timeout_seconds=STORED_SECONDS_MAX)


def _scan(load: "Callable[[], DataFrame]", pid: int) -> Runner:
    from bench.spark_scan import cpu_seconds, scan  # noqa: PLC0415

    def run(_: float) -> Figure:
        spent, begun = cpu_seconds(pid), time.perf_counter()
        scan(load())
        seconds = time.perf_counter() - begun
        return Figure(
            units=REQUESTS * RECORDS_1M, seconds=seconds, cpu_seconds=cpu_seconds(pid) - spent
        )

    return run


def _set_up(stage: Stage) -> None:
    from bench.spark_scan import local_spark, spark_pid  # noqa: PLC0415

    ours = stage.stack.enter_context(running_ours(stage.directory / "ours"))
    ours.create("one")
    many = f"{ours.url}/v1/super-streams/many"
    httpx.put(many, json={"partitions": PARTITIONS}, timeout=60).raise_for_status()
    _fill(ours, "/v1/streams/one/records")
    _fill(ours, "/v1/super-streams/many/records")
    _wait_until_stored(ours)
    spark = stage.stack.enter_context(local_spark(stage.directory / "spark"))

    def load(**names: str) -> "DataFrame":
        return spark.read.format("bottomless").options(url=ours.url, **names).load()

    pid = spark_pid(spark)
    stage.runners[ONE] = _scan(lambda: load(stream="one"), pid)
    stage.runners[MANY] = _scan(lambda: load(superStream="many"), pid)
    stage.notes.append(
        f"{REQUESTS * RECORDS_1M:,} records of 100 bytes with keys of 16, read whole into the no-op "
        "sink on local[2]; CPU is that of Spark and its workers."
    )


ROWS: Final = (
    Row(
        "super-spark",
        f"{PARTITIONS} partitions as one DataFrame, beside one stream with the same rows",
        "records",
        (times("≥ 0.9 x one stream", MANY, ONE, 0.9),),
        _set_up,
        rounds_max=5,
        guess_seconds=120,
    ),
)
