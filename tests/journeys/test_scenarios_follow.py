"""Answers that stay open, from the real program: scenarios R15 to R18, R4, and a stop in the middle."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx
import pytest
from support.contract import (
    QUICK,
    Stream,
    first_offset_once_taken,
    new_stream,
    problem_of,
)
from support.places import FREEING, LEADERLESS, LOCAL, free_local
from support.served import Served
from support.server import AllInOne
from support.waiting import until

SSE = "text/event-stream"
NDJSON = "application/x-ndjson"
SETTINGS = {**FREEING, "BOTTOMLESS_READER_HEARTBEAT_SECONDS": "0.5"}
PLACES = ["tail", "leaderless tail", "object storage", "object storage, restarted"]


@dataclass(frozen=True)
class Event:
    name: str
    data: dict[str, Any]
    id: str | None

    @property
    def values(self) -> list[str]:
        return [record["value"] for record in self.data["records"]]


def events_of(response: httpx.Response) -> Iterator[Event]:
    fields: dict[str, str] = {}
    for line in response.iter_lines():
        if not line and fields:
            yield Event(fields["event"], json.loads(fields["data"]), fields.get("id"))
            fields = {}
        elif line and not line.startswith(":"):
            name, _, fields[name] = line.partition(": ")


@contextmanager
def following(
    client: httpx.Client, stream: Stream, accept: str = SSE, **parameters: Any
) -> Iterator[httpx.Response]:
    headers = {"accept": accept}
    if "last_event_id" in parameters:
        headers["last-event-id"] = parameters.pop("last_event_id")
    with client.stream("GET", stream.records, params=parameters, headers=headers) as response:
        yield response


def records_of(events: Iterator[Event]) -> Event:
    return next(event for event in events if event.name == "records")


def fifty(running: Served, client: httpx.Client, place: str) -> Stream:
    """Records 0 to 49 in appends of ten, read from one place."""
    is_stored = place.startswith("object storage")
    is_leaderless = place.startswith("leaderless")
    stream = new_stream(client, QUICK if is_stored else LEADERLESS if is_leaderless else LOCAL)
    for first in range(0, 50, 10):
        records = [{"value": str(number)} for number in range(first, first + 10)]
        assert first_offset_once_taken(partial(stream.post, *records)) == first
    if is_stored:
        free_local(running, stream)
    if place == "object storage, restarted":
        running.restart()
    return stream


@pytest.mark.parametrize("place", PLACES)
def test_r16_events_bring_the_past_and_then_what_comes(
    running: Served, client: httpx.Client, place: str
) -> None:
    """R16: 50 records, then live ones; a heartbeat where nothing comes."""
    stream = fifty(running, client, place)
    with following(client, stream, offset="first") as response:
        assert response.headers["content-type"] == SSE
        assert response.headers["cache-control"] == "no-cache, no-transform"
        assert response.headers["x-accel-buffering"] == "no"
        events = events_of(response)
        values: list[str] = []
        ids: list[int] = []

        def take(event: Event) -> None:
            values.extend(event.values)
            stream_id, _, following_offset = str(event.id).rpartition(":")
            assert stream_id == response.headers["stream-id"]
            assert int(following_offset) == event.data["next_offset"] == len(values)
            ids.append(int(following_offset))

        while len(values) < 50:
            take(records_of(events))
        beat = next(event for event in events if event.name == "heartbeat").data
        assert (beat["next_offset"], beat["committed_offset"]) == (50, 49)
        assert beat["time"].endswith("Z")
        for number in range(5):
            stream.append(f"live {number}")
            take(records_of(events))
    assert values == [str(number) for number in range(50)] + [f"live {n}" for n in range(5)]
    assert ids == sorted(set(ids))
    assert ids[-1] == 55


def test_r16_the_first_byte_comes_before_there_is_a_record(client: httpx.Client) -> None:
    """R16: so that a proxy passes the headers on."""
    with following(client, new_stream(client), offset="first") as response:
        assert next(response.iter_raw()).startswith(b":")


@pytest.mark.parametrize("place", PLACES)
def test_r17_a_reconnect_goes_on_where_the_last_event_ended(
    running: Served, client: httpx.Client, place: str
) -> None:
    """R17: whatever `offset` says; nothing is lost and nothing comes twice."""
    stream = fifty(running, client, place)
    values: list[str] = []
    parameters: dict[str, Any] = {}
    while len(values) < 51:
        with following(client, stream, offset="first", limit=7, **parameters) as response:
            events = list(events_of(response))
        assert (events[-1].name, events[-1].data["reason"]) == ("end", "max-records")
        for event in events:
            if event.name == "records":
                values += event.values
                parameters["last_event_id"] = event.id
        if len(values) == 49:
            # What comes while nobody is connected is there for who comes back.
            stream.append(*(f"late {number}" for number in range(6)))
    assert values == [str(number) for number in range(50)] + [f"late {n}" for n in range(6)]


def test_r18_an_id_that_is_none_is_refused(client: httpx.Client) -> None:
    """R18: garbage."""
    stream = new_stream(client)
    for event_id in ("garbage", "1", "x:1"):
        headers = {"accept": SSE, "last-event-id": event_id}
        problem_of(client.get(stream.records, headers=headers), 400, "bad-header")


def test_r18_an_id_of_the_stream_before_is_a_conflict(client: httpx.Client) -> None:
    """R18, R15: a deleted stream ends its events, and its successor knows none of their ids."""
    stream = new_stream(client)
    stream.append("a")
    with following(client, stream, offset="first") as response:
        events = events_of(response)
        event = records_of(events)
        assert client.delete(stream.path).status_code == 202
        end = next(each for each in events if each.name == "end")
        assert (end.data["reason"], end.data["next_offset"]) == ("stream-deleted", 1)
    assert client.put(stream.path, json={}).status_code == 201
    headers = {"accept": SSE, "last-event-id": str(event.id)}
    problem_of(client.get(stream.records, headers=headers), 409, "stream-replaced")


def test_r15_who_waits_hears_of_a_deletion(running: Served, client: httpx.Client) -> None:
    """R15: promptly, and not when the time is over."""
    stream = new_stream(client)
    stream.append("a")

    def wait() -> httpx.Response:
        with running.client() as mine:
            return Stream(mine, stream.name).get(1, max_wait_ms=30_000)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait)
        with pytest.raises(TimeoutError):
            waiting.result(0.5)
        assert client.delete(stream.path).status_code == 202
        problem_of(waiting.result(20), 404, "stream-not-found")


def test_r4_what_trim_passed_is_moved_gone_or_the_end(client: httpx.Client) -> None:
    """R4: fragments of 10 records, cut at 50; pages, single records and who follows."""
    stream = new_stream(client, QUICK)
    padding = "x" * 300_000
    for first in range(0, 100, 10):
        stream.append(*(f"{number} {padding}" for number in range(first, first + 10)))
        stream.wait_uploaded()
    # More than the connection holds, so that the follower is on its way when the trim comes.
    with following(client, stream, offset=0, max_bytes=1) as response:
        events = events_of(response)
        assert records_of(events).values == [f"0 {padding}"]
        trimmed = client.post(f"{stream.path}/trim", json={"before_offset": 50})
        assert trimmed.status_code == 202, trimmed.text
        until(lambda: stream.bounds()["first_offset"] == 50, what="the trim")
        last = [event for event in events if event.name != "heartbeat"]
    assert (last[-1].data["reason"], last[-1].data["first_offset"]) == ("offset-trimmed", 50)
    offsets = [record["offset"] for event in last[:-1] for record in event.data["records"]]
    assert offsets == list(range(1, last[-1].data["next_offset"]))
    assert last[-1].data["next_offset"] < 50

    page = stream.page(10)
    assert (page["start_offset"], page["clamped"]) == (50, "low")
    for answer in (
        stream.get(10, on_out_of_range="error"),
        client.get(f"{stream.records}/10"),
    ):
        problem = problem_of(answer, 410, "offset-trimmed")
        assert (problem["first_offset"], problem["next_offset"]) == (50, 100)


def test_c1_a_consumer_continues_behind_what_it_committed(client: httpx.Client) -> None:
    """C1, C2: resume with `stored`; a consumer without an offset needs a default."""
    stream = new_stream(client)
    stream.append("a", "b", "c")
    parameters = {"consumer": "billing"}
    problem_of(stream.get("stored", **parameters), 404, "offset-not-found")
    assert stream.page("stored", default="first", **parameters)["start_offset"] == 0
    committed = client.put(f"{stream.path}/consumers/billing/offset", json={"offset": 0})
    assert committed.status_code == 200, committed.text
    page = stream.page("stored", default="next", **parameters)
    assert [record["value"] for record in page["records"]] == ["b", "c"]
    assert page["requested"] == "stored"


def test_lines_follow_a_stream_and_stay_lines(client: httpx.Client) -> None:
    stream = new_stream(client)
    stream.append("a\nb", "c\u2028d")
    with following(client, stream, NDJSON, offset="first", follow="true", limit=3) as response:
        lines = response.iter_lines()
        seen = [json.loads(next(lines)) for _ in range(3)]
        stream.append("e")
        seen += [json.loads(line) for line in lines]
    records = [each["value"] for each in seen if "value" in each]
    assert records == ["a\nb", "c\u2028d", "e"]
    assert seen[2]["_control"]["next_offset"] == 2
    assert seen[-1] == {"_control": {"end": "max-records", "next_offset": 3}}


def test_a_stop_ends_what_stays_open_with_a_word(tmp_path_factory: pytest.TempPathFactory) -> None:
    with AllInOne(tmp_path_factory.mktemp("stop") / "data", SETTINGS) as server:
        with server.client() as connected, ThreadPoolExecutor(1) as pool, ExitStack() as stack:
            stream = new_stream(connected)
            stream.append("a")
            events = events_of(stack.enter_context(following(connected, stream, offset=0)))
            lines = stack.enter_context(
                following(connected, stream, NDJSON, offset=0, follow="true")
            ).iter_lines()
            seen = records_of(events)
            assert seen.values == ["a"]
            next(lines)
            stopping = pool.submit(server.stop)
            end = list(events)[-1]
            last = json.loads(list(lines)[-1])
            assert stopping.result(240) == 0
        assert (end.name, end.data) == ("end", {"reason": "draining", "next_offset": 1})
        assert last == {"_control": {"end": "draining", "next_offset": 1}}
        server.start()
        with server.client() as connected:
            again = Stream(connected, stream.name)
            with following(connected, again, last_event_id=seen.id) as response:
                again.append("b")
                events = events_of(response)
                while not (values := records_of(events).values):
                    pass
    assert values == ["b"]
