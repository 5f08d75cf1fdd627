"""A process starts, says so once, drains and stops; or says in one sentence why it cannot."""

import asyncio
import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import pytest
from support.nursery import Forked, nursery
from support.waiting import until

from bottomless_server.runtime.listener.listeners import internal_url

SECONDS = 120

PROGRAM = Path(__file__).parents[2] / "support" / "tiny_service.py"


class Tiny:
    """The process of support/tiny_service.py."""

    def __init__(self, directory: Path, *behaviour: str, port: int = 0) -> None:
        self.directory = directory
        ours, theirs = os.pipe()
        self.stderr = os.fdopen(ours)
        with os.fdopen(theirs, "w") as its_end:
            words = [str(directory), str(port), *behaviour]
            self.process = nursery().spawn(words, os.environ, its_end, str(PROGRAM))
        self.url = ""

    def ready(self) -> Self:
        line = self.process.stdout.readline()
        assert line.startswith("ready http://127.0.0.1:")
        assert line.endswith("\n")
        self.url = line.removeprefix("ready ").rstrip("\n")
        return self

    def events(self) -> list[str]:
        path = self.directory / "events"
        return path.read_text().splitlines() if path.exists() else []

    def ended(self) -> tuple[int, str, str]:
        code = self.process.wait(SECONDS)
        return code, self.process.stdout.read(), "" if self.stderr.closed else self.stderr.read()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str, str]:
        self.process.send_signal(number)
        return self.ended()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.wait(SECONDS)
        self.process.stdout.close()
        self.stderr.close()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_services_start_in_order_drain_in_theirs_and_stop_in_reverse(
    directory: Path, number: signal.Signals
) -> None:
    with Tiny(directory) as tiny:
        tiny.ready()
        answer = httpx.get(f"{tiny.url}/where")
        assert answer.json() == {"name": "first", "path": "/where"}
        assert answer.headers["request-id"]
        assert "server" not in answer.headers
        code, out, err = tiny.stop(number)
    assert (code, out) == (0, "")
    assert "Traceback" not in err
    assert tiny.events() == [
        "start first",
        "first answered first",
        "start second",
        "drain second",
        "drain first",
        "hurry",
        "stop second",
        "stop first",
    ]
    assert list((directory / "run").iterdir()) == []


def test_health_is_answered_before_any_service(directory: Path) -> None:
    with Tiny(directory) as tiny:
        tiny.ready()
        assert httpx.get(f"{tiny.url}/livez").json() == {"status": "live"}
        assert httpx.get(f"{tiny.url}/readyz").json() == {"status": "ready"}
        verbose = httpx.get(f"{tiny.url}/readyz", params={"verbose": 1}).json()
        assert verbose["services"]["second"] == {"status": "running", "name": "second"}
        tiny.stop()


def test_internal_sockets_belong_to_the_user_alone(directory: Path) -> None:
    with Tiny(directory) as tiny:
        tiny.ready()
        modes = [path.stat().st_mode & 0o777 for path in (directory / "run").iterdir()]
        assert modes == [0o600, 0o600]


def test_while_it_drains_it_is_not_ready_refuses_and_finishes_what_is_in_flight(
    directory: Path,
) -> None:
    drained = directory / "drained"
    drained.mkdir()

    async def scenario(url: str, process: Forked) -> None:
        async with httpx.AsyncClient(base_url=url) as client:
            slow = asyncio.create_task(client.get("/slow"))
            await asyncio.to_thread(until, lambda: "slow" in tiny.events())
            process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(until, lambda: "drain second" in tiny.events())
            (drained / "second").touch()
            await asyncio.to_thread(until, lambda: "drain first" in tiny.events())
            refused = await client.get("/where")
            unready = await client.get("/readyz", params={"verbose": "true"})
            finished = await slow
        (drained / "first").touch()
        assert finished.json() == {"finished": True}
        assert (refused.status_code, refused.json()["code"]) == (503, "draining")
        assert (unready.status_code, unready.json()["code"]) == (503, "draining")
        assert set(unready.json()["services"]) == {"first", "second"}

    with Tiny(directory, "long-drain") as tiny:
        tiny.ready()
        asyncio.run(scenario(tiny.url, tiny.process))
        code, _, err = tiny.ended()
    assert code == 0
    assert "took too long" not in err


def test_a_drain_that_takes_too_long_is_cut_and_that_is_no_failure(directory: Path) -> None:
    with Tiny(directory, "hang-drain") as tiny:
        tiny.ready()
        code, _, err = tiny.stop()
    assert code == 0
    assert "took too long" in err
    assert tiny.events()[-2:] == ["stop second", "stop first"]


def test_a_read_that_waits_hears_that_the_process_stops(directory: Path) -> None:
    with Tiny(directory) as tiny:
        tiny.ready()
        with ThreadPoolExecutor() as threads:
            polling = threads.submit(httpx.get, f"{tiny.url}/poll", timeout=SECONDS)
            until(lambda: "poll" in tiny.events())
            code, _, err = tiny.stop()
            answer = polling.result()
    assert (answer.status_code, answer.json()["code"]) == (503, "draining")
    assert answer.headers["retry-after"] == "1"
    assert code == 0
    assert "Cancel" not in err


