"""A member of a consumer group against answers that no server of ours gives, and over several
partitions."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs

import orjson
import pytest
from support.raw_server import Asked, Cut, answer, problem, raw_server
from support.waiting import eventually

from bottomless.client import AsyncClient, AsyncGroup
from bottomless.client import group as client_group
from bottomless.errors import (
    Code,
    InvalidRequest,
    NotFound,
    StoreError,
    Unavailable,
    WrongOffset,
)

PATIENCE = 240
"""Decides nothing: only what waits for ever meets it."""


def assignment(partition: int, generation: int = 7, **more: Any) -> dict[str, Any]:
    return {
        "partition": partition,
        "stream": f"orders-{partition}",
        "stream_id": f"id-{partition}",
        "generation": generation,
        "next_offset": 0,
        "source": "stored",
        **more,
    }


def heard(*assignments: dict[str, Any], revoked: Any = (), **more: Any) -> bytes:
    return answer(value={"assignments": list(assignments), "revoked": list(revoked), **more})


def records(first: int, count: int) -> bytes:
    """A batch as the server sends it."""
    each = [{"offset": offset, "value": str(offset)} for offset in range(first, first + count)]
    control = {"_control": {"next_offset": first + count, "up_to_date": True}}
    return b"".join(orjson.dumps(value) + b"\n" for value in (*each, control))


class Shared:
    """A stream of two partitions and one member, which holds what `holds` says."""

    def __init__(self, *holds: dict[str, Any]) -> None:
        self.holds = list(holds)
        self.beats: list[bytes] = []
        """What the next heartbeats are answered; nothing more comes after them."""
        self.batches: dict[str, list[bytes]] = {}
        """What each stream gives, in one answer."""
        self.commits: list[tuple[str, int]] = []
        self.commit_reply: Callable[[str], bytes] = lambda _: answer(value={"next_offset": 0})
        self.heartbeats: list[dict[str, Any]] = []
        self.left = False
        self.readers: list[tuple[str | None, str | None]] = []
        """As whom was read."""
        self.supers = False
        """Whether the name is that of a super stream."""
        self.places: list[tuple[str, Any]] = []
        """Where which stream was resolved."""
        self.more = asyncio.Event()
        """There is another heartbeat to answer."""

    def __call__(self, asked: Asked) -> bytes | Awaitable[bytes]:
        path, _, query = asked.path.partition("?")
        if "/groups" in path and path.startswith("/v1/super-streams/") is not self.supers:
            return problem(404, "stream-not-found")
        if asked.method == "GET" and path.endswith("/groups/billing"):
            return answer(value={"group": "billing"})
        if asked.method == "GET" and path.endswith("/groups"):
            return answer(value={"items": [{"group": "billing"}, {"group": "other"}]})
        if path.endswith("/offsets/resolve"):
            self.places.append((path.split("/")[3], parse_qs(query)["spec"]))
            return answer(value={"offset": 0, "clamped": False, "stream_id": "id"})
        if path.endswith("/members"):
            joined = {"member_id": "m1", "assignments": self.holds, "revoked": []}
            return answer(201, joined)
        if path.endswith("/heartbeat"):
            self.heartbeats.append(orjson.loads(asked.body))
            return self._beat()
        if asked.method == "DELETE":
            self.left = True
            return answer(204, body=b"")
        stream = path.split("/")[3]
        if asked.method == "PUT":
            self.commits.append((stream, orjson.loads(asked.body)["next_offset"]))
            return self.commit_reply(stream)
        self.readers.append((asked.header("Group-Member"), asked.header("Group-Generation")))
        return self._records(stream)

    async def _beat(self) -> bytes:
        while not self.beats:
            self.more.clear()
            await self.more.wait()
        return self.beats.pop(0)

    def say(self, *beats: bytes) -> None:
        self.beats += beats
        self.more.set()

    async def _records(self, stream: str) -> bytes:
        given = self.batches.pop(stream, None)
        if given is None:
            await asyncio.Event().wait()
        if given and given[0].startswith(b"HTTP"):
            return given[0]
        head = (
            "HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\n"
            f"Stream-Id: id-{stream[-1]}\r\nPage-Start-Offset: 0\r\nConnection: close\r\n\r\n"
        )
        return Cut(head.encode() + b"".join(given or ()))


@asynccontextmanager
async def sharing(shared: Shared, **options: Any) -> AsyncIterator[AsyncGroup]:
    async with (
        asyncio.timeout(PATIENCE),
        raw_server(shared) as server,
        AsyncClient(server.url, retry_seconds=0.5) as client,
        client.group("orders", "billing", member="one", **options) as group,
    ):
        yield group


MALFORMED = {
    "no members": answer(value={}),
    "no list": heard(revoked=[], assignments=5),
    "a number that is a text": heard(assignment(0, generation="7")),  # type: ignore[arg-type]
    "no stream": heard({"partition": 0, "generation": 7, "source": "held"}),
    "a revoked one without a number": heard(revoked=[{}]),
    "no json": answer(body=b"<html>"),
}


@pytest.mark.parametrize("beat", MALFORMED.values(), ids=MALFORMED.keys())
@pytest.mark.parametrize("holds", [True, False], ids=["who reads", "who waits"])
async def test_an_answer_that_nobody_understands_ends_the_iteration_with_an_error(
    beat: bytes, holds: bool
) -> None:
    """It ended the heartbeats without a word once, and the program waited for ever."""
    shared = Shared(*[assignment(0)] * holds)
    async with sharing(shared) as group:
        waiting = asyncio.create_task(group.poll(PATIENCE))
        await eventually(lambda: shared.heartbeats)
        shared.say(beat)
        with pytest.raises(Unavailable, match="not that of a Bottomless server"):
            await waiting
        with pytest.raises(Unavailable):
            await anext(group)
    assert shared.left


async def test_a_member_is_not_let_in_by_an_answer_that_nobody_understands() -> None:
    with pytest.raises(Unavailable, match="not that of a Bottomless server"):
        async with sharing(Shared({"partition": 0})):
            raise AssertionError


async def test_a_member_waits_out_what_an_operator_has_to_mend() -> None:
    shared = Shared()
    told: list[StoreError] = []
    async with sharing(shared, on_outage=told.append) as group:
        lost = problem(503, "coordination-regressed", retryable=False)
        shared.batches["orders-0"] = [records(0, 2)]
        shared.say(lost, heard(assignment(0)))
        batch = await group.poll(PATIENCE)
    assert batch is not None
    assert batch.next_offset == 2
    assert told[0].code is Code.COORDINATION_REGRESSED


async def test_what_the_programs_own_function_raises_comes_to_the_program() -> None:
    def fail(_: StoreError) -> None:
        raise ValueError("a bug of the program")

    shared = Shared()
    async with sharing(shared, on_outage=fail) as group:
        shared.say(problem(503, "overloaded", retryable=True))
        with pytest.raises(ValueError, match="a bug of the program"):
            await group.poll(PATIENCE)


async def test_a_batch_is_committed_when_its_successor_came_from_another_partition() -> None:
    shared = Shared(assignment(0), assignment(1))
    shared.batches = {"orders-0": [records(0, 3)], "orders-1": [records(0, 5)]}
    async with sharing(shared, commit_seconds=PATIENCE) as group:
        first, second = await group.poll(PATIENCE), await group.poll(PATIENCE)
        assert first is not None
        assert second is not None
    # The second one is in hand: nobody has said that it is processed.
    assert shared.commits == [(f"orders-{first.stream_id[-1]}", first.next_offset)]


async def test_a_commit_by_hand_stores_all_that_was_given() -> None:
    shared = Shared(assignment(0), assignment(1))
    shared.batches = {"orders-0": [records(0, 3)], "orders-1": [records(0, 5)]}
    async with sharing(shared, auto_commit=False) as group:
        await group.poll(PATIENCE)
        await group.poll(PATIENCE)
        assert shared.commits == []
        await group.commit()
        await group.commit()
    assert sorted(shared.commits) == [("orders-0", 3), ("orders-1", 5)]


async def test_one_partition_that_is_anothers_keeps_no_other_from_being_committed() -> None:
    shared = Shared(assignment(0), assignment(1))
    shared.batches = {"orders-0": [records(0, 3)], "orders-1": [records(0, 5)]}
    fenced = problem(409, "consumer-fenced")
    shared.commit_reply = lambda stream: fenced if stream == "orders-0" else answer(value={})
    async with sharing(shared, auto_commit=False) as group:
        await group.poll(PATIENCE)
        await group.poll(PATIENCE)
        with pytest.raises(WrongOffset) as refused:
            await group.commit()
        assert refused.value.code is Code.CONSUMER_FENCED
    assert sorted(shared.commits) == [("orders-0", 3), ("orders-1", 5)]


async def test_a_member_reads_as_the_member_that_it_is() -> None:
    shared = Shared(assignment(0))
    shared.batches = {"orders-0": [records(0, 3)]}
    async with sharing(shared) as group:
        await group.poll(PATIENCE)
    assert ("m1", "7") in shared.readers


@pytest.mark.parametrize("begun", [False, True])
async def test_a_read_that_is_fenced_is_waited_out_like_a_commit(begun: bool) -> None:
    """Before its first byte, and in an answer that stays open."""
    shared = Shared(assignment(0))
    end = {"_control": {"end": "error", "code": "not-active", "retryable": False, "next_offset": 3}}
    refusal = orjson.dumps(end) + b"\n" if begun else problem(409, "not-active")
    shared.batches = {"orders-0": [records(0, 3), refusal] if begun else [refusal]}
    async with sharing(shared) as group:
        if begun:
            await group.poll(PATIENCE)
        waiting = asyncio.create_task(group.poll(PATIENCE))
        await eventually(lambda: not group.holding)
        shared.batches = {"orders-0": [records(3, 2)]}
        shared.say(heard(assignment(0, 8)))
        batch = await waiting
    assert batch is not None
    assert batch.next_offset == 5
    assert ("m1", "8") in shared.readers


async def test_records_that_are_enough_are_committed_whichever_partition_comes_next() -> None:
    shared = Shared(assignment(0), assignment(1))
    shared.batches = {
        "orders-0": [records(0, 3), records(3, 3)],
        "orders-1": [records(0, 5), records(5, 5)],
    }
    async with sharing(shared, commit_seconds=PATIENCE, commit_records=3) as group:
        for _ in range(4):
            await group.poll(PATIENCE)
        assert await group.poll(0.01) is None
        await eventually(lambda: len(shared.commits) >= 2)


async def test_members_of_a_super_stream_are_given_batches_of_its_partitions() -> None:
    shared = Shared(assignment(0), assignment(1))
    shared.supers = True
    shared.batches = {"orders-0": [records(0, 3)], "orders-1": [records(0, 5)]}
    async with sharing(shared, commit_seconds=PATIENCE) as group:
        given = {}
        for _ in range(2):
            batch = await group.poll(PATIENCE)
            assert batch is not None
            given[batch.partition] = {one.partition for one in batch.records}
        await group.commit()
        await eventually(lambda: shared.heartbeats)
    assert given == {0: {0}, 1: {1}}
    assert sorted(shared.commits) == [("orders-0", 3), ("orders-1", 5)]
    assert shared.left


async def test_a_batch_of_a_stream_is_of_no_partition() -> None:
    shared = Shared(assignment(0))
    shared.batches = {"orders-0": [records(0, 3)]}
    async with sharing(shared) as group:
        batch = await group.poll(PATIENCE)
    assert batch is not None
    assert (batch.partition, batch.records[0].partition) == (None, None)


@pytest.mark.parametrize("start", [5, "5"])
async def test_one_offset_is_no_start_of_a_super_stream(start: int | str) -> None:
    shared = Shared()
    shared.supers = True
    with pytest.raises(InvalidRequest, match="one partition"):
        async with sharing(shared, start=start):
            raise AssertionError


async def test_a_partition_that_came_by_growth_begins_with_its_first_record() -> None:
    """Else a group that began with what came next would leave out what came before its member."""
    shared = Shared(assignment(0, source="none"), assignment(3, source="growth"))
    shared.supers = True
    async with sharing(shared, start="next"):
        pass
    assert sorted(shared.places) == [("orders-0", ["next"]), ("orders-3", ["first"])]


async def test_a_member_reads_so_many_partitions_and_holds_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_group, "READ_COUNT_MAX", 2)
    shared = Shared(*(assignment(number) for number in range(3)))
    shared.supers = True
    shared.batches = {f"orders-{number}": [records(0, 1)] for number in range(3)}
    async with sharing(shared) as group:
        for _ in range(2):
            assert await group.poll(PATIENCE) is not None
        assert len(group.holding) == 3
        # One of those that are read goes to another member.
        shared.say(heard(assignment(1), assignment(2)))
        assert await group.poll(PATIENCE) is not None


@pytest.mark.parametrize("supers", [False, True])
async def test_groups_are_shown_of_either(supers: bool) -> None:
    shared = Shared()
    shared.supers = supers
    async with raw_server(shared) as server, AsyncClient(server.url) as client:
        assert (await client.describe_group("orders", "billing"))["group"] == "billing"
        listed = [one["group"] async for one in client.list_groups("orders")]
        await client.delete_group("orders", "billing")
    assert listed == ["billing", "other"]


async def test_where_neither_is_there_it_is_said_of_the_stream() -> None:
    def nothing(asked: Asked) -> bytes:
        kind = "super stream" if "super" in asked.path else "stream"
        return problem(404, "stream-not-found", detail=f"there is no such {kind}")

    async with raw_server(nothing) as server, AsyncClient(server.url) as client:
        with pytest.raises(NotFound, match="no such stream"):
            await client.describe_group("orders", "billing")
