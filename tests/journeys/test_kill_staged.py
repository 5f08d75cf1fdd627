"""A process that dies between staging and commit, and inside a commit: each record once, or none.

The fault points of ingest are armed in a real all-in-one, as tests/journeys/test_crash_windows.py
arms those of the others; the exit code proves that the process died where it should.
Each death is a start of everything, so here every point has one. BOTTOMLESS_TEST_KILLS, with
any number, adds deaths at each part and plain kills.
"""

import itertools
import os
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from support.ports import lasting_ports
from support.server import AllInOne

from bottomless.client.tables import frames_body
from bottomless.model.rows import Rows
from bottomless_server.runtime.base.fault_points import POINTS

SETTINGS = {"BOTTOMLESS_FAULT_POINTS": "1", "BOTTOMLESS_INGEST_GROUP_BYTES_MAX": "65536"}
LARGE = b"x" * 40_000
"""Two of them do not go into one part."""
STAGED = "application/vnd.bottomless.staged+json"
WINDOWS = (
    "ingest.staged.after-sync",
    "ingest.commit.after-plan",
    "ingest.commit.after-part",
    "ingest.commit.after-append",
)

_numbers = itertools.count()


def test_there_is_a_journey_for_every_point_of_ingest() -> None:
    # test_leaderless_kills.py, test_super_produce.py; unit/ingest/test_followed_stream.py
    elsewhere = ("ingest.wal.", "ingest.super.", "ingest.replica.")
    others = {point for point in POINTS if point.startswith(elsewhere)}
    assert set(WINDOWS) == {point for point in POINTS if point.startswith("ingest.")} - others


class Sink:
    """Stages and commits to one stream, and finds out what became of it."""

    def __init__(self, server: AllInOne) -> None:
        self.server = server
        self.path = f"/v1/streams/staged-{next(_numbers)}"
        assert self.ask("PUT", self.path).status_code == 201

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        return httpx.request(method, self.server.url + path, timeout=30, **options)

    def stage(self, *values: bytes) -> str:
        answer = self.ask(
            "POST",
            f"{self.path}/staged",
            content=frames_body(Rows([*values], [0] * len(values))),
            headers={"content-type": "application/vnd.bottomless.batches"},
        )
        assert answer.status_code == 201, answer.text
        return str(answer.json()["staged_id"])

    def commit(self, *staged_ids: str, number: int = 0) -> httpx.Response:
        named = {"content-type": STAGED, "producer-id": "job", "txn-number": str(number)}
        return self.ask(
            "POST", f"{self.path}/records", json={"staged": [*staged_ids]}, headers=named
        )

    def values(self) -> list[bytes]:
        page = self.ask("GET", f"{self.path}/records?offset=first&max_bytes=16777216").json()
        return [record["value"].encode() for record in page["records"]]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AllInOne]:
    directory = tmp_path_factory.mktemp("staged") / "data"
    with AllInOne(directory, SETTINGS, *lasting_ports(1)) as server:
        yield server


@pytest.fixture
def sink(running: AllInOne) -> Sink:
    """Of a server that is alive, also where the test before this one was not."""
    if running.is_dead:
        running.wait_dead()
    running.start()
    return Sink(running)


long_form = pytest.mark.skipif(
    "BOTTOMLESS_TEST_KILLS" not in os.environ, reason="long form, with BOTTOMLESS_TEST_KILLS"
)


@long_form
def test_what_was_staged_before_a_kill_is_committed_after_it(sink: Sink) -> None:
    staged = [sink.stage(b"a", b"b"), sink.stage(b"c")]
    sink.server.kill()
    sink.server.start()

    assert sink.values() == []
    assert sink.commit(*staged).status_code == 200
    sink.server.kill()
    sink.server.start()

    again = sink.commit(*staged)
    assert again.headers["idempotent-replayed"] == "true"
    assert sink.values() == [b"a", b"b", b"c"]


def test_a_batch_whose_id_was_never_told_is_not_in_the_way_of_those_that_were(
    sink: Sink,
) -> None:
    staged = [sink.stage(b"a", b"b"), sink.stage(b"c")]
    sink.server.arm("ingest.staged.after-sync")
    with pytest.raises(httpx.TransportError):
        sink.stage(b"d")
    sink.server.revive()

    assert sink.values() == []
    assert sink.commit(*staged, sink.stage(b"d")).status_code == 200
    assert sink.values() == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize(
    ("point", "count", "appended"),
    [
        ("ingest.commit.after-plan", 1, 0),
        ("ingest.commit.after-part", 1, 1),
        pytest.param("ingest.commit.after-part", 2, 2, marks=long_form),
        pytest.param("ingest.commit.after-append", 1, 3, marks=long_form),
    ],
)
def test_a_commit_that_died_is_finished_once_by_a_repeat_in_other_pieces(
    sink: Sink, point: str, count: int, appended: int
) -> None:
    records = [b"%d" % number + LARGE for number in range(3)]
    staged = [sink.stage(record) for record in records]
    sink.server.arm(point, count=count)
    with pytest.raises(httpx.TransportError):
        sink.commit(*staged)
    sink.server.revive()
    assert [value[:1] for value in sink.values()] == [b"0", b"1", b"2"][:appended]

    # As a task that Spark runs again: the same records, dealt out differently.
    answer = sink.commit(sink.stage(records[2], records[0]), sink.stage(records[1]))

    assert answer.status_code == 200, answer.text
    assert sorted(value[:1] for value in sink.values()) == [b"0", b"1", b"2"]
    assert sink.commit(sink.stage(b"next"), number=100).status_code == 200


def test_a_commit_of_one_part_that_died_before_its_answer_is_a_repeat(sink: Sink) -> None:
    staged = sink.stage(b"a")
    sink.server.arm("ingest.commit.after-append")
    with pytest.raises(httpx.TransportError):
        sink.commit(staged)
    sink.server.revive()

    assert sink.commit(sink.stage(b"a")).json()["count"] == 0
    assert sink.values() == [b"a"]
