"""Long polls: who waits, for what, at whose cost."""

import asyncio
from typing import Any

import pytest
from unit.reader.harness import ReaderHarness, shown
from unit.reader.open_answers import comes_true, served
from unit.reader.protocol import STREAM_ID

from bottomless.errors import Code
from bottomless.model.names import TENANT_DEFAULT, FullName, StreamId, StreamName


def asked_at(harness: ReaderHarness, offset: int) -> int:
    return harness.asked.count(f"chunks {offset}")


async def polled(harness: ReaderHarness, count: int, query: str) -> list[asyncio.Task[Any]]:
    """Clients that wait, once all of them do."""
    polls = [asyncio.create_task(harness.get(query)) for _ in range(count)]
    await comes_true(lambda: harness.service.waiters.count == count)
    # Who has a place has not looked yet, and only who joined the question asks no other.
    await comes_true(lambda: harness.service.shared.joined_count == count)
    assert harness.service.shared.flight_count == 1
    # The question that they joined is a task of its own: it has come to the owner, too.
    await harness.waiting.wait()
    return polls


async def test_many_wait_with_one_question_to_the_owner(harness: ReaderHarness) -> None:
    harness.fill(10)
    polls = await polled(harness, 50, "/records?offset=10&max_wait_ms=20000")
    waiting = asked_at(harness, 10)
    harness.append("new")
    pages = [(await poll).json() for poll in polls]

    assert [shown(page) for page in pages] == [[(10, "new")]] * 50
    # Each looks once before it waits, unless it sees that somebody waits already.
    assert waiting <= 51
    assert asked_at(harness, 10) == waiting
    assert harness.service.shared.flight_count == harness.service.waiters.count == 0


async def test_who_comes_while_others_wait_asks_nothing(harness: ReaderHarness) -> None:
    harness.fill(10)
    polls = await polled(harness, 1, "/records?offset=10&max_wait_ms=20000")
    before = asked_at(harness, 10)
    polls.append(asyncio.create_task(harness.get("/records?offset=10&max_wait_ms=20000")))
    await comes_true(lambda: harness.service.shared.joined_count == 2)
    harness.append("new")
    pages = [(await poll).json() for poll in polls]

    assert [shown(page) for page in pages] == [[(10, "new")]] * 2
    assert asked_at(harness, 10) == before


@pytest.mark.parametrize(
    ("wanted", "appends"),
    [("min_records=3", 3), ("min_bytes=12", 2), ("min_records=2&min_bytes=18", 3), ("limit=2", 1)],
)
async def test_a_page_waits_until_it_has_enough(
    harness: ReaderHarness, wanted: str, appends: int
) -> None:
    harness.fill(10)
    (poll,) = await polled(harness, 1, f"/records?offset=10&max_wait_ms=20000&{wanted}")
    for number in range(appends):
        assert not poll.done()
        harness.append(f"value{number}")
        await comes_true(lambda end=11 + number: poll.done() or asked_at(harness, end))
    page = (await poll).json()

    assert shown(page) == harness.texts(10, 10 + appends)


async def test_a_full_page_waits_for_nothing_more(harness: ReaderHarness) -> None:
    harness.fill(10)
    page = await harness.read(5, limit=5, max_wait_ms=20_000, min_records=100)

    assert shown(page) == harness.texts(5, 10)


async def test_a_page_without_enough_comes_when_the_time_is_over(harness: ReaderHarness) -> None:
    harness.fill(10)
    page = await harness.read(5, max_wait_ms=100, min_records=100)
    empty = await harness.read(10, max_wait_ms=100)

    assert shown(page) == harness.texts(5, 10)
    assert (empty["records"], empty["next_offset"], empty["up_to_date"]) == ([], 10, True)


async def test_enough_may_lie_in_both_tiers(harness: ReaderHarness) -> None:
    harness.fill(20)
    await harness.upload(1, free=True)
    (poll,) = await polled(harness, 1, "/records?offset=5&max_wait_ms=20000&min_records=16")
    harness.append("new")

    assert shown((await poll).json()) == harness.texts(5, 21)


async def test_a_client_that_leaves_frees_its_place(harness: ReaderHarness) -> None:
    harness.fill(10)
    async with served(harness) as client:

        async def wait() -> None:
            async with client.get("offset=10&max_wait_ms=20000"):
                raise AssertionError("nothing was appended")

        waiting = [asyncio.create_task(wait()) for _ in range(3)]
        await comes_true(lambda: harness.service.waiters.count == 3)
        await comes_true(lambda: harness.service.shared.flight_count == 1)
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await comes_true(lambda: harness.service.waiters.count == 0)
        await comes_true(lambda: harness.service.shared.flight_count == 0)


@pytest.mark.parametrize(
    "query", ["/records?offset=next&max_wait_ms=9000", "/offsets?wait_ms=9000"]
)
async def test_there_is_a_bound_on_how_many_wait(query: str) -> None:
    harness = ReaderHarness(reader_waiter_count_max=2)
    harness.fill(10)
    polls = await polled(harness, 2, "/records?offset=next&max_wait_ms=20000")
    refused = await harness.get(query)
    page = await harness.get("/records?offset=next")
    harness.append("new")
    await asyncio.gather(*polls)
    await harness.aclose()

    assert (refused.status_code, refused.json()["code"]) == (503, Code.OVERLOADED)
    assert (refused.json()["limit"], refused.headers["retry-after"]) == (2, "1")
    assert page.status_code == 200, "who does not wait needs no place"


