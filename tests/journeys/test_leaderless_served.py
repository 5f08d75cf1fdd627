"""A leaderless stream from its creation to its deletion, over the real program.

Once with all services in one process, once with each as a process of its own: what one of them
forgets to hand to another shows only there. Some seconds each.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from support.deployment import Deployment
from support.ports import lasting_ports
from support.separate_processes import four_processes
from support.server import AllInOne
from support.waiting import until

STREAM = "/v1/streams/shared"
CONFIG = {"profile": "leaderless", "fragment": {"max_age_ms": 10_000}}
SETTINGS = {
    "BOTTOMLESS_INGEST_WAL_LINGER_MS": "10",
    "BOTTOMLESS_INGEST_WAL_NOTE_MS": "100",
    "BOTTOMLESS_MANIFEST_WAL_VACUUM_MS": "100",
    "BOTTOMLESS_MANIFEST_DELETE_INTERVAL_MS": "100",
    # Who takes over what a killed process held waits for it.
    "BOTTOMLESS_UPLOADER_WAL_LEASE_MS": "1000",
    "BOTTOMLESS_INGEST_LEASE_MS": "2000",
    "BOTTOMLESS_INGEST_LEASE_MARGIN_MS": "200",
    "BOTTOMLESS_INGEST_RENEW_MS": "500",
}
DEPLOYMENTS: Final[dict[str, Callable[[Path], AbstractContextManager[Deployment]]]] = {
    "all in one": lambda directory: AllInOne(directory / "data", SETTINGS, *lasting_ports(1)),
    "four processes": lambda directory: four_processes(directory, SETTINGS),
}
OFFSETS = ("first_offset", "last_offset", "next_offset", "timestamp")
WAIT_MS = 30_000
PATIENCE_SECONDS = 240
"""Less than a long poll waits: who is not woken fails."""


@pytest.fixture(params=DEPLOYMENTS)
def deployment(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Deployment]:
    with DEPLOYMENTS[request.param](tmp_path) as running:
        yield running


def append(client: httpx.Client, number: int, *values: str) -> dict[str, Any]:
    """Append as a strict producer, whose number is the offset; 503 is said again, as clients do."""
    headers = {"producer-id": "p", "producer-seq": str(number)}
    body = {"records": [{"value": value} for value in values]}

    def offered() -> dict[str, Any] | None:
        answer = client.post(f"{STREAM}/records", json=body, headers=headers)
        if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
            return None
        assert answer.status_code == httpx.codes.OK, answer.text
        said: dict[str, Any] = answer.json()
        return said

    return until(offered, what=f"append {number}")


def read(client: httpx.Client, offset: int = 0, **query: Any) -> list[tuple[int, str]]:
    """All from an offset on; a page may end where fragments do, if what comes after is slow."""
    found: list[tuple[int, str]] = []
    while True:
        asked = {"offset": offset, **query}
        answer = client.get(f"{STREAM}/records", params=asked, timeout=PATIENCE_SECONDS)
        assert answer.status_code == httpx.codes.OK, answer.text
        page = answer.json()
        found += [(record["offset"], record["value"]) for record in page["records"]]
        if page["up_to_date"]:
            return found
        offset = page["next_offset"]


def described(client: httpx.Client) -> dict[str, Any]:
    shown: dict[str, Any] = client.get(STREAM).raise_for_status().json()
    return shown


def compacted(client: httpx.Client, deployment: Deployment, next_offset: int) -> bool:
    """Ask for a round; whether everything below this offset is in fragments, and out of the tail."""
    with deployment.internal("uploader") as uploader:
        uploader.post("/internal/v1/compact").raise_for_status()
    tail = described(client)["tail"]
    return (tail["entries"], tail["first_offset"]) == (0, next_offset)


def test_a_leaderless_stream_lives_through_deaths_and_compaction(deployment: Deployment) -> None:
    with deployment.client() as client:
        created = client.put(STREAM, json=CONFIG)
        assert created.status_code == httpx.codes.CREATED, created.text
        assert described(client)["profile"] == "leaderless"

        first = append(client, 0, "a", "b")
        again = append(client, 0, "a", "b")
        assert first["durability"] == "object-store"
        assert [first[name] for name in OFFSETS] == [again[name] for name in OFFSETS]
        assert (first["first_offset"], again["duplicates"]) == (0, 2)
        assert read(client) == [(0, "a"), (1, "b")]

        with ThreadPoolExecutor(1) as beside:
            waiting = beside.submit(read, client, offset=2, max_wait_ms=WAIT_MS)
            append(client, 2, "c")
            assert waiting.result() == [(2, "c")]
        expected = [(0, "a"), (1, "b"), (2, "c")]

        # Nothing of it is on the disk of the node, and a new writer goes on.
        deployment.kill()
        deployment.start()
        assert read(client) == expected
        again = append(client, 2, "c")
        assert (again["first_offset"], again["duplicates"]) == (2, 1)
        assert append(client, 3, "d")["first_offset"] == 3
        expected += [(3, "d")]
        assert read(client) == expected

        until(lambda: compacted(client, deployment, 4), what="everything in fragments")
        assert described(client)["fragment_count"] >= 1
        assert read(client) == expected
        assert append(client, 4, "e")["first_offset"] == 4
        expected += [(4, "e")]

        deployment.kill()
        deployment.start()
        assert read(client) == expected
        # What the producer said last was compacted with its records, and is known all the same.
        assert append(client, 5, "f")["first_offset"] == 5
        assert read(client, offset=5) == [(5, "f")]

        held = [one["held"] for one in wal(client)["instances"] if one["held"] is not None]
        assert created.json()["stream_id"] in [name for one in held for name in one["stream_ids"]]

        gone = client.delete(STREAM)
        assert gone.status_code == httpx.codes.ACCEPTED, gone.text
        for answer in (
            client.get(f"{STREAM}/records", params={"offset": 0}),
            client.post(f"{STREAM}/records", json={"records": [{"value": "g"}]}),
        ):
            assert (answer.status_code, answer.json()["code"]) == (404, "stream-not-found")
        # Objects of writers that died go whole, those of the living one but for its last notes.
        until(lambda: nothing_is_held(client), what="WAL objects deleted")
        created = client.put(STREAM, json=CONFIG)
        assert created.status_code == httpx.codes.CREATED, created.text
        assert read(client) == []


def wal(client: httpx.Client) -> dict[str, Any]:
    report: dict[str, Any] = client.get("/v1/admin/wal").raise_for_status().json()
    return report


def nothing_is_held(client: httpx.Client) -> bool:
    report = wal(client)
    return report["objects"] <= 1 and [one["state"] for one in report["instances"]] == ["live"]