@pytest.mark.parametrize(("method", "outcome"), [("POST", "unknown"), ("GET", "none")])
def test_a_peer_that_waits_hears_what_may_have_happened(
    directory: Path, method: str, outcome: str
) -> None:
    with Tiny(directory) as tiny:
        tiny.ready()
        url = internal_url(None, directory, "first")
        transport = httpx.HTTPTransport(uds=url.removeprefix("unix://"))
        with ThreadPoolExecutor() as threads, httpx.Client(transport=transport) as peer:
            path = "http://first/poll"
            asking = threads.submit(peer.request, method, path, timeout=SECONDS)
            until(lambda: "poll" in tiny.events())
            code, _, _ = tiny.stop()
            answer = asking.result()
    assert (answer.status_code, code) == (503, 0)
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert (problem["code"], problem.get("outcome", "none")) == ("peer-unavailable", outcome)


def test_it_serves_and_stops_when_nobody_reads_its_logs(directory: Path) -> None:
    with Tiny(directory) as tiny:
        tiny.ready()
        tiny.stderr.close()
        assert httpx.get(f"{tiny.url}/where").status_code == 200
        tiny.process.send_signal(signal.SIGTERM)
        assert tiny.process.wait(SECONDS) == 0


def test_a_second_signal_ends_it_at_once(directory: Path) -> None:
    with Tiny(directory, "long-drain") as tiny:
        tiny.ready()
        tiny.process.send_signal(signal.SIGINT)
        until(lambda: "drain second" in tiny.events())
        code, _, _ = tiny.stop(signal.SIGINT)
    assert code == 130
    assert "stop first" not in tiny.events()


def test_a_signal_during_the_start_stops_what_had_started(directory: Path) -> None:
    with Tiny(directory, "hang-start") as tiny:
        until(lambda: "hang first" in tiny.events())
        code, out, _ = tiny.stop()
    assert (code, out) == (0, "")


def test_a_step_that_fails_on_the_way_down_shows_in_the_exit_code(directory: Path) -> None:
    with Tiny(directory, "bad-stop") as tiny:
        tiny.ready()
        code, _, err = tiny.stop()
    assert code == 3
    assert "ZeroDivisionError" in err
    assert tiny.events()[-2:] == ["stop second", "stop first"]


def test_what_is_unavailable_is_one_sentence(directory: Path) -> None:
    with Tiny(directory, "no-start") as tiny:
        assert tiny.ended() == (
            1,
            "",
            "bottomless: cannot start: the coordination store does not answer\n",
        )


def test_a_call_that_the_system_refuses_is_one_sentence_that_names_it(directory: Path) -> None:
    """Under a library that fakes clocks it said `Invalid argument`, and of what nothing."""
    with Tiny(directory, "refused-call") as tiny:
        code, out, err = tiny.ended()
    assert (code, out) == (1, "")
    assert err.startswith("bottomless: cannot start: Invalid argument (errno 22), in bottomless")
    assert err.endswith(", then __main__.start\n")
    assert err.count("\n") == 1


def test_a_taken_port_is_one_sentence(directory: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with Tiny(directory, port=port) as tiny:
            code, out, err = tiny.ended()
    assert (code, out) == (1, "")
    assert err.startswith(
        f"bottomless: cannot start: cannot listen on 127.0.0.1:{port}: another process listens there"
    )
    assert err.count("\n") == 1


def test_a_directory_that_cannot_be_made_is_one_sentence(directory: Path) -> None:
    (directory / "run").write_text("a file")
    with Tiny(directory) as tiny:
        code, out, err = tiny.ended()
    assert (code, out) == (1, "")
    assert err.startswith("bottomless: cannot start: cannot listen on ")
    assert err.count("\n") == 1


def test_a_bug_at_the_start_is_not_hidden(directory: Path) -> None:
    with Tiny(directory, "bug") as tiny:
        code, out, err = tiny.ended()
    assert (code, out) == (1, "")
    assert "ZeroDivisionError" in err


def test_a_socket_that_a_dead_process_left_is_taken_over(directory: Path) -> None:
    with Tiny(directory) as tiny:
        tiny.ready()
        tiny.process.kill()
        tiny.ended()
    assert len(list((directory / "run").iterdir())) == 2
    with Tiny(directory) as tiny:
        tiny.ready()
        with Tiny(directory) as second:
            code, _, err = second.ended()
        assert code == 1
        assert "another process listens on" in err
        assert tiny.stop()[0] == 0


def test_a_long_directory_gets_short_sockets(directory: Path) -> None:
    long = directory / ("d" * 120)
    long.mkdir()
    with Tiny(long) as tiny:
        tiny.ready()
        assert tiny.stop()[0] == 0
    assert not (long / "run").exists()