async def test_a_deleted_stream_is_told_to_who_waits(harness: ReaderHarness) -> None:
    harness.fill(10)
    (poll,) = await polled(harness, 1, "/records?offset=10&max_wait_ms=20000")
    harness.exists = False
    harness.appended.set()
    answer = await poll

    assert (answer.status_code, answer.json()["code"]) == (404, "stream-not-found")


@pytest.mark.parametrize("count", [1, 3])
async def test_who_waits_on_a_stream_whose_name_is_made_anew_is_told_of_its_end(
    harness: ReaderHarness, count: int
) -> None:
    """It went over to the new stream, and brought its records: the tests for the end of a stream
    never made another one of the same name."""
    harness.fill(10)
    polls = await polled(harness, count, "/records?offset=10&max_wait_ms=20000")
    harness.stream_id = StreamId(STREAM_ID.replace("0", "1"))
    harness.append("of another stream")
    answers = [await poll for poll in polls]
    later = await harness.get("/records?offset=10&max_wait_ms=20000")

    told = [(answer.status_code, answer.json()["code"]) for answer in answers]
    assert told == [(404, "stream-not-found")] * count
    assert later.json()["stream_id"] == harness.stream_id, "who comes later asks for the new one"


async def test_who_waits_for_bounds_of_a_stream_whose_name_is_made_anew_is_told_of_its_end(
    harness: ReaderHarness,
) -> None:
    """It was answered with the bounds of the new stream, as if the one it knew had shrunk."""
    harness.fill(10)
    polls = await polled(harness, 2, "/offsets?after=10&wait_ms=20000")
    harness.stream_id = StreamId(STREAM_ID.replace("0", "1"))
    harness.append("of another stream")
    answers = [await poll for poll in polls]
    later = await harness.get("/offsets?wait_ms=20000&after=9")

    told = [(answer.status_code, answer.json()["code"]) for answer in answers]
    assert told == [(404, "stream-not-found")] * 2
    assert later.json()["stream_id"] == harness.stream_id, "who comes later asks for the new one"


async def test_bounds_are_waited_for(harness: ReaderHarness) -> None:
    harness.fill(10)
    at_once = (await harness.get("/offsets?wait_ms=20000&after=9")).json()
    (poll,) = await polled(harness, 1, "/offsets?wait_ms=20000")
    harness.append("a")
    grown = (await poll).json()
    (poll,) = await polled(harness, 1, "/offsets?wait_ms=20000&after=12")
    for _ in range(2):
        assert not poll.done()
        harness.append("b")
        await comes_true(lambda: poll.done() or asked_at(harness, harness.committed_next))
    late = (await poll).json()
    in_vain = (await harness.get("/offsets?wait_ms=50&after=13")).json()

    assert [each["next_offset"] for each in (at_once, grown, late, in_vain)] == [10, 11, 13, 13]


@pytest.mark.parametrize(
    "query",
    [
        "/offsets?after=3",
        "/offsets?wait_ms=30001",
        "/records?offset=0&min_records=2",
        "/records?offset=0&min_bytes=2",
        "/records?offset=0&max_wait_ms=1&min_records=0",
        "/records?offset=0&max_wait_ms=1&min_bytes=16777217",
        "/records?offset=0&max_wait_ms=1&follow=true",
        "/records?offset=0&follow=yes",
    ],
)
async def test_what_means_nothing_is_refused(harness: ReaderHarness, query: str) -> None:
    problem = (await harness.get(query)).json()

    assert (problem["status"], problem["code"]) == (400, "bad-parameter")
    assert problem["errors"][0]["parameter"] in query


async def test_what_followers_leave_is_kept_within_its_budget() -> None:
    harness = ReaderHarness(reader_tail_bytes=8_192)
    for _ in range(20):
        (poll,) = await polled(
            harness, 1, f"/records?offset={harness.committed_next}&max_wait_ms=9000"
        )
        harness.append("x" * 1_000)
        await poll
        assert harness.service.shared.kept_size <= 8_192
    assert harness.service.shared.kept_size > 4_096
    await harness.aclose()


async def test_streams_that_are_waited_for_are_bounded() -> None:
    harness = ReaderHarness(reader_waiting_stream_count_max=1)
    harness.fill(10)
    polls = await polled(harness, 1, "/records?offset=10&max_wait_ms=20000")
    shared = harness.service.shared
    assert shared.flight_count == 1
    name = FullName(TENANT_DEFAULT, StreamName("orders"))
    stream = await harness.service.followers.reader._streams.find(name)
    other = await asyncio.gather(shared.wait(stream.stream, 7, 1), return_exceptions=True)
    harness.append("new")
    await asyncio.gather(*polls)
    await harness.aclose()

    assert getattr(other[0], "code", None) == Code.OVERLOADED
    assert stream.stream.stream_id == STREAM_ID
