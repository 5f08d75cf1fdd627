"""Jobs that are killed at any moment and started again: each row is there once.

A job runs as a program of its own, `python -m bottomless.spark.<job>`, and dies by SIGKILL in
the middle of its rounds; the next run is that of somebody else, in the session of the tests.
BOTTOMLESS_TEST_KILLS says how many die one after the other before one may end.
"""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from support.server import AllInOne
from support.spark_session import Streams, spark
from support.waiting import until

from bottomless.client import Client
from bottomless.errors import Unavailable, WrongOffset
from bottomless.spark.jobs import export, replay
from bottomless.spark.jobs.delta_output import DeltaOutput
from bottomless.spark.jobs.parquet_output import ParquetOutput

KILLS: Final = int(os.environ.get("BOTTOMLESS_TEST_KILLS", "1"))
SEED: Final = int(os.environ.get("BOTTOMLESS_TEST_SEED", "0")) or random.randrange(2**32)
COUNT: Final = 9_000
ROUND: Final = 40_000
"""Bytes of a round: some twenty of them."""
START_SECONDS: Final = 240

__all__ = ["spark"]

_numbers = itertools.count()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AllInOne]:
    with AllInOne(tmp_path_factory.mktemp("kills") / "data") as server:
        yield server


@pytest.fixture
def streams(running: AllInOne, spark: SparkSession) -> Iterator[Streams]:
    with Client(running.url) as client:
        yield Streams(client, spark, running)


@pytest.fixture
def name(streams: Streams) -> str:
    """A stream of several fragments and a tail, whose values are their offsets."""
    made = f"kill-{next(_numbers)}"
    streams.client.create_stream(made, {"fragment": {"target_bytes": 64 * 1024, "max_age_ms": 200}})
    for start in range(0, COUNT, 1_000):
        values = [b"%d %s" % (number, b"x" * 70) for number in range(start, start + 1_000)]
        streams.client.append_arrow(made, pa.table({"value": pa.array(values, pa.binary())}))
    streams.client.wait_until_stored(made, timeout_seconds=30)
    return made


def killed(job: list[str], may_die: Callable[[], bool], pause: float) -> None:
    """Run a job as a program of its own and kill it, some time after it may die."""
    process = subprocess.Popen(
        [sys.executable, "-m", *job],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        until(lambda: may_die() or process.poll() is not None, START_SECONDS, "its first rounds")
        assert process.poll() is None, process.stderr and process.stderr.read()[-3000:]
        with suppress(subprocess.TimeoutExpired):
            process.wait(pause)
        # The driver alone: what it has started may go on for a moment, as on a cluster.
        process.kill()
        assert process.wait(30) == -signal.SIGKILL, "it was done before"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)
        assert process.stderr is not None
        process.stderr.close()


def offsets_in(output: str, form: str) -> list[int]:
    files = DeltaTable(output).file_uris() if form == "delta" else output
    found: Any = ds.dataset(files).to_table(columns=["offset"])["offset"].to_pylist()
    return sorted(found)


def plans(output: Path, form: str) -> int:
    log = output / ("_delta_log" if form == "delta" else "_bottomless")
    return len(list(log.glob("*.json")))


def begun(output: Path, form: str, count: int) -> bool:
    return plans(output, form) > count


@pytest.mark.timeout(300 + 300 * KILLS)
@pytest.mark.parametrize("form", ["parquet", "delta"] if KILLS > 1 else ["parquet"])
def test_a_killed_export_has_each_row_once_in_the_end(
    streams: Streams, name: str, form: str, tmp_path: Path
) -> None:
    print(f"BOTTOMLESS_TEST_SEED={SEED}")
    chance = random.Random(SEED)
    output = tmp_path / "out"
    job = ["bottomless.spark.export", name, str(output), "--url", streams.server.url]
    for _ in range(KILLS):
        before = plans(output, form)
        killed(
            [*job, "--format", form, "--round-bytes", str(ROUND)],
            partial(begun, output, form, before + 1),
            chance.uniform(0, 0.5),
        )
    assert 1 < plans(output, form) < 20
    wanted = {"url": streams.server.url, "stream": name, "minPartitions": "3"}
    export(streams.spark, wanted, str(output), form=form)
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
        patch.setattr(DeltaOutput, "_position", lambda *_: None)
        patch.setattr(DeltaOutput, "_transactions", lambda *_: [])
        late(str(tmp_path / "unguarded"))
    assert len(offsets_in(str(tmp_path / "unguarded"), "delta")) == 2 * COUNT


@pytest.mark.timeout(300 + 300 * KILLS)
def test_a_killed_replay_writes_each_record_once_in_the_end(streams: Streams, name: str) -> None:
    print(f"BOTTOMLESS_TEST_SEED={SEED}")
    chance = random.Random(SEED)
    target = f"{name}-again"
    streams.client.create_stream(target)

    def written() -> int:
        return streams.client.offsets(target).next_offset

    def grown(before: int) -> bool:
        return written() > before

    job = ["bottomless.spark.replay", name, target, "--name", "again", "--url", streams.server.url]
    for _ in range(KILLS):
        before = written()
        killed(
            [*job, "--round-bytes", str(ROUND)],
            partial(grown, before),
            chance.uniform(0, 0.5),
        )
    assert 0 < written() < COUNT
    wanted = {"url": streams.server.url, "stream": name}
    done = replay(streams.spark, wanted, target, "again")
    # Rounds as they were begun, whatever this run would have cut.
    assert done.rounds > 1
    assert values(streams, target) == values(streams, name)
    # Under another name it is another replay, which nothing keeps from doubling.
    replay(streams.spark, wanted, target, "other", where=f"offset < {COUNT // 2}")
    assert written() == COUNT + COUNT // 2


def values(streams: Streams, name: str) -> list[bytes]:
    table = pa.concat_tables([page.table for page in streams.client.arrow_pages(name, 0)])
    found: Any = table["value"].to_pylist()
    return list(found)
