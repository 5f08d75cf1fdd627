"""Jobs that are killed and started again: each row is there once, and each fault told once.

Jobs of all kinds run in one program, and it dies by SIGKILL when each of them stands in the
middle of its rounds (support/job_driver.py); what goes on is somebody else, in the session of
the tests. The seed says in which round, and whether before or after what makes that round part of the
output. BOTTOMLESS_TEST_KILLS says how many programs die one after the other before one may end.
"""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from support.job_driver import Job, Plan, Stop
from support.pages import ROOT
from support.server import AllInOne
from support.spark_session import QUICK, Streams, spark
from support.waiting import until

from bottomless.client import Client
from bottomless.errors import InvalidRequest, Unavailable, WrongOffset
from bottomless.spark.jobs import export, import_parquet, replay, verify
from bottomless.spark.jobs.delta_output import DeltaOutput
from bottomless.spark.jobs.parquet_output import ParquetOutput

KILLS: Final = int(os.environ.get("BOTTOMLESS_TEST_KILLS", "1"))
SEED: Final = int(os.environ.get("BOTTOMLESS_TEST_SEED", "20261122"))
COUNT: Final = 9_000
ROUND: Final = 120_000 // KILLS
"""Bytes of a round: more of them than are begun by those that die."""
ROUNDS_MAX: Final = 3
"""The last round of a run, from 1 on, that it may stop in."""
FRAGMENTS: Final = (ROUNDS_MAX + 1) * KILLS + 1
"""Of the stream that is verified, one a round."""
START_SECONDS: Final = 900

__all__ = ["spark"]

_numbers = itertools.count()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AllInOne]:
    with AllInOne(tmp_path_factory.mktemp("kills") / "data") as server:
        yield server


@pytest.fixture(scope="module")
def streams(running: AllInOne, spark: SparkSession) -> Iterator[Streams]:
    with Client(running.url) as client:
        yield Streams(client, spark, running)


def wide(first: int, count: int) -> pa.Table:
    """Rows of some size, whose values are their offsets."""
    values = [b"%d %s" % (number, b"x" * 70) for number in range(first, first + count)]
    return pa.table({"value": pa.array(values, pa.binary())})


@pytest.fixture(scope="module")
def name(streams: Streams) -> str:
    """A stream of several fragments and a tail, whose values are their offsets."""
    made = f"kill-{next(_numbers)}"
    streams.client.create_stream(made, {"fragment": {"target_bytes": 64 * 1024, "max_age_ms": 200}})
    for start in range(0, COUNT, 1_000):
        streams.client.append_arrow(made, wide(start, 1_000))
    streams.client.wait_until_stored(made, timeout_seconds=240)
    return made


@pytest.fixture(scope="module")
def damaged(streams: Streams) -> str:
    """A stream of some fragments, one of which has a bit that is turned."""
    made = f"kill-{next(_numbers)}"
    streams.client.create_stream(made, {"fragment": {"max_age_ms": 100}})
    for number in range(FRAGMENTS):
        streams.client.append_arrow(made, wide(number, 10))
        streams.client.wait_until_stored(made, timeout_seconds=240)
    listed = list(streams.client.list_fragments(made, {"locations": "true"}))
    assert len(listed) == FRAGMENTS
    file = streams.server.objects / listed[0]["object_key"]
    data = bytearray(file.read_bytes())
    data[200] ^= 1
    file.chmod(0o644)
    file.write_bytes(data)
    return made


