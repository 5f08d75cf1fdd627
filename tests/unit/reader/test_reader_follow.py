"""Answers that stay open: what they say, when they end, and what they cost."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from types import SimpleNamespace

import pytest
from unit.reader.harness import ReaderHarness, Sent
from unit.reader.open_answers import Client, Open, comes_true, served
from unit.reader.protocol import STREAM_ID

from bottomless import AsyncClient
from bottomless.errors import Code, Corrupt
from bottomless.model.record import Content
from bottomless_server.reader import follow_answer
from bottomless_server.reader.shared_tail import FLIGHT_MS


@pytest.fixture
async def client(harness: ReaderHarness) -> AsyncIterator[Client]:
    async with served(harness) as connected:
        yield connected


@pytest.fixture
async def quick() -> AsyncIterator[ReaderHarness]:
    """A reader without patience."""
    made = ReaderHarness(reader_heartbeat_seconds=0.05, reader_blocked_seconds=0.3)
    yield made
    await made.aclose()


def waiting(harness: ReaderHarness) -> int:
    return harness.asked.count(f"chunks {harness.committed_next}")


async def test_events_bring_what_is_there_and_then_what_comes(hundred: ReaderHarness) -> None:
    async with served(hundred) as client, client.events("offset=95&max_bytes=24") as answer:
        assert await answer.line() == ": open\n"
        events = [await answer.event(), await answer.event()]
        hundred.append("new")
        events.append(await answer.event())

    assert [event.name for event in events] == ["records"] * 3
    assert [event.offsets for event in events] == [[95, 96, 97], [98, 99], [100]]
    assert [event.id for event in events] == [f"{STREAM_ID}:{n}" for n in (98, 100, 101)]
    first, second, third = (event.data for event in events)
    assert (first["start_offset"], first["clamped"], first["up_to_date"]) == (95, None, False)
    assert (second["up_to_date"], third["next_offset"]) == (True, 101)
    assert third["records"][0]["value"] == "new"


async def test_headers_keep_proxies_from_holding_or_changing_events(
    harness: ReaderHarness, client: Client
) -> None:
    async with client.events() as answer:
        headers = answer.response.headers
        assert headers["content-type"] == "text/event-stream"
        assert headers["cache-control"] == "no-cache, no-transform"
        assert headers["x-accel-buffering"] == "no"
        assert headers["stream-id"] == STREAM_ID
        assert "content-length" not in headers


async def test_events_start_at_the_next_record_and_say_where_to_resume(
    harness: ReaderHarness, client: Client
) -> None:
    harness.fill(10)
    async with client.events() as answer:
        event = await answer.event()

    assert (event.offsets, event.id) == ([], f"{STREAM_ID}:10")


async def test_the_last_event_id_beats_the_offset(hundred: ReaderHarness) -> None:
    async with served(hundred) as client:
        async with client.events("offset=3", Last_Event_ID=f"{STREAM_ID}:97") as answer:
            assert (await answer.event()).offsets == [97, 98, 99]
        async with client.events("offset=97", Last_Event_ID="") as answer:
            assert (await answer.event()).offsets == [97, 98, 99]


@pytest.mark.parametrize(
    "event_id", ["x", "97", f"{STREAM_ID}", f"{STREAM_ID}:", f"{STREAM_ID}:-1", f"{STREAM_ID}:1:2"]
)
async def test_an_id_of_no_event_is_refused(client: Client, event_id: str) -> None:
    async with client.get("", accept="text/event-stream", Last_Event_ID=event_id) as answer:
        problem = await answer.json(content_type=None)

    assert (answer.status, problem["code"]) == (400, "bad-header")
    assert problem["errors"][0]["header"] == "last-event-id"
    assert event_id not in problem["detail"]


@pytest.mark.parametrize("parameters", ["", f"expect_stream_id={STREAM_ID}"])
async def test_an_id_of_another_stream_is_a_conflict(client: Client, parameters: str) -> None:
    other = STREAM_ID.replace("0", "1") + ":5"
    async with client.get(parameters, accept="text/event-stream", Last_Event_ID=other) as answer:
        problem = await answer.json(content_type=None)

    assert (answer.status, problem["code"]) == (409, "stream-replaced")


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("offset=11&on_out_of_range=error", 416, "offset-out-of-range"),
        ("offset=first&max_wait_ms=5", 400, "bad-parameter"),
        ("offset=first&min_records=5", 400, "bad-parameter"),
        ("offset=stored", 400, "bad-parameter"),
    ],
)
async def test_what_fails_before_the_first_byte_is_a_problem(
    harness: ReaderHarness, client: Client, query: str, status: int, code: str
) -> None:
    harness.fill(10)
    async with client.get(query, accept="text/event-stream") as answer:
        problem = await answer.json(content_type=None)

    assert (answer.status, problem["code"]) == (status, code)
    assert harness.service.followers.places.count == 0


async def test_lines_bring_what_is_there_and_then_what_comes(
    harness: ReaderHarness, client: Client
) -> None:
    harness.append("a", Sent(b'{\n"b": "\xe2\x80\xa8"\r\n}', content=Content.JSON))
    async with client.lines("offset=first") as answer:
        lines = [await answer.line() for _ in range(3)]
        harness.append("c")
        lines += [await answer.line() for _ in range(2)]

    assert all(len(line.splitlines()) == 1 for line in lines)
    values = [json.loads(line) for line in lines]
    assert [value.get("offset") for value in values] == [0, 1, None, 2, None]
    assert values[1]["json"] == {"b": "\u2028"}
    assert values[2]["_control"] == {
        "next_offset": 2,
        "up_to_date": True,
        "start_offset": 0,
        "clamped": None,
    }
    assert values[4]["_control"] == {"next_offset": 3, "up_to_date": True}


async def test_silence_is_filled_with_heartbeats(quick: ReaderHarness) -> None:
    quick.fill(10)
    async with served(quick) as client:
        async with client.events() as answer:
            await answer.event_of("records")
            beats = [await answer.event() for _ in range(3)]
        async with client.lines("offset=next") as answer:
            await answer.control()
            line = await answer.control()

    assert [beat.name for beat in beats] == ["heartbeat"] * 3
    assert all(beat.id is None for beat in beats), "it must not change where a client resumes"
    for beat in (beats[0].data, line):
        assert (beat["next_offset"], beat["committed_offset"]) == (10, 9)
        assert beat["time"].endswith("Z")


# Ends


async def end_of(answer: Open) -> dict[str, object]:
    end = (await answer.event_of("end")).data
    assert await answer.response.content.read() == b"", "something came after the end"
    return end


async def test_an_answer_ends_after_the_records_that_were_asked_for(hundred: ReaderHarness) -> None:
    async with served(hundred) as client:
        async with client.events("offset=95&limit=3") as answer:
            assert (await answer.event()).offsets == [95, 96, 97]
            assert await end_of(answer) == {"reason": "max-records", "next_offset": 98}
        async with client.events("offset=98&limit=3") as answer:
            await answer.event()
            hundred.append("a", "b")
            assert (await answer.event()).offsets == [100]
            assert (await end_of(answer))["reason"] == "max-records"
        async with client.events("offset=95&until_offset=97") as answer:
            assert (await answer.event()).offsets == [95, 96]
            assert await end_of(answer) == {"reason": "until-offset", "next_offset": 97}
        async with client.lines("offset=95&limit=1") as answer:
            await answer.control()
            assert await answer.control() == {"end": "max-records", "next_offset": 96}


async def test_an_answer_rotates_at_different_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that came together do not go together."""
    drawn: list[tuple[float, float]] = []

    def ends_in_turn(least: float, most: float) -> float:
        drawn.append((least, most))
        return (least, most)[len(drawn) % 2]

    monkeypatch.setattr(follow_answer, "random", SimpleNamespace(uniform=ends_in_turn))
    harness = ReaderHarness(reader_rotate_seconds=0.4)
    async with served(harness) as client:
        lives = []
        for _ in range(2):
            began = asyncio.get_running_loop().time()
            async with client.events() as answer:
                assert await end_of(answer) == {"reason": "rotate", "next_offset": 0}
            lives.append(asyncio.get_running_loop().time() - began)
    await harness.aclose()

    assert drawn == [(0.5, 1.5)] * 2
    # Timers may be a hair early; how late they are is the machine's.
    assert lives[0] > 0.9 * 0.4 * 1.5
    assert lives[1] > 0.9 * 0.4 * 0.5


