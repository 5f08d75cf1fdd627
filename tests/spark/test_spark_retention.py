"""Retention by age in the middle of long jobs: what they have planned is there, or they say what is
not. By trim it is in test_spark_stream.py."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import SparkSession
from support.server import AllInOne
from support.spark_session import Streams, after_planning, options
from support.waiting import until

from bottomless.client import Client
from bottomless.errors import StoreError, Unavailable
from bottomless.spark.jobs import export, verify

SMALL = {"fragment": {"max_age_ms": 100}}
COUNT = 20
FRAGMENTS = 3
KEPT = 1
"""Retention lets the last fragment be."""

_numbers = itertools.count()


@pytest.fixture
def streams(spark_server: AllInOne, spark: SparkSession) -> Iterator[Streams]:
    with Client(spark_server.url) as client:
        yield Streams(client, spark, spark_server)


class Aging:
    """Streams of some fragments; what is older than a second goes when a test wants it."""

    def __init__(self, streams: Streams, count: int) -> None:
        self._streams = streams
        self.names = [f"aging-{next(_numbers)}" for _ in range(count)]
        for name in self.names:
            streams.client.create_stream(name, SMALL)
        for _ in range(FRAGMENTS):
            for name in self.names:
                streams.produce(name, COUNT)
            for name in self.names:
                streams.client.wait_until_stored(name, timeout_seconds=240)

    def pass_time(self, name: str, *, held: bool) -> None:
        """Returns when retention has taken all but the last fragment, and, unless somebody holds
        them, the objects are gone."""
        client = self._streams.client
        client.update_stream(name, {"retention": {"max_age": "1s"}})
        gone = (FRAGMENTS - KEPT) * COUNT

        def is_due() -> bool:
            return bool(client.preview_retention(name)["would_delete"]["records"] == gone)

        until(is_due, what="what is too old")
        client.evaluate_retention(name)
        until(lambda: client.offsets(name).first_offset == gone, what="retention")
        if not held:
            objects, stream_id = self._streams.server.objects, client.offsets(name).stream_id
            fragments = f"{stream_id}/data/*.fragment"
            until(lambda: len([*objects.rglob(fragments)]) == KEPT, what="the objects to go")


def test_a_job_with_a_lease_has_all_that_it_planned(
    streams: Streams, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aging = Aging(streams, 3)
    read, exported, verified = aging.names
    frame = streams.load(read)
    assert frame.rdd.getNumPartitions() == 1
    aging.pass_time(read, held=True)
    found = [row.offset for row in frame.orderBy("offset").collect()]
    assert found == list(range(FRAGMENTS * COUNT))

    with monkeypatch.context() as patch:
        after_planning(patch, "export", lambda: aging.pass_time(exported, held=True))
        done = export(streams.spark, options(streams, exported), str(tmp_path / "out"))
    assert done.rows == FRAGMENTS * COUNT

    with monkeypatch.context() as patch:
        after_planning(patch, "verify", lambda: aging.pass_time(verified, held=True))
        verdict = verify(streams.spark, options(streams, verified))
    assert (verdict.sound, verdict.fragments) == (True, FRAGMENTS)


def test_a_batch_of_all_there_is_begins_at_what_is_there_when_it_is_planned(
    streams: Streams,
) -> None:
    """A DataFrame is made at one time and planned at another, and a trim in between took what
    nobody had named: each count under trims failed with an error that names offsets. The checks
    knew trims before a DataFrame is made, and after it is planned."""
    aging = Aging(streams, 1)
    (name,) = aging.names
    everything, named = streams.load(name), streams.load(name, startingOffsets="0")
    aging.pass_time(name, held=False)

    left = list(range((FRAGMENTS - KEPT) * COUNT, FRAGMENTS * COUNT))
    assert [row.offset for row in everything.orderBy("offset").collect()] == left
    with pytest.raises(AnalysisException, match=r"data lost.*first_offset=0"):
        named.collect()


def test_a_job_without_a_lease_says_what_it_does_not_have(
    streams: Streams, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aging = Aging(streams, 3)
    read, exported, verified = aging.names
    # Of the first object that it does not find.
    lost = rf"data lost.*first_offset=0 next_offset={COUNT}"
    frame = streams.load(read, leaseSeconds=0)
    assert frame.rdd.getNumPartitions() == 1
    aging.pass_time(read, held=False)
    with pytest.raises(PythonException, match=lost):
        frame.collect()

    wanted = options(streams, exported, leaseSeconds="0")
    with monkeypatch.context() as patch:
        after_planning(patch, "export", lambda: aging.pass_time(exported, held=False))
        with pytest.raises(Unavailable, match=lost):
            export(streams.spark, wanted, str(tmp_path / "out"))
    # And goes on when it is told to, with what is left.
    with pytest.raises(StoreError, match="data lost"):
        export(streams.spark, wanted, str(tmp_path / "out"))
    export(streams.spark, {**wanted, "failOnDataLoss": "false"}, str(tmp_path / "out"))
    rows: Any = ds.dataset(tmp_path / "out").to_table()["offset"].to_pylist()
    assert sorted(rows) == list(range((FRAGMENTS - KEPT) * COUNT, FRAGMENTS * COUNT))

    # What retention took is no fault: a verification is of what is there.
    with monkeypatch.context() as patch:
        after_planning(patch, "verify", lambda: aging.pass_time(verified, held=False))
        verdict = verify(streams.spark, options(streams, verified, leaseSeconds="0"))
    assert (verdict.sound, verdict.fragments) == (True, KEPT)
