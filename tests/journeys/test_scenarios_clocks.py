"""Clocks that are set, and clocks that disagree: scenarios A26 and M28, seen from outside."""

import shutil
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.contract import QUICK, Stream, new_stream, problem_of
from support.ports import lasting_ports
from support.served import Served
from support.skewed_clock import SkewedClock
from support.waiting import until

SECOND, HOUR, DAY, YEAR = 1_000, 3_600_000, 86_400_000, 31_536_000_000


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> SkewedClock:
    return SkewedClock(tmp_path_factory.mktemp("clock"))


@pytest.fixture(scope="module")
def metrics_port() -> int:
    (port,) = lasting_ports(1)
    return port


@pytest.fixture(scope="module")
def running(
    clock: SkewedClock, metrics_port: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    data_dir = tmp_path_factory.mktemp("clocks") / "data"
    settings = {
        **clock.environment,
        "BOTTOMLESS_MANIFEST_RETENTION_INTERVAL_MS": "200",
        "BOTTOMLESS_MANIFEST_DELETE_INTERVAL_MS": "200",
        "BOTTOMLESS_METRICS_LISTEN": f"127.0.0.1:{metrics_port}",
    }
    with Served(data_dir, settings, *lasting_ports(1)) as server:
        yield server
        clock.set(0)
        with server.client() as connected:
            server.promises.check(connected, server.stored)


@pytest.fixture(autouse=True)
def right_again(clock: SkewedClock) -> Iterator[None]:
    yield
    clock.set(0)


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def set_clock(client: httpx.Client, clock: SkewedClock, skew_ms: int) -> None:
    """And see in an answer that the services have it."""
    clock.set(skew_ms)
    name = f"/v1/streams/born-{time.monotonic_ns()}"
    born = moment(client.put(name).json()["created_at"]).timestamp()
    assert abs(born - time.time() - skew_ms / 1000) < 30
    assert client.delete(name).status_code == 202


def times_of(stream: Stream) -> list[str]:
    return [record["timestamp"] for record in stream.page()["records"]]


def check_times(stream: Stream) -> None:
    """They never decrease, and a search by time finds the first record that is not older."""
    times = times_of(stream)
    assert times == sorted(times)
    for wanted in sorted(set(times)):
        page = stream.page(f"timestamp:{wanted}", limit=1)
        assert page["start_offset"] == times.index(wanted)
    latest = moment(times[-1]) + timedelta(milliseconds=1)
    after = stream.page(f"timestamp:{round(latest.timestamp() * 1000)}")
    assert (after["records"], after["start_offset"]) == ([], len(times))


@pytest.mark.parametrize("back_ms", [0, SECOND, HOUR, YEAR], ids=["equal", "1 s", "1 h", "1 year"])
@pytest.mark.parametrize("uploaded", [False, True])
def test_a26_a_clock_that_is_set_back_takes_no_timestamp_back(
    client: httpx.Client, clock: SkewedClock, back_ms: int, *, uploaded: bool
) -> None:
    """A26, M28: in answers, in records, in the search by time."""
    stream = new_stream(client, QUICK if uploaded else None)
    told = [stream.append("before")["timestamp"]]
    set_clock(client, clock, -back_ms)
    told += [stream.append(f"back {number}")["timestamp"] for number in range(3)]
    if back_ms >= HOUR:
        assert set(told) == {told[0]}, "a time that had been is used on"
    clock.set(0)
    # The clock has to be ahead of the last time for it to be seen to go on.
    until(lambda: time.time() > moment(told[-1]).timestamp() + 0.01, what="the clock")
    told.append(stream.append("right again")["timestamp"])
    assert told[-1] > told[0]
    if uploaded:
        stream.wait_uploaded()
    assert times_of(stream) == told
    check_times(stream)


def test_a26_nor_does_a_restart_with_the_clock_set_back(
    running: Served, client: httpx.Client, clock: SkewedClock
) -> None:
    """A26: what the log says counts for more than the clock."""
    local, uploaded = new_stream(client), new_stream(client, QUICK)
    told = {}
    for stream in (local, uploaded):
        told[stream.name] = [stream.append("before")["timestamp"]]
    uploaded.wait_uploaded()
    clock.set(-HOUR)
    running.restart()
    set_clock(client, clock, -HOUR)
    for stream in (local, uploaded):
        told[stream.name] += [stream.append(str(n))["timestamp"] for n in range(2)]
        assert set(told[stream.name]) == {told[stream.name][0]}
        assert times_of(stream) == told[stream.name]
        check_times(stream)

    # For the process, whose clock has always been this one, the right time is a jump ahead.
    clock.set(0)
    problem_of(local.post({"value": "right again"}), 503, "clock-skew")
    running.restart()
    assert local.append("right again")["timestamp"] > told[local.name][0]


def test_a26_the_next_owner_has_another_clock(tmp_path: Path) -> None:
    """A26: two instances, the second of which is an hour behind, on one stream after the other."""
    clock = SkewedClock(tmp_path)
    with Served(tmp_path / "data", clock.environment, *lasting_ports(1)) as server:
        with server.client() as client:
            stream = new_stream(client, QUICK)
            told = [stream.append(str(number))["timestamp"] for number in range(3)]
            stream.wait_uploaded()
        assert server.stop() == 0
        # All is in object storage, so anybody may own it; who has another directory is another.
        shutil.move(server.ingest_dir, tmp_path / "first")
        clock.set(-HOUR)
        server.start()
        with server.client() as client:
            stream = Stream(client, stream.name)
            set_clock(client, clock, -HOUR)

            def appended() -> dict[str, Any] | None:
                answer = stream.post({"value": "of the second"})
                if answer.status_code == 503:
                    return None
                assert answer.status_code == 200, answer.text
                body: dict[str, Any] = answer.json()
                return body

            told.append(until(appended, what="the stream claimed")["timestamp"])
            told.append(stream.append("and again")["timestamp"])
            assert told == sorted(told)
            assert told[-1] == told[2], "the second clock is behind"
            assert times_of(stream) == told
            check_times(stream)
            server.promises.check(client, server.stored)


def test_m28_a_clock_that_jumps_ahead_stops_appends_until_it_is_back(
    client: httpx.Client, clock: SkewedClock
) -> None:
    """M28: one wrong year would stay in the stream for ever. Reads go on."""
    stream = new_stream(client)
    told = [stream.append("before")["timestamp"]]
    clock.set(YEAR)
    for _ in range(3):
        answer = stream.post({"value": "of next year"})
        problem = problem_of(answer, 503, "clock-skew")
        assert (problem["outcome"], problem["retryable"]) == ("none", True)
        assert int(answer.headers["retry-after"]) >= 1
    assert times_of(stream) == told
    clock.set(0)
    told.append(stream.append("after")["timestamp"])
    assert times_of(stream) == told
    check_times(stream)


def test_m28_a_clock_that_is_ahead_for_a_moment_deletes_nothing_for_its_age(
    client: httpx.Client, clock: SkewedClock, metrics_port: int
) -> None:
    """M28: the retention timer runs meanwhile, and somebody asks for an evaluation too."""
    stream = new_stream(client, {**QUICK, "retention": {"max_age": "7D"}})
    for number in range(4):
        stream.append(str(number))
        stream.wait_uploaded()

    def gauge(name: str) -> float:
        lines = httpx.get(f"http://127.0.0.1:{metrics_port}/metrics").text.splitlines()
        (line,) = [line for line in lines if line.startswith(f"bottomless_manifest_{name} ")]
        return float(line.split()[1])

    clock.set(10 * DAY)
    until(lambda: gauge("clock_doubted") == 1, what="the doubt in the metrics")
    until(lambda: gauge("retention_paused_streams") > 0, what="the pause in the metrics")
    began = client.post(f"{stream.path}/retention/evaluate").json()["operation_id"]

    def done() -> dict[str, Any] | None:
        operation: dict[str, Any] = client.get(f"/v1/operations/{began}").json()
        return operation if operation["state"] == "succeeded" else None

    result = until(done, what="the evaluation")["result"]
    assert (result["age_paused"], result["deleted"]["records"]) == (True, 0)
    clock.set(0)
    until(lambda: gauge("clock_doubted") == 0, what="the clock believed again")
    assert stream.bounds()["first_offset"] == 0
    assert [record["value"] for record in stream.page()["records"]] == ["0", "1", "2", "3"]