async def test_draining_ends_all_and_lets_none_begin(
    harness: ReaderHarness, client: Client
) -> None:
    harness.fill(10)
    async with AsyncExitStack() as stack:
        answers = [await stack.enter_async_context(client.events()) for _ in range(3)]
        for answer in answers:
            await answer.event()
        async with asyncio.timeout(240):
            await harness.service.drain()
        ends = [await end_of(answer) for answer in answers]
    async with client.get("", accept="text/event-stream") as refused:
        problem = await refused.json(content_type=None)

    assert ends == [{"reason": "draining", "next_offset": 10}] * 3
    assert (refused.status, problem["code"], problem["retryable"]) == (503, "draining", True)


async def test_a_deleted_stream_ends_its_answers(harness: ReaderHarness, client: Client) -> None:
    harness.fill(10)
    async with client.events() as answer:
        await answer.event()
        harness.exists = False
        harness.appended.set()
        assert await end_of(answer) == {"reason": "stream-deleted", "next_offset": 10}


async def test_an_answer_that_trim_passes_ends_and_never_jumps(harness: ReaderHarness) -> None:
    harness.fill(100)
    for _ in range(10):
        await harness.upload(1, free=True)
    async with served(harness) as client, client.events("offset=10&max_bytes=8") as answer:
        assert (await answer.event()).offsets == [10]
        await harness.trim(50)
        while (event := await answer.event()).name == "records":
            assert event.offsets[0] < 50
        end = event

    assert end.name == "end"
    assert (end.data["reason"], end.data["first_offset"]) == ("offset-trimmed", 50)
    assert end.data["next_offset"] < 50


