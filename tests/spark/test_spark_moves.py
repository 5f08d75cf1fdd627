"""TI3 in a JVM: jobs of Spark read everything once while what they have planned moves between drives."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession
from support.served import PATIENT
from support.server import AllInOne
from support.spark_session import SETTINGS, Streams, after_planning, options, rows_of
from support.tiered import BY_HAND, ask
from support.waiting import until

from bottomless.client import Client
from bottomless.spark.jobs import export, verify

NAME: Final = "moving"
COUNT: Final = 20
FRAGMENTS: Final = 3
ALL: Final = FRAGMENTS * COUNT


class Moving:
    """A stream of some fragments on one of two directories, and the sources of its moves go at once."""

    def __init__(self, streams: Streams, http: httpx.Client, cold: Path) -> None:
        self.streams = streams
        self._http = http
        self._places = {"default": streams.server.objects, "cold": cold}
        ask(http, "POST", "/v1/admin/drives", {"name": "cold"})
        streams.client.create_stream(NAME, {"fragment": {"max_age_ms": 100}})
        for _ in range(FRAGMENTS):
            streams.produce(NAME, COUNT)
            streams.client.wait_until_stored(NAME, timeout_seconds=240)

    def move(self, drive: str) -> None:
        """Returns when the manifest names all fragments on a drive."""
        body = {"from_offset": 0, "to_offset": ALL, "drive": drive}
        ask(self._http, "POST", f"/v1/streams/{NAME}/moves", body)
        until(lambda: self._named() == {str(self._places[drive])}, what=f"fragments on {drive}")

    def _named(self) -> set[str]:
        found = ask(self._http, "GET", f"/v1/streams/{NAME}/fragments?locations=true").json()
        return {item["store"]["root"] for item in found["fragments"]}

    def count(self, drive: str) -> int:
        """Fragments that lie on a drive, named or not."""
        return len([*self._places[drive].rglob("data/*.fragment")])

    def wait_gone(self, drive: str) -> None:
        """Returns when nobody holds what was moved away from a drive."""
        until(lambda: self.count(drive) == 0, what=f"the sources on {drive} to go")


@pytest.fixture
def moving(spark: SparkSession, tmp_path: Path) -> Iterator[Moving]:
    cold = tmp_path / "cold"
    settings = {
        **SETTINGS,
        **PATIENT,
        **BY_HAND,
        "BOTTOMLESS_UPLOADER_MOVE_INTERVAL_MS": "100",
        "BOTTOMLESS_DRIVES": json.dumps({"cold": {"number": 1, "url": f"file://{cold}"}}),
    }
    with (
        AllInOne(tmp_path / "data", settings) as server,
        Client(server.url) as client,
        server.client() as http,
    ):
        yield Moving(Streams(client, spark, server), http, cold)


def test_jobs_read_everything_once_while_their_fragments_move_between_drives(
    moving: Moving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = moving.streams
    before = streams.rows_over_http(NAME)
    assert len(before) == ALL

    def moves_to(drive: str) -> Any:
        return lambda: moving.move(drive)

    with monkeypatch.context() as patch:
        after_planning(patch, "export", moves_to("cold"))
        done = export(streams.spark, options(streams, NAME), str(tmp_path / "out"))
    assert done.rows == ALL
    exported: Any = ds.dataset(tmp_path / "out", format="parquet").to_table()["offset"].to_pylist()
    assert sorted(exported) == list(range(ALL))
    moving.wait_gone("default")

    with monkeypatch.context() as patch:
        after_planning(patch, "verify", moves_to("default"))
        verdict = verify(streams.spark, options(streams, NAME))
    assert (verdict.sound, verdict.fragments) == (True, FRAGMENTS)
    moving.wait_gone("cold")

    frame = streams.load(NAME)
    assert frame.rdd.getNumPartitions() >= 1
    moving.move("cold")
    assert moving.count("default") == FRAGMENTS, "the job that has planned them holds them"
    assert rows_of(frame) == before
    assert rows_of(streams.load(NAME)) == before