@pytest.fixture(scope="module")
def jobs(
    streams: Streams, name: str, damaged: str, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """All jobs that are killed KILLS times, each in the middle of its rounds: their directory."""
    print(f"BOTTOMLESS_TEST_SEED={SEED}")
    directory = tmp_path_factory.mktemp("killed")
    (directory / "files").mkdir()
    for number in range(COUNT // 1_000):
        rows = wide(number * 1_000, 1_000)
        pq.write_table(rows, directory / f"files/{number}.parquet", row_group_size=1_000 // KILLS)
    for target in ("replayed", "imported"):
        streams.client.create_stream(target)
    chance = random.Random(SEED)
    for _ in range(KILLS):
        planned = [
            Job(title, kind, Stop(chance.randint(1, ROUNDS_MAX), chance.random() < 0.5), *call)
            for title, kind, *call in calls(streams, name, damaged, directory)
        ]
        killed(directory, planned)
    return directory


def calls(streams: Streams, name: str, damaged: str, directory: Path) -> list[tuple[Any, ...]]:
    url = streams.server.url
    of_name = {"url": url, "stream": name, "minPartitions": "2"}
    cut = {"round_size": ROUND}
    return [
        *(
            (form, "export", (of_name, str(directory / form)), {**cut, "form": form})
            for form in ("parquet", "delta")
        ),
        ("replay", "replay", (of_name, "replayed", "again"), cut),
        ("import", "import", (str(directory / "files"), url, "imported", "first"), cut),
        (
            "verify",
            "verify",
            ({"url": url, "stream": damaged}, str(directory / "report")),
            {"round_size": 1},
        ),
    ]


def killed(directory: Path, planned: list[Job]) -> None:
    """Run jobs as a program of its own and kill it when all of them have stopped."""
    plan = directory / "plan.json"
    plan.write_text(json.dumps(Plan(str(directory), QUICK, tuple(planned))))
    for job in planned:
        (directory / f"{job.title}.stopped").unlink(missing_ok=True)
    log = directory / "driver.log"
    with log.open("w") as written:
        process = subprocess.Popen(
            [sys.executable, "-m", "support.job_driver", str(plan)],
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'tests'}:{ROOT / 'docs/examples'}"},
        )

    def all_stopped() -> bool:
        stopped = [(directory / f"{job.title}.stopped").exists() for job in planned]
        return process.poll() is not None or all(stopped)

    try:
        until(all_stopped, START_SECONDS, "the middle of all jobs")
        # The driver alone: what it has started may go on for a moment, as on a cluster.
        process.kill()
        assert process.wait(30) == -signal.SIGKILL, log.read_text()[-3000:]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


def offsets_in(output: str, form: str) -> list[int]:
    files = DeltaTable(output).file_uris() if form == "delta" else output
    found: Any = ds.dataset(files).to_table(columns=["offset"])["offset"].to_pylist()
    return sorted(found)


def plans(output: Path, form: str) -> int:
    log = output / ("_delta_log" if form == "delta" else "_bottomless")
    return len(list(log.glob("*.json")))


@pytest.mark.timeout(300 + 300 * KILLS)
@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_a_killed_export_has_each_row_once_in_the_end(
    streams: Streams, name: str, jobs: Path, form: str
) -> None:
    output = jobs / form
    assert plans(output, form) > 0
    wanted = {"url": streams.server.url, "stream": name, "minPartitions": "3"}
    done = export(streams.spark, wanted, str(output), form=form)
    assert done.rows > 0
    assert offsets_in(str(output), form) == list(range(COUNT))


def test_an_export_writes_what_is_missing_of_its_last_round_by_its_plan(
    streams: Streams, name: str, tmp_path: Path
) -> None:
    """A plan without its files, then one without some of them; and what happens without plans."""
    output = str(tmp_path / "out")
    wanted = {"url": streams.server.url, "stream": name, "minPartitions": "4"}
    with pytest.MonkeyPatch.context() as patch:
        # As if the driver died after the plan.
        patch.setattr(sys.modules["bottomless.spark.jobs.export"], "run_in_workers", _dies)
        with pytest.raises(Unavailable, match="killed"):
            export(streams.spark, wanted, output)
    assert (plans(tmp_path / "out", "parquet"), list((tmp_path / "out").glob("*.parquet"))) == (
        1,
        [],
    )
    [plan] = (tmp_path / "out" / "_bottomless").glob("plan-*.json")
    planned = len(json.loads(plan.read_text())["files"])
    wanted["minPartitions"] = "1"
    done = export(streams.spark, wanted, output)
    files = sorted((tmp_path / "out").glob("*.parquet"))
    assert done.files == len(files) == planned > 3

    kept = files[0].stat().st_mtime_ns
    files[1].unlink()
    files[2].write_bytes(files[2].read_bytes()[:-10])
    assert export(streams.spark, wanted, output).files == 2
    assert offsets_in(output, "parquet") == list(range(COUNT))
    assert files[0].stat().st_mtime_ns == kept

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ParquetOutput, "begun", lambda _: None)
        patch.setattr(ParquetOutput, "plan", lambda *_: None)
        export(streams.spark, wanted, output)
    assert max(Counter(offsets_in(output, "parquet")).values()) == 2


def _dies(*_: object) -> Any:
    raise Unavailable("killed")


def test_of_two_exports_at_once_one_adds_a_round(
    streams: Streams, name: str, tmp_path: Path
) -> None:
    """The second begins, and has written its files, before the first commits; and without the
    position in the commit both do."""
    wanted = {"url": streams.server.url, "stream": name}
    inner = DeltaOutput.commit

    def late(output: str) -> None:
        with pytest.MonkeyPatch.context() as patch:

            def commit(self: DeltaOutput, *given: Any) -> None:
                patch.setattr(DeltaOutput, "commit", inner)
                export(streams.spark, wanted, output, form="delta")
                inner(self, *given)

            patch.setattr(DeltaOutput, "commit", commit)
            export(streams.spark, wanted, output, form="delta")

    output = str(tmp_path / "guarded")
    with pytest.raises(WrongOffset, match="another export"):
        late(output)
    assert offsets_in(output, "delta") == list(range(COUNT))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeltaOutput, "position", lambda *_: None)
        patch.setattr(DeltaOutput, "transactions", lambda *_: [])
        late(str(tmp_path / "unguarded"))
    assert len(offsets_in(str(tmp_path / "unguarded"), "delta")) == 2 * COUNT