async def test_short_trouble_is_not_the_end(harness: ReaderHarness, client: Client) -> None:
    harness.fill(10)
    async with client.events() as answer:
        await answer.event()
        alive, harness.alive = harness.alive, set()
        harness.appended.set()
        await comes_true(lambda: harness.service.shared.flight_count == 0)
        harness.alive = alive
        harness.append("after")
        assert (await answer.event_of("records")).offsets == [10]


async def test_damage_ends_an_answer_with_its_code(harness: ReaderHarness) -> None:
    harness.fill(20)
    await harness.upload(1, free=True)
    await harness.upload(1, free=True)
    async with served(harness) as client, client.events("offset=0&limit=20&max_bytes=80") as answer:
        assert (await answer.event()).offsets[0] == 0
        harness.drive.damage_count = 1_000
        harness.service.cache._kept.clear()
        end = await end_of(answer)

    assert (end["reason"], end["code"], end["retryable"]) == ("error", "data-corrupt", False)


async def test_an_end_at_lost_records_says_where_to_read_on(harness: ReaderHarness) -> None:
    """The problem of a page said it; an answer that had begun ended with its code alone, and the
    client raised an error without facts."""
    harness.fill(40)
    await harness.upload(1, free=True)
    first, readable = harness.lose_log(2)
    async with served(harness) as connected:
        async with connected.events("offset=0") as answer:
            assert (await answer.event()).offsets == list(range(first))
            end = await end_of(answer)
        async with AsyncClient(f"http://127.0.0.1:{connected.port}") as client:
            with pytest.raises(Corrupt) as raised:
                async for _ in client.follow("orders", 0, on_outage=lambda _: None):
                    pass
    told = {"first_offset": first, "readable_offset": readable, "next_offset": first}
    code = {"code": "local-log-lost", "retryable": False}
    assert end == {"reason": "error", **code, **told}
    assert raised.value.code is Code.LOCAL_LOG_LOST
    assert raised.value.facts == told


