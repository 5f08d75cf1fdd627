"""Queues as users have them: a whole server, killed and started again; streams as their targets."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.ports import lasting_ports
from support.server import AllInOne
from support.waiting import until

QUEUE = "/v1/queues/jobs"
SETTINGS = {"BOTTOMLESS_QUEUES_FILE_BYTES_MAX": "65536", "BOTTOMLESS_QUEUES_COMPACT_QUIET_MS": "0"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AllInOne]:
    (port,) = lasting_ports(1)
    with AllInOne(tmp_path / "data", SETTINGS, port) as running:
        yield running


def ask(client: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """What a request is answered that is sent until it is."""

    def answered() -> dict[str, Any] | None:
        try:
            answer = client.post(path, json=body)
        except httpx.TransportError:
            return None
        if answer.status_code >= 500:
            return None
        assert answer.status_code == 200, answer.text
        members: dict[str, Any] = answer.json()
        return members

    return until(answered, what=f"an answer of {path}")


def test_what_was_in_flight_stays_so_over_a_kill_and_comes_again(server: AllInOne) -> None:
    with server.client() as client:
        client.put(QUEUE, json={"visibility_ms": 3_600_000}).raise_for_status()
        body = {"messages": [{"value": "a"}, {"value": "b", "priority": 3}]}
        client.post(f"{QUEUE}/messages", json=body).raise_for_status()
        [first] = ask(client, f"{QUEUE}/receive", {"limit": 1})["messages"]
        assert first["value"] == "b"
    server.kill()
    server.start()
    with server.client() as client:
        [second] = ask(client, f"{QUEUE}/receive", {})["messages"]
        assert (second["value"], second["deliveries"]) == ("a", 1)
        receipts = {"receipts": [first["receipt"]]}
        assert ask(client, f"{QUEUE}/nack", receipts)["returned"] == 1
        [again] = ask(client, f"{QUEUE}/receive", {"max_wait_ms": 30_000})["messages"]
        assert (again["value"], again["deliveries"]) == ("b", 2)
        receipts = {"receipts": [again["receipt"], second["receipt"]]}
        assert ask(client, f"{QUEUE}/ack", receipts)["acked"] == 2
    assert server.stop() == 0
    server.start()
    with server.client() as client:
        shown = client.get(QUEUE).json()
        assert (shown["ready"], shown["in_flight"], shown["totals"]["acked"]) == (0, 0, 2)


def records(client: httpx.Client, stream: str, count: int) -> list[dict[str, Any]]:
    """The records of a stream, once there are so many."""

    def there() -> list[dict[str, Any]] | None:
        answer = client.get(f"/v1/streams/{stream}/records?offset=first")
        found: list[dict[str, Any]] = answer.json().get("records", [])
        return found if len(found) >= count else None

    return until(there, what=f"{count} records of {stream}")


def test_acknowledged_messages_and_dead_letters_reach_streams_once(server: AllInOne) -> None:
    with server.client() as client:
        for stream in ("archive", "dead"):
            client.put(f"/v1/streams/{stream}").raise_for_status()
        config = {
            "max_deliveries": 1,
            "dead_letter": {"stream": "dead"},
            "archive": {"stream": "archive"},
        }
        client.put(QUEUE, json=config).raise_for_status()
        client.delete("/v1/streams/dead").raise_for_status()
        sent = [{"json": {"n": 1}, "headers": {"k": "v"}}, {"value_base64": "/wA="}]
        ask(client, f"{QUEUE}/messages", {"messages": sent})
        good, bad = ask(client, f"{QUEUE}/receive", {})["messages"]
        ask(client, f"{QUEUE}/ack", {"receipts": [good["receipt"]]})
        ask(client, f"{QUEUE}/nack", {"receipts": [bad["receipt"]]})
        [archived] = records(client, "archive", 1)
        assert archived["json"] == {"n": 1}
        assert archived["headers"]["k"] == "v"
        assert archived["headers"]["queue"] == "jobs"
        assert archived["headers"]["queue-reason"] == "acknowledged"
        assert archived["headers"]["queue-message-id"] == good["message_id"]
        assert archived["event_time"] == good["published_at"]
        # The stream was deleted since, so its dead letter waits.
        assert client.get(QUEUE).json()["outgoing"] == 1
    server.kill()
    server.start()
    with server.client() as client:
        client.put("/v1/streams/dead").raise_for_status()
        [dead] = records(client, "dead", 1)
        assert dead["value_base64"] == "/wA="
        assert dead["headers"]["queue-reason"] == "max-deliveries"
        until(lambda: client.get(QUEUE).json()["outgoing"] == 0, what="an empty way out")
        assert len(records(client, "archive", 1)) == len(records(client, "dead", 1)) == 1


def test_a_stop_answers_who_waits_with_nothing(server: AllInOne) -> None:
    with server.client() as client:
        client.put(QUEUE).raise_for_status()
    answers: list[httpx.Response] = []

    def wait() -> None:
        with server.client() as client:
            answers.append(client.post(f"{QUEUE}/receive", json={"max_wait_ms": 30_000}))

    waiting = threading.Thread(target=wait)
    waiting.start()
    with server.internal("queues") as client:
        until(
            lambda: "bottomless_queues_waiting_receives 1.0" in client.get("/metrics").text,
            what="a receive that waits",
        )
    assert server.stop() == 0
    waiting.join()
    [answer] = answers
    assert (answer.status_code, answer.json()) == (200, {"messages": []})
