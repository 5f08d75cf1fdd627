"""Mistakes that can be seen without Spark are answered before a JVM starts; what succeeds is quiet.

Nobody looked at how long an error takes, nor at what a job that went well writes to stderr: a word
in the wrong place cost half a minute.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from support.pages import ROOT
from support.server import AllInOne

from bottomless.client import Client
from bottomless.errors import StoreError
from bottomless.spark.jobs import export, import_parquet, replay, stats, verify
from bottomless.spark.jobs.stats import check_plot

SECONDS: Final = 300
PROGRAM: Final = str(Path(sys.executable).parent / "bottomless")


class NoSpark:
    """A session that nothing may be asked of."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"Spark was asked for {name}")


NO_SPARK: Final = cast("SparkSession", NoSpark())


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AllInOne]:
    with AllInOne(tmp_path_factory.mktemp("mistakes") / "data") as server:
        with Client(server.url) as client:
            for name in ("orders", "others"):
                client.create_stream(name, {"fragment": {"max_age_ms": 100}})
                client.append(name, [{"value": "one"}])
            client.create_stream("empty")
            for name in ("orders", "others"):
                client.wait_until_stored(name, timeout_seconds=60)
        yield server


def an_output(directory: Path, url: str) -> str:
    """An export of another stream, as far as it is planned."""
    output = directory / "output"
    with pytest.raises(AssertionError, match="Spark was asked"):
        export(NO_SPARK, {"url": url, "stream": "others"}, str(output))
    return str(output)


def a_file(directory: Path) -> str:
    pq.write_table(pa.table({"number": [1]}), directory / "file.parquet")
    return str(directory / "file.parquet")


MISTAKES: Final[dict[str, tuple[Callable[[dict[str, str], Path], Any], str]]] = {
    "verify a stream that is not there": (
        lambda read, _: verify(NO_SPARK, read | {"stream": "nosuch"}),
        "no such stream",
    ),
    "verify with an option that nobody knows": (
        lambda read, _: verify(NO_SPARK, read | {"colums": "value"}),
        "colums",
    ),
    "verify by the reader": (
        lambda read, _: verify(NO_SPARK, read | {"mode": "reader"}),
        "mode is not reader",
    ),
    "export in another format": (
        lambda read, here: export(NO_SPARK, read, str(here / "out"), form="csv"),
        "parquet, delta, iceberg",
    ),
    "export with another compression": (
        lambda read, here: export(NO_SPARK, read, str(here / "out"), compression="rar"),
        "snappy, zstd",
    ),
    "export other columns": (
        lambda read, here: export(NO_SPARK, read | {"columns": "nothing"}, str(here / "out")),
        "the option columns",
    ),
    "export to what another stream was exported to": (
        lambda read, here: export(NO_SPARK, read, an_output(here, read["url"])),
        "stream",
    ),
    "replay into a stream that is not there": (
        lambda read, _: replay(NO_SPARK, read, "nosuch", "name"),
        "no such stream",
    ),
    "replay under a name that is none": (
        lambda read, _: replay(NO_SPARK, read, "empty", "a name"),
        "a replay's name",
    ),
    "count a stream that is not there": (
        lambda read, _: stats(NO_SPARK, read | {"stream": "nosuch"}),
        "no such stream",
    ),
    "draw what cannot be drawn": (lambda _, here: check_plot(str(here / "a.unknown")), "a plot is"),
    "import what is not there": (
        lambda read, here: import_parquet(NO_SPARK, str(here / "x"), read["url"], "empty", "name"),
        "no such file",
    ),
    "import what has no value": (
        lambda read, here: import_parquet(NO_SPARK, a_file(here), read["url"], "empty", "name"),
        "value",
    ),
    "import into a stream that is not there": (
        lambda read, here: import_parquet(
            NO_SPARK, a_file(here), read["url"], "nosuch", "name", whole_rows=True
        ),
        "no such stream",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_answered_without_spark(
    mistake: str, running: AllInOne, tmp_path: Path
) -> None:
    make, sentence = MISTAKES[mistake]
    with pytest.raises(StoreError, match=re.escape(sentence)):
        make({"url": running.url, "stream": "orders"}, tmp_path)


def run(running: AllInOne, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM, "--url", running.url, "spark", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
        cwd=ROOT,
        env={**os.environ, **variables},
    )


@pytest.mark.timeout(SECONDS + 60)
def test_a_command_looks_for_java_only_when_there_is_work(
    running: AllInOne, tmp_path: Path
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\ntouch {tmp_path / 'asked'}\nexit 1\n")
    java.chmod(0o755)
    refused = run(running, "verify", "nosuch", JAVA_HOME=str(tmp_path))
    assert refused.returncode != 0
    assert "no such stream" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert "starting Spark" not in refused.stderr
    assert not (tmp_path / "asked").exists()


@pytest.mark.timeout(SECONDS + 60)
def test_a_command_that_succeeds_says_that_it_starts_spark_and_ends_without_a_traceback(
    running: AllInOne,
) -> None:
    done = run(running, "stats", "orders")
    assert done.returncode == 0, done.stderr
    assert "starting Spark…\n" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Error:" not in done.stderr
    # A time as people read it.
    assert re.search(
        r'^times +\{"20\d\d-\d\d-\d\dT\d\d:\d\d:00\.000Z": 1\}$', done.stdout, re.MULTILINE
    )
