"""Reads of members of consumer groups: who does not hold the stream any more reads nothing (G5).

The clock is the test's own: no test waits for a second to pass.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from support.guards import remove
from unit.reader.harness import ReaderHarness
from unit.reader.open_answers import served
from unit.reader.protocol import STREAM_ID, Manifest

from bottomless.errors import Code, WrongOffset
from bottomless_server.protocol.group_members import HELD, MemberOf
from bottomless_server.protocol.peer import PeerAnswer
from bottomless_server.reader.fences import KEEP_MS, Claim, read_claim

ONE, OTHER = "1" * 32, "2" * 32
FORMS = [
    ("offset=first", "application/json"),
    ("offset=first", "application/vnd.apache.arrow.stream"),
    ("offset=first&filter_mode=chunk&filter=a", "application/vnd.bottomless.chunks"),
    ("offset=first", "application/vnd.bottomless.chunks"),
    ("offset=first", "application/x-ndjson"),
    ("offset=first&follow=true", "application/x-ndjson"),
    ("offset=first", "text/event-stream"),
    ("offset=next&max_wait_ms=30000", "application/json"),
]


class StillHarness(ReaderHarness):
    """Its clock stands still until the test moves it."""

    time_passes = False


@pytest.fixture
async def shared() -> AsyncIterator[ReaderHarness]:
    """A stream with ten records that member ONE holds, with generation 7."""
    made = StillHarness()
    made.fill(10)
    made.holders[MemberOf(STREAM_ID, ONE)] = 7
    yield made
    await made.aclose()


def as_member(member_id: str = ONE, generation: object = 7) -> dict[str, str]:
    return {"Group_Member": member_id, "Group_Generation": str(generation)}


def questions(harness: ReaderHarness) -> int:
    return harness.asked.count(HELD)


@pytest.mark.parametrize(("query", "accept"), FORMS)
@pytest.mark.parametrize("claim", [(OTHER, 7), (ONE, 6), (ONE, 8)])
async def test_who_does_not_hold_the_stream_reads_it_in_no_form(
    shared: ReaderHarness, query: str, accept: str, claim: tuple[str, int]
) -> None:
    async with (
        served(shared) as client,
        client.get(query, accept=accept, **as_member(*claim)) as answer,
    ):
        problem = await answer.json(content_type=None)

    assert (answer.status, problem["code"], problem["retryable"]) == (409, "not-active", False)


@pytest.mark.parametrize(("query", "accept"), FORMS[:5])
async def test_who_holds_it_reads_what_everybody_reads(
    shared: ReaderHarness, query: str, accept: str
) -> None:
    plain = await shared.get(f"/records?{query}", accept=accept)
    fenced = await shared.get(f"/records?{query}", accept=accept, **as_member())

    assert (fenced.status_code, fenced.content) == (200, plain.content)


async def test_a_holder_is_asked_for_once_a_second_however_much_it_reads(
    shared: ReaderHarness,
) -> None:
    for _ in range(5):
        assert (await shared.get("/records?offset=first", **as_member())).status_code == 200
    assert questions(shared) == 1
    shared.now_ms += KEEP_MS
    assert (await shared.get("/records?offset=first", **as_member())).status_code == 200
    assert questions(shared) == 2


async def test_who_was_deposed_reads_for_less_than_a_second(shared: ReaderHarness) -> None:
    assert (await shared.get("/records?offset=first", **as_member())).status_code == 200
    shared.holders.clear()

    shared.now_ms += KEEP_MS - 1
    assert (await shared.get("/records?offset=first", **as_member())).status_code == 200
    shared.now_ms += 1
    assert (await shared.get("/records?offset=first", **as_member())).status_code == 409


async def test_who_became_the_holder_a_moment_ago_is_let_in(shared: ReaderHarness) -> None:
    """Only that somebody may read is remembered."""
    assert (await shared.get("/records?offset=first", **as_member(ONE, 8))).status_code == 409
    shared.holders[MemberOf(STREAM_ID, ONE)] = 8
    assert (await shared.get("/records?offset=first", **as_member(ONE, 8))).status_code == 200


async def test_members_that_read_at_one_time_are_asked_for_together(shared: ReaderHarness) -> None:
    members = [f"{number:032x}" for number in range(100)]
    shared.holders |= {MemberOf(STREAM_ID, one): 7 for one in members}

    answers = await asyncio.gather(
        *(shared.get("/records?offset=first", **as_member(one)) for one in members)
    )

    assert {answer.status_code for answer in answers} == {200}
    assert questions(shared) <= 4


@pytest.mark.parametrize("query", ["offset=first&follow=true", "offset=first"])
async def test_an_answer_that_stays_open_gives_a_deposed_member_nothing_more(
    shared: ReaderHarness, query: str
) -> None:
    accept = "application/x-ndjson" if "follow" in query else "text/event-stream"
    async with (
        served(shared) as client,
        client.get(query, accept=accept, **as_member()) as following,
        client.get(query, accept=accept) as anybody,
    ):
        for answer in (following, anybody):
            assert b"value 9" in await until_line(answer.content, b"value 9")
        shared.holders.clear()
        shared.now_ms += KEEP_MS
        shared.append("new")
        assert b"new" in await until_line(anybody.content, b"new")
        rest = await following.content.read()

    assert b"new" not in rest
    assert b'"code":"not-active"' in rest


async def until_line(content: aiohttp.StreamReader, text: bytes) -> bytes:
    while text not in (line := await content.readline()):
        assert line, "the answer has ended"
    return line


async def test_a_member_that_waits_hears_that_it_was_deposed() -> None:
    harness = StillHarness()
    harness.holders[MemberOf(STREAM_ID, ONE)] = 7
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        """The second after which it is asked again passes when the read waits at the tail."""
        pauses.append(seconds)
        await harness.waiting.wait()
        harness.holders.clear()
        harness.now_ms += round(seconds * 1000)

    harness.service.fences.pause = pause
    waiting = await harness.get("/records?offset=next&max_wait_ms=30000", **as_member())
    await harness.aclose()

    assert (waiting.status_code, waiting.json()["code"]) == (409, "not-active")
    assert pauses == [KEEP_MS / 1000]


async def test_a_member_that_waits_hears_of_it_in_a_second_though_another_read_asked_meanwhile() -> (
    None
):
    """It looked a second after it had looked last. By then another read had asked, so it believed that
    for a second more."""
    harness = StillHarness()
    harness.holders[MemberOf(STREAM_ID, ONE)] = 7
    pauses: list[float] = []
    assert (await harness.get("/records?offset=first", **as_member())).status_code == 200
    harness.now_ms += KEEP_MS - 1

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await harness.waiting.wait()
        if len(pauses) == 1:
            harness.now_ms += 1
            # As another read of the member does, and in that moment it is deposed.
            await harness.service.fences.check(STREAM_ID, Claim(ONE, 7))
            harness.holders.clear()
            return
        harness.now_ms += round(seconds * 1000)

    harness.service.fences.pause = pause
    waiting = await harness.get("/records?offset=next&max_wait_ms=30000", **as_member())
    await harness.aclose()

    assert (waiting.status_code, waiting.json()["code"]) == (409, "not-active")
    assert pauses == [0.001, KEEP_MS / 1000]


async def test_nobody_reads_as_a_member_while_nobody_can_tell_who_holds_the_stream(
    shared: ReaderHarness,
) -> None:
    assert (await shared.get("/records?offset=first", **as_member())).status_code == 200
    shared.groups_fail = True
    assert (await shared.get("/records?offset=first", **as_member())).status_code == 200
    shared.now_ms += KEEP_MS
    answer = await shared.get("/records?offset=first", **as_member())
    assert answer.status_code == 503
    assert answer.json()["retryable"] is True
    shared.groups_fail = False
    assert (await shared.get("/records?offset=first", **as_member())).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Group_Member": ONE},
        {"Group_Generation": "7"},
        as_member("x"),
        as_member(ONE[1:]),
        as_member(ONE.upper().replace("1", "A")),
        as_member(ONE, "-1"),
        as_member(ONE, "07"),
        as_member(ONE, "0"),
        as_member(ONE, 2**53),
        as_member(ONE, ""),
    ],
)
async def test_the_two_headers_come_together_and_are_what_a_join_gave(
    shared: ReaderHarness, headers: dict[str, str]
) -> None:
    answer = await shared.get("/records?offset=first", **headers)

    assert (answer.status_code, answer.json()["code"]) == (400, "bad-header")
    assert questions(shared) == 0


def test_a_read_without_the_headers_is_of_nobody() -> None:
    assert read_claim(None, None) is None
    assert read_claim(ONE, "7") == (ONE, 7)


async def test_without_its_guard_a_deposed_member_reads_on(
    shared: ReaderHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch, "the generation in a fenced read", lambda *_: None)
    shared.holders.clear()
    assert (await shared.get("/records?offset=first", **as_member())).status_code == 200


@pytest.mark.parametrize("guarded", [True, False])
async def test_what_manifest_had_seen_before_it_stood_still_lets_nobody_read(
    shared: ReaderHarness, guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had looked who holds the stream, stood still for as long as it took another one to become the
    holder, and answered: the first one was given a page."""
    if not guarded:
        remove(monkeypatch, "the age of what is said of a member of a group", lambda _: True)
    call, questions_left = Manifest.call, 1

    async def stands_still(manifest: Manifest, method: str, path: str, **asked: Any) -> PeerAnswer:
        nonlocal questions_left
        answer = await call(manifest, method, path, **asked)
        if path == HELD and questions_left:
            questions_left -= 1
            shared.now_ms += 10 * KEEP_MS
            shared.holders = {MemberOf(STREAM_ID, OTHER): 8}
        return answer

    monkeypatch.setattr(Manifest, "call", stands_still)
    check = shared.service.fences.check(STREAM_ID, Claim(ONE, 7))

    if not guarded:
        await check
        return
    with pytest.raises(WrongOffset) as refused:
        await check
    assert refused.value.code is Code.NOT_ACTIVE


async def test_where_every_answer_comes_too_late_a_member_is_told_to_come_again(
    shared: ReaderHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = Manifest.call

    async def is_slow(manifest: Manifest, method: str, path: str, **asked: Any) -> PeerAnswer:
        shared.now_ms += KEEP_MS * (path == HELD)
        return await call(manifest, method, path, **asked)

    monkeypatch.setattr(Manifest, "call", is_slow)
    answer = await shared.get("/records?offset=first", **as_member())
    assert answer.status_code == 503
    assert answer.json()["retryable"] is True