@pytest.mark.timeout(300 + 300 * KILLS)
def test_a_killed_replay_writes_each_record_once_in_the_end(
    streams: Streams, name: str, jobs: Path
) -> None:
    assert 0 < len(values(streams, "replayed")) < COUNT
    wanted = {"url": streams.server.url, "stream": name, "minPartitions": "2"}
    done = replay(streams.spark, wanted, "replayed", "again")
    # Rounds as they were begun, whatever this run would have cut.
    assert done.rounds > 1
    assert values(streams, "replayed") == values(streams, name)
    # Under another name it is another replay, which nothing keeps from doubling.
    replay(streams.spark, wanted, "replayed", "other", where=f"offset < {COUNT // 2}")
    assert len(values(streams, "replayed")) == COUNT + COUNT // 2


@pytest.mark.timeout(300 + 300 * KILLS)
def test_a_killed_import_writes_each_row_once_in_the_end(streams: Streams, jobs: Path) -> None:
    assert 0 < len(values(streams, "imported")) < COUNT
    files, url = str(jobs / "files"), streams.server.url
    done = import_parquet(streams.spark, files, url, "imported", "first")
    # Rounds as they were begun, whatever this run would have cut.
    assert done.rounds > 1
    assert values(streams, "imported") == wide(0, COUNT)["value"].to_pylist()
    # Under another name it is another import, which nothing keeps from doubling.
    import_parquet(streams.spark, f"{files}/0.parquet", url, "imported", "other")
    assert len(values(streams, "imported")) == COUNT + 1_000


@pytest.mark.timeout(300 + 300 * KILLS)
def test_a_killed_verification_tells_what_one_run_would_have_told(
    streams: Streams, damaged: str, jobs: Path, tmp_path: Path
) -> None:
    assert 0 < len(list((jobs / "report/fragments").iterdir())) < FRAGMENTS
    assert not (jobs / "report/report.json").exists()
    wanted = {"url": streams.server.url, "stream": damaged}
    found = verify(streams.spark, wanted, str(jobs / "report"))
    at_once = verify(streams.spark, wanted, str(tmp_path / "report"))
    assert found == at_once
    assert not found.sound
    assert report_of(jobs / "report") == report_of(tmp_path / "report")
    with pytest.raises(InvalidRequest, match="report is done"):
        verify(streams.spark, wanted, str(jobs / "report"))


def report_of(directory: Path) -> tuple[str, list[Any]]:
    fragments = pq.read_table(directory / "fragments").sort_by("first_offset")
    return (directory / "report.json").read_text(), fragments.to_pylist()


def values(streams: Streams, name: str) -> list[bytes]:
    table = pa.concat_tables([page.table for page in streams.client.arrow_pages(name, 0)])
    found: Any = table["value"].to_pylist()
    return list(found)
