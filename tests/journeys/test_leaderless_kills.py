"""A writer of leaderless streams that dies between two steps of a flush: each append is whole or absent.

The fault points of its way are armed in a real all-in-one, as tests/journeys/test_crash_windows.py arms
those of the others; the exit code proves that the process died where it should. Afterwards a repeat
gets the offsets of what is stored, and is stored if that is not. Each death is a start of everything
and a wait of the new writer, some five seconds together.
"""

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import httpx
import pytest
from support.ports import lasting_ports
from support.server import AllInOne
from support.waiting import until

from bottomless_server.runtime.base.fault_points import POINTS

COMMIT_STREAMS: Final = 2
"""Streams of one EXEC: a flush of more takes several."""
SETTINGS = {
    "BOTTOMLESS_FAULT_POINTS": "1",
    "BOTTOMLESS_INGEST_WAL_LINGER_MS": "20",
    "BOTTOMLESS_INGEST_WAL_NOTE_MS": "100",
    "BOTTOMLESS_INGEST_WAL_COMMIT_STREAMS": str(COMMIT_STREAMS),
}
AFTER_PUT, AFTER_EXEC = "ingest.wal.after-put", "ingest.wal.after-exec"

_numbers = itertools.count(1)


def test_there_is_a_journey_for_every_point_of_a_flush() -> None:
    assert {point for point in POINTS if point.startswith("ingest.wal.")} == {AFTER_PUT, AFTER_EXEC}


class Driven:
    """A stream and its strict producer, who says again what he heard nothing of."""

    def __init__(self, server: AllInOne) -> None:
        self.server = server
        self.path = f"/v1/streams/killed-{next(_numbers)}"
        created = httpx.put(server.url + self.path, json={"profile": "leaderless"}, timeout=30)
        assert created.status_code == 201, created.text

    def offer(self, number: int, values: Sequence[str]) -> httpx.Response | None:
        """Append under this number; None where the process died meanwhile."""
        headers = {"producer-id": "p", "producer-seq": str(number)}
        body = {"records": [{"value": value} for value in values]}
        try:
            return httpx.post(
                f"{self.server.url}{self.path}/records", json=body, headers=headers, timeout=60
            )
        except httpx.TransportError:
            return None

    def append(self, number: int, values: Sequence[str]) -> tuple[int, int]:
        """Where the records are, and how many of them were stored before."""

        def stored() -> httpx.Response | None:
            answer = self.offer(number, values)
            if answer is not None and answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
                return None
            return answer

        answer = until(stored, what="an append")
        assert answer.status_code == 200, answer.text
        return answer.json()["first_offset"], answer.json()["duplicates"]

    def values(self) -> list[str]:
        """All that is stored; offsets have no hole."""
        page = httpx.get(f"{self.server.url}{self.path}/records?offset=0&limit=100", timeout=30)
        assert page.status_code == 200, page.text
        records = page.json()["records"]
        assert [record["offset"] for record in records] == [*range(len(records))]
        return [record["value"] for record in records]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AllInOne]:
    directory = tmp_path_factory.mktemp("killed") / "data"
    with AllInOne(directory, SETTINGS, *lasting_ports(1)) as server:
        yield server


@pytest.fixture
def server(running: AllInOne) -> AllInOne:
    """Alive, also where the test before this one was not."""
    if running.is_dead:
        running.wait_dead()
    running.start()
    return running


def test_what_was_put_and_not_committed_is_nowhere_and_takes_no_offset(server: AllInOne) -> None:
    """L1."""
    stream = Driven(server)
    assert stream.append(0, ["a"]) == (0, 0)
    server.arm(AFTER_PUT)
    assert stream.offer(1, ["b", "c"]) is None
    server.revive()

    assert stream.values() == ["a"]
    assert stream.append(1, ["b", "c"]) == (1, 0)
    assert stream.values() == ["a", "b", "c"]


def test_what_was_committed_and_not_answered_is_there_once(server: AllInOne) -> None:
    """L2."""
    stream = Driven(server)
    assert stream.append(0, ["a"]) == (0, 0)
    server.arm(AFTER_EXEC)
    assert stream.offer(1, ["b", "c"]) is None
    server.revive()

    assert stream.values() == ["a", "b", "c"]
    assert stream.append(1, ["b", "c"]) == (1, 2)
    assert stream.append(3, ["d"]) == (3, 0)
    assert stream.values() == ["a", "b", "c", "d"]


def test_what_was_answered_is_there_once(server: AllInOne) -> None:
    """L3."""
    stream = Driven(server)
    assert stream.append(0, ["a", "b"]) == (0, 0)
    server.kill()
    server.start()

    assert stream.values() == ["a", "b"]
    assert stream.append(0, ["a", "b"]) == (0, 2)
    assert stream.append(2, ["c"]) == (2, 0)
    assert stream.values() == ["a", "b", "c"]


def test_of_a_flush_that_takes_several_commits_each_append_is_whole_or_absent(
    server: AllInOne,
) -> None:
    """L4. Nobody is answered before the first commit, and the process dies after it."""
    streams = [Driven(server) for _ in range(4 * COMMIT_STREAMS)]
    records = [f"{number}" for number in range(10)]
    server.arm(AFTER_EXEC)
    with ThreadPoolExecutor(len(streams)) as clients:
        told = list(clients.map(lambda stream: stream.offer(0, records), streams))
    assert told == [None] * len(streams)
    server.revive()

    found = [stream.values() for stream in streams]
    whole = [one == records for one in found]
    assert all(one in ([], records) for one in found)
    assert 1 <= sum(whole) <= COMMIT_STREAMS
    again = [stream.append(0, records) for stream in streams]
    assert again == [(0, len(records) if stored else 0) for stored in whole]
    assert [stream.values() for stream in streams] == [records] * len(streams)
