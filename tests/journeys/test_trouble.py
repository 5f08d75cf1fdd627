"""Trouble behind the service: what users see, and what is there afterwards."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import psutil
from support.server import STOP_SECONDS, AllInOne
from support.waiting import until

STREAM = "/v1/streams/trouble"
QUICK = {"fragment": {"target_bytes": 65_536, "max_age_ms": 200}}


def append(client: httpx.Client, *values: str) -> httpx.Response:
    return client.post(
        f"{STREAM}/records", json={"records": [{"value": value} for value in values]}
    )


def values_of(client: httpx.Client) -> list[str]:
    page = client.get(f"{STREAM}/records", params={"offset": "first", "limit": 10_000})
    assert page.status_code == httpx.codes.OK, page.text
    return [record["value"] for record in page.json()["records"]]


def uploaded(client: httpx.Client) -> bool:
    bounds = client.get(f"{STREAM}/offsets").json()
    return bool(bounds["object_store_next_offset"] == bounds["next_offset"])


def test_what_was_acknowledged_is_there_after_a_clean_stop_and_a_start(server: AllInOne) -> None:
    with server.client() as client:
        client.put(STREAM, json=QUICK).raise_for_status()
        append(client, "one", "two").raise_for_status()

    assert server.stop(signal.SIGTERM) == 0
    server.start()

    with server.client() as client:
        assert values_of(client) == ["one", "two"]
        assert append(client, "three").json()["first_offset"] == 2
    assert server.stop(signal.SIGINT) == 0


def test_local_files_go_once_they_are_published_and_reads_go_on(server: AllInOne) -> None:
    with server.client() as client:
        client.put(STREAM, json=QUICK).raise_for_status()
        append(client, "before").raise_for_status()
        until(lambda: uploaded(client), what="the tail to be uploaded")
    server.kill()
    server.start()
    with server.client() as client:
        append(client, "after").raise_for_status()
        assert values_of(client) == ["before", "after"]
        first = client.get(f"{STREAM}/records", params={"offset": 0, "limit": 1}).json()
        assert first["records"][0]["value"] == "before"


def test_a_store_that_is_away_does_not_stop_producers(server: AllInOne) -> None:
    away = server.data_dir / "objects-away"
    with server.client() as client:
        client.put(STREAM, json=QUICK).raise_for_status()
        append(client, "0").raise_for_status()
        until(lambda: uploaded(client), what="the first fragment")
        server.objects.rename(away)
        server.objects.write_text("in the way")

        for number in range(1, 20):
            append(client, str(number)).raise_for_status()
        assert not uploaded(client)
        tail = client.get(f"{STREAM}/records", params={"offset": "tail:3"})
        assert [record["value"] for record in tail.json()["records"]] == ["17", "18", "19"]

        server.objects.unlink()
        away.rename(server.objects)
        until(lambda: uploaded(client), what="the tail to follow")
        assert values_of(client) == [str(number) for number in range(20)]


def test_coordination_that_is_away_is_an_answer_and_loses_nothing(server: AllInOne) -> None:
    with server.client() as client:
        client.put(STREAM, json=QUICK).raise_for_status()
        append(client, "kept").raise_for_status()
        valkey = [
            child
            for child in psutil.Process(server.pid).children(recursive=True)
            if "valkey" in child.name()
        ]
        assert len(valkey) == 1
        valkey[0].kill()

        refused = client.put("/v1/streams/another")
        assert refused.status_code == httpx.codes.SERVICE_UNAVAILABLE
        problem = refused.json()
        assert problem["code"] == "coordination-unavailable"
        assert problem["retryable"] is True
        assert problem["outcome"] in {"none", "unknown"}

        def stopped() -> httpx.Response | None:
            answer = append(client, "perhaps")
            return answer if answer.status_code != httpx.codes.OK else None

        # The lease outlives its store by some seconds; then nothing more is acknowledged.
        answer = until(stopped, seconds=30, what="the lease to run out")
        assert answer.status_code == httpx.codes.SERVICE_UNAVAILABLE
        assert answer.json()["outcome"] in {"none", "unknown"}
    server.kill()
    server.start()
    with server.client() as client:
        kept = values_of(client)
        assert kept[0] == "kept"
        assert set(kept[1:]) <= {"perhaps"}


def test_a_second_process_on_the_same_directory_is_refused(server: AllInOne) -> None:
    program = Path(sys.executable).parent / "bottomless"
    second = subprocess.run(
        [program, "serve", "--data-dir", server.data_dir, "--port", "0"],
        capture_output=True,
        text=True,
        timeout=STOP_SECONDS,
        env=dict(os.environ),
        check=False,
    )
    assert second.returncode != 0
    assert second.stdout == ""
    assert "Traceback" not in second.stderr
    assert "another process" in second.stderr