async def test_a_client_that_takes_nothing_is_cut_off(quick: ReaderHarness) -> None:
    for _ in range(40):
        quick.append("x" * 900_000)
    async with served(quick) as client:
        reader, writer = await asyncio.open_connection("127.0.0.1", client.port, limit=2**16)
        writer.write(
            b"GET /v1/streams/orders/records?offset=first HTTP/1.1\r\nHost: x\r\n"
            b"Accept: text/event-stream\r\n\r\n"
        )
        await comes_true(lambda: quick.service.followers.places.count == 1)
        await comes_true(lambda: quick.service.followers.places.count == 0)
        asked = [path for path in quick.asked if path.startswith("chunks")]
        assert len(asked) < 20, "it was read on for"
        data = await reader.read()
        writer.close()

    assert len(data) < 40 * 900_000
    assert b'"reason":"slow-consumer"' not in data[:-500]


# What they cost


async def test_many_followers_of_one_stream_ask_for_its_tail_once() -> None:
    # No heartbeat comes between events, however slow the machine is.
    harness = ReaderHarness(reader_root_ttl_ms=250, reader_heartbeat_seconds=3_600)
    harness.fill(10)
    count, appends = 200, 5
    loop = asyncio.get_running_loop()
    async with served(harness) as client, AsyncExitStack() as stack:
        answers = [await stack.enter_async_context(client.events("offset=5")) for _ in range(count)]
        for answer in answers:
            assert (await answer.event()).offsets == [5, 6, 7, 8, 9]
        await comes_true(lambda: harness.service.shared.flight_count == 1)
        before = [path for path in harness.asked if path.startswith("chunks")]
        roots, begun = len(harness.asked) - len(before), loop.time()
        for number in range(appends):
            harness.append(f"new {number}")
            events = [await answer.event() for answer in answers]
            assert {tuple(event.offsets) for event in events} == {(10 + number,)}
        asked = [path for path in harness.asked if path.startswith("chunks")]
        # What is known is also asked for anew after some time, whoever follows.
        seconds = loop.time() - begun
        asks = 2 * appends + seconds * 1000 / FLIGHT_MS
        assert len(asked) - len(before) <= asks, "each follower asks for itself"
        asks = 4 * appends + seconds * 1000 / 250
        assert len(harness.asked) - len(asked) - roots <= asks, "each asks for the root"
        # Where all are at the end a page is read once; those who come late to it read their own.
        assert harness.service.followers.read_count <= count * appends / 4, "each reads for itself"
    await harness.aclose()


async def test_clients_that_leave_free_everything(harness: ReaderHarness, client: Client) -> None:
    harness.fill(10)
    service = harness.service
    async with AsyncExitStack() as stack:
        answers = [await stack.enter_async_context(client.events()) for _ in range(5)]
        for answer in answers:
            await answer.event()
        await comes_true(lambda: service.shared.flight_count == 1)
        assert service.followers.places.count == 5
        for answer in answers:
            answer.response.close()
        await comes_true(lambda: service.followers.places.count == 0)
        await comes_true(lambda: service.shared.flight_count == 0)


async def test_there_is_a_bound_on_answers_that_stay_open() -> None:
    harness = ReaderHarness(reader_follower_count_max=2)
    async with served(harness) as client:
        async with client.events(), client.events():
            async with client.get("", accept="text/event-stream") as refused:
                problem = await refused.json(content_type=None)
            assert (refused.status, problem["code"], problem["limit"]) == (503, "overloaded", 2)
            assert refused.headers["retry-after"] == "1"
        await comes_true(lambda: harness.service.followers.places.count < 2)
        async with client.events() as answer:
            await answer.event()
    await harness.aclose()


async def test_the_more_answers_there_are_the_less_each_holds() -> None:
    harness = ReaderHarness(reader_followers_bytes=65_536, reader_follower_bytes=65_536)
    harness.append(*("x" * 1_000 for _ in range(100)))
    async with served(harness) as client, AsyncExitStack() as stack:
        counts = []
        for _ in range(4):
            answer = await stack.enter_async_context(client.events("offset=first"))
            counts.append(len((await answer.event()).offsets))
    await harness.aclose()

    assert counts == [16, 8, 5, 4]
