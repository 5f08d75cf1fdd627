"""Appends on the lane: what a gate, a limit or a page of a stranger means for them is what it means
on the usual way, and an append is in line once or not at all."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.guards import remove
from support.lane import Served, served

from bottomless.errors import StoreError
from bottomless_server.core.principal import Principal
from bottomless_server.runtime.identity.audit import Audit
from bottomless_server.runtime.identity.gate import Gate
from unit.ingest.test_lane_differences import Answer, Sent, request, talk, typed
from unit.ingest.test_names_of_deleted import OTHER, advance, create_again, delete
from unit.runtime.identity.test_identity_gate import Known, ada
from unit.runtime.test_runtime_protocol import as_served

JSON = typed("application/json")
BODY = b'{"records": [{"value": "x"}]}'
GOOD = Sent(request(BODY, JSON))


class KnownAtOnce(Known):
    """Knows the same people without asking anybody."""

    def at_once(self, token: str) -> Principal | None:
        found = self.people.get(token)
        return None if isinstance(found, StoreError) else found


async def say(side: Served, *sent: Sent) -> list[Answer]:
    return await talk(side, [b"".join(one.message for one in sent)], sent)


async def warm(side: Served, one: Sent = GOOD) -> Served:
    """The first append asks for the name, and goes the usual way; the next one does not."""
    assert (await say(side, one))[0].status == 200
    assert side.lane is not None
    assert side.lane.taken == 0
    return side


@as_served
async def test_pipelined_appends_are_stored_by_one_round_and_answered_in_order(
    tmp_path: Path,
) -> None:
    async with served(tmp_path / "i", by_lane=True) as side:
        await warm(side)
        files = side.harness.service.files
        before = synced(files)
        answers = await say(side, *[GOOD] * 8)
        assert [one.body["first_offset"] for one in answers] == list(range(1, 9))
        assert side.lane is not None
        assert side.lane.taken == 8
        # One is under way when the first of them is in line, at most.
        assert synced(files) - before <= 2


def synced(files: Any) -> int:
    return sum(call.name == "fdatasync" for call in files.calls)


@as_served
async def test_an_append_that_fails_in_its_round_is_answered_and_not_repeated(
    tmp_path: Path,
) -> None:
    async with served(tmp_path / "i", by_lane=True) as side:
        await warm(side)
        expected = Sent(request(BODY, JSON, ("Stream-Expected-Offset", "7")))
        [refused] = await say(side, expected)
        assert (refused.status, refused.body["code"]) == (412, "offset-mismatch")
        assert side.lane is not None
        assert side.lane.taken == 1
        assert side.harness.appender.log.committed_next == 1


@as_served
async def test_a_drain_waits_for_appends_on_the_lane_and_lets_no_new_one_in(
    tmp_path: Path,
) -> None:
    async with served(tmp_path / "i", by_lane=True) as side:
        await warm(side)
        under_way = side.harness.service.under_way
        reader, writer = await asyncio.open_connection("127.0.0.1", side.listener.port)
        writer.write(GOOD.message[:-5])
        while not under_way.count:
            await asyncio.sleep(0)
        draining = asyncio.create_task(under_way.drain())
        await asyncio.sleep(0)
        assert not draining.done()
        [late] = await say(side, GOOD)
        assert (late.status, late.body["code"]) == (503, "draining")
        writer.write(GOOD.message[-5:])
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        await draining
        writer.transport.abort()


async def with_gate(directory: Path, token: str, people: dict[str, Any]) -> tuple[Answer, int]:
    """What an append with a token is answered once the name is known, and how many took the lane."""
    gate = Gate(KnownAtOnce(ada=ada("append"), **people), Audit(None), check_seconds=5)
    async with served(directory, by_lane=True, gate=gate) as side:
        bearer = ("Authorization", "Bearer ada")
        await warm(side, Sent(request(BODY, JSON, bearer)))
        [answer] = await say(side, Sent(request(BODY, JSON, ("Authorization", f"Bearer {token}"))))
        assert side.lane is not None
        return answer, side.lane.taken


@as_served
async def test_a_credential_that_is_known_and_good_enough_takes_the_lane(tmp_path: Path) -> None:
    answer, taken = await with_gate(tmp_path / "i", "ada", {})
    assert (answer.status, taken) == (200, 1)


@pytest.mark.parametrize(
    ("token", "status"), [("bob", 403), ("eve", 404), ("nobody", 401), ("ada other", 401)]
)
@as_served
async def test_whoever_may_not_append_is_told_so_by_the_gate(
    tmp_path: Path, token: str, status: int
) -> None:
    people = {"bob": ada("read"), "eve": ada("append:others")}
    answer, taken = await with_gate(tmp_path / "i", token, people)
    assert (answer.status, taken) == (status, 0)


@as_served
async def test_a_credential_of_another_tenant_means_other_streams(tmp_path: Path) -> None:
    answer, taken = await with_gate(tmp_path / "i", "zoe", {"zoe": ada("append", tenant="z")})
    assert (answer.status, answer.body["code"], taken) == (404, "stream-not-found", 0)


@as_served
async def test_without_the_gate_on_the_lane_anybody_appends(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        remove(patch, "the gate, on the lane", lambda _, __: True)
        answer, taken = await with_gate(tmp_path / "i", "nobody", {})
        assert (answer.status, taken) == (200, 1)


async def of_a_stranger(directory: Path) -> tuple[int, int]:
    async with served(directory, by_lane=True) as side:
        await warm(side)
        [answer] = await say(side, Sent(request(BODY, JSON, host="pages.example")))
        return answer.status, side.harness.appender.log.committed_next


@as_served
async def test_the_page_of_a_stranger_appends_nothing(tmp_path: Path) -> None:
    assert await of_a_stranger(tmp_path / "i") == (403, 1)


@as_served
async def test_without_the_look_at_pages_on_the_lane_it_does(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        remove(patch, "the look at pages of strangers, on the lane", lambda _, __: False)
        assert await of_a_stranger(tmp_path / "i") == (200, 2)


@as_served
async def test_a_limit_of_rates_counts_an_append_once_by_whichever_way_it_goes(
    tmp_path: Path,
) -> None:
    limits: dict[str, Any] = {
        "rate_tenant_requests_per_second": 4,
        "rate_key_append_bytes_per_second": 16_384,
        "by_clock": lambda: 1.0,
    }
    bad = Sent(request(b"{", JSON))
    sent = [GOOD, GOOD, bad, GOOD, GOOD, bad]
    told = []
    for by_lane in (False, True):
        async with served(tmp_path / str(by_lane), by_lane=by_lane, **limits) as side:
            told.append([await say(side, one) for one in sent])
            assert side.lane is None or side.lane.taken == 3
    assert told[1] == told[0]
    assert [answer.status for [answer] in told[1]] == [200, 200, 400, 200, 429, 429]
    assert "ratelimit" in dict(told[1][1][0].headers)


@as_served
async def test_answers_say_that_they_vary_where_origins_are_listed(tmp_path: Path) -> None:
    told = []
    for by_lane in (False, True):
        given: dict[str, Any] = {"cors_origins": "https://app.example"}
        async with served(tmp_path / str(by_lane), by_lane=by_lane, **given) as side:
            await say(side, GOOD)
            told.append(await say(side, GOOD))
    assert told[1] == told[0]
    assert ("vary", "origin") in told[1][0].headers


async def slow_over_a_deletion(directory: Path, *, by_lane: bool = True) -> tuple[int, int, bytes]:
    """The ends of a deleted stream, and of the one that has its name, after an append whose body came
    in part before the deletion; and the first line of its answer."""
    async with served(directory, by_lane=by_lane) as side:
        assert (await say(side, GOOD))[0].status == 200
        harness = side.harness
        # Renewals hear of the names that were freed.
        await advance(harness, 3_000)
        reader, writer = await asyncio.open_connection("127.0.0.1", side.listener.port)
        writer.write(GOOD.message[:-5])
        while not harness.service.under_way.count:
            await asyncio.sleep(0)
        assert side.lane is None or side.lane.taken == 1
        await delete(harness)
        await create_again(harness)
        await advance(harness, 45_000)
        writer.write(GOOD.message[-5:])
        told = await reader.readline()
        writer.transport.abort()
        second = harness.service.streams.find(OTHER)
        end = 0 if second is None else second.log.committed_next
        return harness.appender.log.committed_next, end, told.rstrip()


@as_served
async def test_a_slow_body_whose_stream_lost_its_name_meanwhile_is_refused_by_either_way(
    tmp_path: Path,
) -> None:
    """Over the lane it went to the stream that has the name by then, which its client may not know."""
    for by_lane in (True, False):
        told = await slow_over_a_deletion(tmp_path / str(by_lane), by_lane=by_lane)
        assert told == (1, 0, b"HTTP/1.1 404 Not Found"), by_lane


@as_served
async def test_without_another_look_at_the_name_a_slow_body_goes_to_a_deleted_stream(
    tmp_path: Path,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        remove(
            patch,
            "the name, looked at again when the body is there, on the lane",
            lambda *_: True,
        )
        assert await slow_over_a_deletion(tmp_path / "i") == (2, 0, b"HTTP/1.1 200 OK")
