"""Trouble behind the service: what users see, and what is there afterwards."""

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest
from support.nursery import WHOLE_END
from support.server import STOP_SECONDS, AllInOne
from support.waiting import until

STREAM = "/v1/streams/trouble"
PROMPT_SECONDS = 25
"""Three quarters of what a stop may take, which is what it takes where something is waited for in
vain; on a machine of its own a prompt one is less than a second."""
QUICK = {"fragment": {"target_bytes": 65_536, "max_age_ms": 200}}


def append(client: httpx.Client, *values: str) -> httpx.Response:
    return client.post(
        f"{STREAM}/records", json={"records": [{"value": value} for value in values]}
    )


def values_of(client: httpx.Client) -> list[str]:
    """All that is there. On a busy machine a lease may run out at any moment, which is an answer: none,
    or a page that does not know the end."""

    def page() -> httpx.Response | None:
        answer = client.get(f"{STREAM}/records", params={"offset": "first", "limit": 10_000})
        if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE and answer.json()["retryable"]:
            return None
        assert answer.status_code == httpx.codes.OK, answer.text
        return answer if answer.json()["up_to_date"] else None

    return [record["value"] for record in until(page, what="a page").json()["records"]]


def uploaded(client: httpx.Client) -> bool:
    answer = client.get(f"{STREAM}/offsets")
    if answer.status_code != httpx.codes.OK:
        return False
    bounds = answer.json()
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


def valkey_of(server: AllInOne) -> psutil.Process:
    children = psutil.Process(server.pid).children(recursive=True)
    (valkey,) = [child for child in children if "valkey" in child.name()]
    return valkey


def test_coordination_that_is_away_is_an_answer_and_loses_nothing(server: AllInOne) -> None:
    """H17: appends go on while the lease holds, then nothing is acknowledged; no offset twice."""
    acknowledged: dict[int, str] = {}

    def sent(client: httpx.Client, value: str) -> httpx.Response:
        answer = append(client, value)
        if answer.status_code == httpx.codes.OK:
            offset = answer.json()["first_offset"]
            assert acknowledged.setdefault(offset, value) is value, "an offset was given twice"
        return answer

    with server.client() as client, ThreadPoolExecutor(1) as elsewhere:
        client.put(STREAM, json=QUICK).raise_for_status()
        sent(client, "kept").raise_for_status()
        valkey = valkey_of(server)
        valkey.suspend()

        creating = elsewhere.submit(httpx.put, f"{server.url}/v1/streams/another", timeout=30)
        assert client.get("/livez").status_code == httpx.codes.OK
        count = itertools.count()

        def stopped() -> httpx.Response | None:
            answer = sent(client, f"perhaps {next(count)}")
            return answer if answer.status_code != httpx.codes.OK else None

        # The lease outlives its store by some seconds; then nothing more is acknowledged.
        answer = until(stopped, what="the lease to run out")
        assert answer.status_code == httpx.codes.SERVICE_UNAVAILABLE
        assert answer.json()["outcome"] in {"none", "unknown"}
        again = sent(client, "refused")
        assert again.status_code == httpx.codes.SERVICE_UNAVAILABLE
        assert again.json()["outcome"] == "none"
        refused = creating.result()
        assert refused.status_code == httpx.codes.SERVICE_UNAVAILABLE
        problem = refused.json()
        assert problem["code"] == "coordination-unavailable"
        assert problem["retryable"] is True
        assert problem["outcome"] in {"none", "unknown"}
        assert int(refused.headers["retry-after"]) >= 1

        valkey.resume()
        until(lambda: sent(client, "after").status_code == httpx.codes.OK, what="appends to go on")
        kept = values_of(client)
    assert (kept[0], kept[-1]) == ("kept", "after")
    assert "refused" not in kept
    # One append's outcome may be unknown: it met the end of the lease.
    assert len(kept) - len(acknowledged) in (0, 1)
    assert {offset: kept[offset] for offset in acknowledged} == acknowledged


def test_coordination_that_dies_is_started_again_and_nothing_is_lost(server: AllInOne) -> None:
    """H17: killed; what is created and appended afterwards follows what was."""
    acknowledged: list[str] = []

    def created(client: httpx.Client) -> bool:
        # Whatever is said twice is the same stream.
        return client.put(f"/v1/streams/another-{len(acknowledged)}").is_success

    def sent(client: httpx.Client) -> bool:
        value = str(len(acknowledged))
        answer = append(client, value)
        if answer.status_code == httpx.codes.OK:
            acknowledged.append(value)
        return answer.status_code == httpx.codes.OK

    with server.client() as client:
        client.put(STREAM, json=QUICK).raise_for_status()
        for _ in range(3):
            until(lambda: sent(client), what="an append")
            dead = valkey_of(server)
            dead.kill()
            until(lambda: created(client), what="a stream to be created")
            assert valkey_of(server).pid != dead.pid
            until(lambda: sent(client), what="an append")
            until(lambda: uploaded(client), what="uploads to go on")
        assert values_of(client) == acknowledged
        assert client.get("/v1/streams/another-1").is_success
    assert server.stop() == 0
    assert server.log().count("it is started again") == 3


def pending(client: httpx.Client) -> None:
    """A stream whose tail is not due to be uploaded for long."""
    client.put(STREAM, json={"fragment": {"max_age_ms": 86_400_000}}).raise_for_status()
    append(client, "a").raise_for_status()


def under_load(client: httpx.Client) -> None:
    """Appends that go on until they are refused."""
    pending(client)
    stream = threading.Thread(target=_append_until_refused, args=(str(client.base_url),))
    stream.start()
    until(lambda: len(values_of(client)) > 20, what="appends to be under way")


def _append_until_refused(url: str) -> None:
    with suppress(httpx.TransportError), httpx.Client(base_url=url, timeout=30) as client:
        while append(client, "a").is_success:
            pass


def waiting_reader(client: httpx.Client) -> None:
    """A reader that waits at the tail for half a minute."""
    pending(client)
    threading.Thread(target=_wait_at_the_tail, args=(str(client.base_url),)).start()


def _wait_at_the_tail(url: str) -> None:
    with suppress(httpx.TransportError), httpx.Client(base_url=url, timeout=60) as client:
        client.get(f"{STREAM}/records", params={"offset": "next", "max_wait_ms": 30_000})


@pytest.mark.parametrize("before", [None, pending, under_load, waiting_reader])
def test_a_stop_is_prompt_and_says_nothing_of_loose_ends(
    tmp_path: Path, before: Callable[[httpx.Client], None] | None
) -> None:
    with AllInOne(tmp_path / "data", WHOLE_END) as server, server.client() as client:
        # Its connection stays open, and idle.
        assert client.get("/readyz").is_success
        if before is not None:
            before(client)
        asked_at = time.monotonic()
        assert server.stop() == 0
        took = time.monotonic() - asked_at
    assert took < PROMPT_SECONDS, server.log()
    for word in ("Unclosed", "Traceback", "never retrieved", "was destroyed", "took too long"):
        assert word not in server.log(), server.log()


def test_a_stop_before_the_start_is_done_is_clean_too(tmp_path: Path) -> None:
    server = AllInOne(tmp_path / "data", WHOLE_END)
    server.spawn()
    until((tmp_path / "data" / "lock").exists, what="the start to begin")
    asked_at = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - asked_at < PROMPT_SECONDS
    assert "Traceback" not in server.log()


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
