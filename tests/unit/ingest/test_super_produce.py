"""Requests to super streams: routed, divided, stored by the owners of the partitions, answered."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send
from support.asgi import on_tcp
from support.guards import guarded, remove
from support.raw_server import NOTHING, Asked, Script, raw_server
from support.raw_server import answer as raw_answer
from support.raw_server import problem as raw_problem

from bottomless.model.super_stream import SuperState
from bottomless_server.ingest.front import super_produce
from bottomless_server.ingest.front.request_steps import Steps
from bottomless_server.ingest.producers.super_requests import coordinating_partition
from bottomless_server.protocol.parts import StepSaid, encode_step_said
from bottomless_server.runtime.http.app import wrap
from bottomless_server.runtime.http.tracing import Requests
from unit.ingest.harness import STREAM, IngestHarness, pointers, problem
from unit.ingest.super_streams import (
    FULL_EVENTS,
    ROUTE,
    SUPER_ID,
    TEN,
    all_values,
    an_id,
    appender_of,
    declare_super,
    grow,
    send,
    send_part,
    values,
)

HOUR_MS: Final = 3_600_000
HELLO = ["hello2", "hello1", "hello4"]
"""Keys of the partitions 0, 1 and 2."""


@pytest.fixture
async def three(harness: IngestHarness) -> IngestHarness:
    await declare_super(harness)
    return harness


async def test_each_record_goes_to_the_partition_of_its_key(three: IngestHarness) -> None:
    """Scenario P1."""
    answer = await send(three, TEN)
    assert answer.status_code == 200, answer.text
    said = answer.json()
    assert (said["count"], said["duplicates"]) == (10, 0)
    assert [one["record_indexes"] for one in said["results"]] == [
        [1, 4, 6, 8],
        [0, 2, 7],
        [3, 5, 9],
    ]
    first = said["results"][0]
    assert (first["stream"], first["first_offset"], first["last_offset"]) == ("events-0", 0, 3)
    assert await values(three, 0) == ["1 hello2", "4 hello5", "6 hello7", "8 hello9"]


async def test_a_record_without_a_key_leaves_nothing_anywhere(three: IngestHarness) -> None:
    """Scenario P5."""
    records = [{"value": "a", "key": "x"}, {"value": "b"}, {"value": "c", "key": "y"}]
    answer = await three.client.post(ROUTE, json={"records": records})
    assert problem(answer) == (422, "validation-failed")
    assert pointers(answer) == ["/records/1/key"]
    assert await all_values(three) == []


async def test_a_key_without_a_partition_leaves_nothing_anywhere(harness: IngestHarness) -> None:
    """Scenario P8."""
    await declare_super(harness, 2, ["amer", "emea"])
    answer = await send(harness, ["emea", "apac"], producer_id="p", producer_seq=0)
    assert problem(answer) == (422, "no-route")
    assert pointers(answer) == ["/records/1/key"]
    assert await all_values(harness, 2) == []
    assert (await send(harness, ["emea", "amer"])).status_code == 200
    assert await values(harness, 1) == ["0 emea"]


@pytest.mark.parametrize(
    ("headers", "header"),
    [
        ({"idempotency_key": "k"}, "idempotency-key"),
        ({"stream_expected_offset": 0}, "stream-expected-offset"),
        ({"producer_id": "p", "txn_number": 1}, "txn-number"),
        ({"producer_id": "p"}, "producer-id"),
        ({"producer_id": "p" * 241, "producer_seq": 0}, "producer-id"),
        ({"producer_id": "part.1:p", "producer_seq": 0}, "producer-id"),
    ],
)
async def test_conditions_that_only_a_stream_can_hold_are_refused(
    three: IngestHarness, headers: dict[str, object], header: str
) -> None:
    answer = await send(three, TEN, **headers)
    assert problem(answer) == (400, "bad-header")
    assert [fault["header"] for fault in answer.json()["errors"]] == [header]
    assert await all_values(three) == []


async def test_the_longest_name_of_a_producer_is_stored(three: IngestHarness) -> None:
    answer = await send(three, HELLO, producer_id="p" * 240, producer_seq=0)
    assert answer.status_code == 200, answer.text


async def test_staged_batches_are_no_form_for_it(three: IngestHarness) -> None:
    headers = {"content-type": "application/vnd.bottomless.staged+json"}
    answer = await three.client.post(ROUTE, content=b"{}", headers=headers)
    assert problem(answer) == (415, "unsupported-media-type")


async def test_an_unknown_super_stream_is_not_found(three: IngestHarness) -> None:
    answer = await three.client.post("/v1/super-streams/nothing/records", json={"records": []})
    assert problem(answer)[0] == 404
    stream = await three.client.post("/v1/super-streams/orders/records", json={"records": []})
    assert problem(stream)[0] == 404


async def test_a_request_with_numbers_is_stored_once(three: IngestHarness) -> None:
    first = await send(three, TEN, producer_id="p", producer_seq=0)
    assert first.status_code == 200, first.text
    assert "idempotent-replayed" not in first.headers
    again = await send(three, TEN, producer_id="p", producer_seq=0)
    assert again.status_code == 200, again.text
    assert again.headers["idempotent-replayed"] == "true"
    assert (again.json()["count"], again.json()["duplicates"]) == (0, 10)
    places = [[one["first_offset"] for one in said.json()["results"]] for said in (first, again)]
    assert places[0] == places[1]

    gap = await send(three, TEN, producer_id="p", producer_seq=11)
    assert problem(gap) == (409, "producer-sequence-gap")
    assert gap.json()["expected_seq"] == 10
    assert (await send(three, HELLO, producer_id="p", producer_seq=10)).status_code == 200
    assert len(await all_values(three)) == 13


async def test_what_is_known_of_requests_outlives_a_crash(three: IngestHarness) -> None:
    await send(three, TEN, producer_id="p", producer_seq=0)
    after = await three.after_crash().start()
    again = await send(after, TEN, producer_id="p", producer_seq=0)
    assert again.headers["idempotent-replayed"] == "true"
    assert (await send(after, HELLO, producer_id="p", producer_seq=10)).status_code == 200
    assert len(await all_values(after)) == 13
    await after.aclose()


async def test_one_of_two_requests_at_once_is_stored(three: IngestHarness) -> None:
    answers = await asyncio.gather(
        *(send(three, TEN, producer_id="p", producer_seq=0) for _ in range(4))
    )
    assert [one.status_code for one in answers] == [200] * 4
    assert len(await all_values(three)) == 10


async def test_where_one_partition_fails_the_others_are_told_apart_and_a_repeat_finishes_it(
    three: IngestHarness,
) -> None:
    """Scenario P6."""
    await send(three, HELLO)
    appender_of(three, 1).layout = 2
    some = await send(three, TEN, producer_id="p", producer_seq=0)
    assert some.status_code == 207, some.text
    said = some.json()
    assert (said["committed"], said["failed"], said["count"]) == (2, 1, 7)
    [failed] = [one for one in said["results"] if one["status"] != 200]
    assert (failed["stream"], failed["status"]) == ("events-1", 503)
    assert failed["record_indexes"] == [0, 2, 7]
    assert failed["problem"]["code"] == "super-stream-growing"
    assert failed["problem"]["outcome"] == "none"

    later = await send(three, HELLO, producer_id="p", producer_seq=10)
    assert problem(later) == (409, "producer-unknown")
    appender_of(three, 1).layout = 1
    whole = await send(three, TEN, producer_id="p", producer_seq=0)
    assert whole.status_code == 200, whole.text
    assert (whole.json()["count"], whole.json()["duplicates"]) == (3, 7)
    assert len(await all_values(three)) == 13


async def test_a_request_that_is_cut_anew_is_refused_where_it_has_left_a_part(
    three: IngestHarness,
) -> None:
    """Decision 74: a higher epoch is its way out."""
    await send(three, HELLO)
    appender_of(three, 1).layout = 2
    assert (await send(three, TEN, producer_id="p", producer_seq=0)).status_code == 207
    appender_of(three, 1).layout = 1
    cut = await send(three, TEN[:6], producer_id="p", producer_seq=0)
    assert cut.status_code == 207, cut.text
    codes = [one["problem"]["code"] for one in cut.json()["results"] if one["status"] != 200]
    assert codes == ["producer-sequence-overlap"] * 2
    one_part = await send(three, ["hello2"], producer_id="p", producer_seq=0)
    assert problem(one_part) == (409, "producer-sequence-overlap")

    on = await send(three, HELLO, producer_id="p", producer_seq=10, producer_epoch=1)
    assert on.status_code == 200, on.text


SMALL_ROOM: Final[dict[str, Any]] = {
    "ingest_stream_in_flight_bytes_max": 400_000,
    "ingest_in_flight_bytes_max": 800_000,
    "ingest_group_bytes_max": 200_000,
    "ingest_in_flight_wait_ms": 0,
}
LARGE: Final = [f"{number}{'x' * 900}" for number in range(40)]
"""Keys of a request of some 80 KB: more than streams have that hold little."""


@pytest.fixture
async def small(tmp_path: Path) -> AsyncIterator[IngestHarness]:
    harness = IngestHarness(tmp_path / "small", **SMALL_ROOM)
    await declare_super(harness)
    await harness.start()
    yield harness
    await harness.aclose()


async def test_requests_that_fill_the_room_do_not_wait_for_each_other(small: IngestHarness) -> None:
    """Each holds room for its records once, and needs no more while it is stored."""
    answers = await asyncio.gather(*(send(small, LARGE) for _ in range(4)))
    assert [one.status_code for one in answers] == [200] * 4
    assert small.service.super_room.admission.total == 0


async def test_parts_and_requests_do_not_wait_for_each_others_room(small: IngestHarness) -> None:
    """Two nodes that divide requests, each with parts for the other, would both wait in vain."""
    async with small.service.room.hold(STREAM, 800_000):
        assert (await send(small, LARGE)).status_code == 200
        assert problem(await send_part(small, 0, layout=1, size=80_000)) == (503, "overloaded")
    async with small.service.super_room.hold(STREAM, 400_000):
        assert (await send_part(small, 0, layout=1, size=80_000)).status_code == 200
        assert problem(await send(small, LARGE)) == (503, "overloaded")


async def test_where_all_partitions_fail_alike_there_is_one_problem(three: IngestHarness) -> None:
    await send(three, HELLO)
    for index in range(3):
        appender_of(three, index).layout = 2
    answer = await send(three, TEN)
    assert problem(answer) == (503, "super-stream-growing")
    assert answer.json()["outcome"] == "none"


async def test_while_it_grows_nothing_is_taken(three: IngestHarness) -> None:
    await three.supers.update(SUPER_ID, lambda one: replace(one, state=SuperState.GROWING))
    assert problem(await send(three, TEN)) == (503, "super-stream-growing")
    await three.supers.update(SUPER_ID, lambda one: replace(one, state=SuperState.ACTIVE))
    assert (await send(three, TEN)).status_code == 200


async def test_a_higher_epoch_locks_the_older_run_out_everywhere(three: IngestHarness) -> None:
    await send(three, TEN, producer_id="p", producer_seq=0)
    newer = await send(three, HELLO, producer_id="p", producer_seq=10, producer_epoch=3)
    assert newer.status_code == 200, newer.text
    older = await send(three, HELLO, producer_id="p", producer_seq=13)
    assert problem(older) == (409, "producer-fenced")
    for index in range(3):
        assert appender_of(three, index).tracking.producers["part.1:p"].epoch == 3


async def test_an_epoch_that_is_raised_by_hand_tells_where_to_go_on(three: IngestHarness) -> None:
    await send(three, HELLO)
    appender_of(three, 1).layout = 2
    assert (await send(three, TEN, producer_id="p", producer_seq=0)).status_code == 207
    appender_of(three, 1).layout = 1
    path = "/v1/super-streams/events/producers/p/epoch"
    raised = await three.client.post(path)
    assert raised.json() == {"producer_id": "p", "epoch": 1, "last_seq": 9}
    assert problem(await send(three, TEN, producer_id="p", producer_seq=0)) == (
        409,
        "producer-fenced",
    )
    on = await send(three, HELLO, producer_id="p", producer_seq=10, producer_epoch=1)
    assert on.status_code == 200, on.text
    assert (await three.client.post(path)).json()["epoch"] == 2


async def test_names_of_requests_are_not_shown_as_producers(three: IngestHarness) -> None:
    await send(three, TEN, producer_id="p", producer_seq=0)
    for index in range(3):
        listed = await three.client.get(f"/v1/streams/events-{index}/producers")
        assert listed.json()["items"] == []


async def test_a_request_that_is_repeated_after_a_growth_is_stored_once(
    three: IngestHarness,
) -> None:
    await send(three, HELLO)
    appender_of(three, 1).layout = 2
    some = await send(three, TEN, producer_id="p", producer_seq=0)
    assert some.status_code == 207
    await grow(three, 5, three.time.wall)

    again = await send(three, TEN, producer_id="p", producer_seq=0)
    assert again.status_code == 200, again.text
    assert {one["partition"] for one in again.json()["results"]} == {0, 1, 2}
    assert (again.json()["count"], again.json()["duplicates"]) == (3, 7)
    on = await send(three, TEN, producer_id="p", producer_seq=10)
    assert {one["partition"] for one in on.json()["results"]} > {3}
    repeat = await send(three, TEN, producer_id="p", producer_seq=0)
    assert repeat.headers["idempotent-replayed"] == "true"
    assert all(one["first_offset"] is not None for one in repeat.json()["results"])
    assert len(await all_values(three, 5)) == 23


async def test_a_router_that_has_not_heard_of_a_growth_is_refused_and_asks_again(
    three: IngestHarness,
) -> None:
    await send(three, HELLO)
    await grow(three, 5, three.time.wall)
    assert problem(await send(three, TEN)) == (503, "super-stream-growing")
    assert (await send(three, TEN)).status_code == 200


async def test_a_repeat_at_a_router_that_has_not_heard_of_a_growth_is_refused_and_then_found(
    three: IngestHarness,
) -> None:
    """By the older layout it would look for the parts in other partitions than they are in."""
    await send(three, HELLO)
    stale = await three.service.supers.find(FULL_EVENTS)
    await grow(three, 5, three.time.wall)
    three.service.supers.forget(FULL_EVENTS)
    first = await send(three, TEN, producer_id="p", producer_seq=0)
    assert first.status_code == 200, first.text
    three.service.supers.remember(FULL_EVENTS, stale, three.time.clocks().monotonic())
    again = await send(three, TEN, producer_id="p", producer_seq=0)
    assert problem(again) == (503, "super-stream-growing")
    found = await send(three, TEN, producer_id="p", producer_seq=0)
    assert found.headers["idempotent-replayed"] == "true"
    places = [[one["first_offset"] for one in said.json()["results"]] for said in (first, found)]
    assert places[0] == places[1]


def held_up(
    patch: pytest.MonkeyPatch, owner: object, method: str
) -> tuple[asyncio.Event, asyncio.Event]:
    """Let the next call of a method wait: for the second event, after it has set the first one."""
    asked, goes_on, real = asyncio.Event(), asyncio.Event(), getattr(owner, method)

    async def slow(*arguments: object) -> object:
        patch.setattr(owner, method, real)
        asked.set()
        await goes_on.wait()
        return await real(*arguments)

    patch.setattr(owner, method, slow)
    return asked, goes_on


async def lapse_and_grow(three: IngestHarness) -> None:
    """The lease of the owner is over, the super stream grows, and the owner takes the lease again."""
    three.time.advance(60_000)
    await grow(three, 5, three.time.wall, tells=False)
    await three.lease.renew()
    three.service.supers.forget(FULL_EVENTS)


MOVING: Final = ["hello1", "hello8"]
"""Keys of partition 1 of three, and of the partitions 3 and 4 of five."""


async def test_a_repeat_after_a_growth_waits_for_a_round_that_began_before(
    three: IngestHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease ran out while a part was written, so the growth did not wait for it."""
    for _ in range(3):
        assert (await send(three, HELLO)).status_code == 200
    assert (await send(three, ["hello2"], producer_id="p", producer_seq=0)).status_code == 200
    asked, goes_on = held_up(monkeypatch, three.service.context.rounds, "write")
    first = asyncio.create_task(send(three, MOVING, producer_id="p", producer_seq=1))
    await asked.wait()
    await lapse_and_grow(three)
    again = asyncio.create_task(send(three, MOVING, producer_id="p", producer_seq=1))
    for _ in range(50):
        await asyncio.sleep(0.01)
    goes_on.set()

    refused, found = await first, await again

    assert problem(refused) == (503, "not-owner")
    assert refused.json()["outcome"] == "unknown"
    assert found.status_code == 200, found.text
    assert found.json()["duplicates"] == 2
    assert [await values(three, index) for index in (3, 4)] == [[], []]


@pytest.mark.parametrize("guarded", [True, False])
async def test_a_round_that_was_chosen_before_a_lapse_is_not_written_after_it(
    three: IngestHarness, guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its keys go to other partitions by now, and what is written there comes after it."""
    if not guarded:
        remove(monkeypatch, "the term of the lease in which a round was chosen", lambda *_: None)
    assert (await send(three, HELLO)).status_code == 200
    claim = appender_of(three, 1).claim
    asked, goes_on = held_up(monkeypatch, claim, "reserve")
    first = asyncio.create_task(send(three, MOVING))
    await asked.wait()
    await lapse_and_grow(three)
    # Somebody asks for the partition, so its claim is good again.
    await three.service.owners.at(an_id(1))
    assert (await send(three, MOVING)).status_code == 200
    goes_on.set()

    answer = await first

    assert len(await values(three, 1)) == (1 if guarded else 3)
    if guarded:
        assert problem(answer) == (503, "not-owner")
        assert answer.json()["outcome"] == "none"


@pytest.mark.parametrize("guarded", [True, False])
async def test_a_repeat_after_a_growth_is_stored_once_whatever_the_clocks_say(
    three: IngestHarness, guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of whoever let it grow is eleven minutes after that of the owners."""
    if not guarded:
        remove(monkeypatch, "the layout of the request before, as it is remembered", lambda *_: 2)
    assert (await send(three, HELLO)).status_code == 200
    assert (await send(three, HELLO, producer_id="p", producer_seq=0)).status_code == 200
    appender_of(three, 1).layout = 2
    assert (await send(three, TEN, producer_id="p", producer_seq=3)).status_code == 207
    await grow(three, 5, three.time.wall - 660_000)

    again = await send(three, TEN, producer_id="p", producer_seq=3)

    assert again.status_code == 200, again.text
    stored = len(await all_values(three, 5))
    assert stored == 16 if guarded else stored > 16


@pytest.mark.parametrize(
    ("guarded", "pause"), [(True, "sleep"), (True, "advance"), (False, "advance")]
)
async def test_a_node_that_slept_sends_no_part_that_may_be_stored_since(
    three: IngestHarness, guarded: bool, pause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile another node has stored the request, and the partitions have forgotten that."""
    if not guarded:
        remove(monkeypatch, "no part long after the beginning of its request", lambda *_: None)
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def asleep(point: str) -> None:
        if point == "ingest.super.after-begin" and not begun.is_set():
            begun.set()
            await goes_on.wait()

    monkeypatch.setattr(super_produce, "reach", asleep)
    first = asyncio.create_task(send(three, TEN, producer_id="p", producer_seq=0))
    await begun.wait()
    assert (await send(three, TEN, producer_id="p", producer_seq=0)).status_code == 200
    getattr(three.time, pause)(3 * HOUR_MS)
    await three.lease.renew()
    for index in range(3):
        # What a node does where it has no room for all producers.
        while appender_of(three, index).tracking.forget_producer(three.time.elapsed):
            pass
    goes_on.set()
    answer = await first

    stored = sum(appender_of(three, index).log.committed_next for index in range(3))
    if not guarded:
        assert stored == 20
        return
    assert stored == 10
    assert problem(answer)[0] == 503
    assert (answer.json()["outcome"], answer.json()["retryable"]) == ("none", True)


@pytest.mark.parametrize("guarded", [True, False])
async def test_a_request_that_could_not_be_noted_as_whole_leaves_no_part(
    tmp_path: Path, guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not guarded:
        remove(monkeypatch, "a place for a request before its parts are stored", lambda *_: None)
    harness = IngestHarness(tmp_path / "full", ingest_producer_count_max=2)
    await declare_super(harness)
    await harness.start()
    first, second, third = [f"p{number}" for number in range(20) if at_home(f"p{number}")][:3]
    for other in (first, second):
        sent = await send(harness, ["hello2"], producer_id=other, producer_seq=0)
        assert sent.status_code == 200, sent.text
    answer = await send(harness, ["hello4"], producer_id=third, producer_seq=0)
    assert problem(answer) == (429, "quota-exceeded")
    assert answer.json()["outcome"] == ("none" if guarded else "committed")
    assert await values(harness, 2) == ([] if guarded else ["0 hello4"])
    await harness.aclose()


def at_home(producer_id: str) -> bool:
    """Whether partition 1 coordinates its requests."""
    return coordinating_partition(producer_id, 3) == 1


async def test_an_epoch_that_is_not_known_after_it_was_raised_stores_nothing(
    three: IngestHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forgotten(*_: object) -> StepSaid:
        return StepSaid()

    monkeypatch.setattr(Steps, "raise_epoch", forgotten)
    answer = await send(three, HELLO, producer_id="p", producer_seq=0, producer_epoch=3)
    assert answer.status_code == 503
    assert answer.json()["outcome"] == "none"
    assert await all_values(three) == []


async def begin_two(three: IngestHarness) -> list[int]:
    path = "/v1/super-streams/events/producers/p/epoch"
    begun = await asyncio.gather(three.client.post(path), three.client.post(path))
    return sorted(one.json()["epoch"] for one in begun)


async def test_two_runs_that_begin_at_once_get_different_epochs(
    three: IngestHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await begin_two(three)
    assert first < second

    # Without it both are told that the epoch is theirs.
    remove(monkeypatch, "an epoch that no other run of the producer has", lambda *_: None)
    first, second = await begin_two(three)
    assert first == second


async def test_a_run_begins_where_the_coordinating_partition_forgot_the_producer(
    three: IngestHarness,
) -> None:
    for _ in range(3):
        assert (await send(three, TEN)).status_code == 200
        await three.client.post("/v1/super-streams/events/producers/p/epoch")
    known = appender_of(three, coordinating_partition("p", 3)).tracking.producers
    for name in ("super:p", "part.1:p"):
        del known[name]

    begun = await three.client.post("/v1/super-streams/events/producers/p/epoch")

    assert begun.status_code == 200, begun.text
    assert begun.json()["epoch"] > 3


async def test_an_epoch_is_not_raised_by_who_has_not_heard_of_a_growth(
    three: IngestHarness,
) -> None:
    """It would leave out the parts by the newest layout, which an older run may still store."""
    path = "/v1/super-streams/events/producers/p/epoch"
    assert (await send(three, TEN, producer_id="p", producer_seq=0)).status_code == 200
    await grow(three, 5, three.time.wall)
    assert problem(await three.client.post(path)) == (503, "super-stream-growing")
    raised = await three.client.post(path)
    assert raised.json() == {"producer_id": "p", "epoch": 1, "last_seq": 9}
    assert appender_of(three, 0).tracking.producers["part.2:p"].epoch == 1


async def test_without_looking_at_the_layout_an_epoch_is_raised_in_part(
    monkeypatch: pytest.MonkeyPatch, three: IngestHarness
) -> None:
    remove(monkeypatch, "the layout of who raises an epoch", lambda *_: None)
    with pytest.raises(AssertionError):
        await test_an_epoch_is_not_raised_by_who_has_not_heard_of_a_growth(three)


async def test_who_opens_a_partition_takes_no_part_of_an_older_layout(
    three: IngestHarness,
) -> None:
    await send(three, HELLO)
    await grow(three, 5, three.time.wall)
    after = await three.after_crash().start()
    assert problem(await send_part(after, 0, layout=1)) == (503, "super-stream-growing")
    assert (await send_part(after, 0, layout=2)).status_code == 200
    await after.supers.update(SUPER_ID, lambda one: replace(one, state=SuperState.GROWING))
    again = await after.after_crash().start()
    assert problem(await send_part(again, 0, layout=2)) == (503, "super-stream-growing")
    await again.aclose()
    await after.aclose()


async def test_an_owner_whose_lease_was_over_reads_the_layout_again(three: IngestHarness) -> None:
    """Manifest has waited for the end of its lease, and told it nothing."""
    await send(three, HELLO)
    await grow(three, 5, three.time.wall, tells=False)
    three.time.advance(60_000)
    await three.lease.renew()
    assert problem(await send_part(three, 0, layout=1)) == (503, "super-stream-growing")
    assert (await send_part(three, 0, layout=2)).status_code == 200


async def test_without_reading_it_again_in_a_new_term_an_older_layout_is_taken(
    monkeypatch: pytest.MonkeyPatch, three: IngestHarness
) -> None:
    real = guarded("the layout, read anew in each term of a lease")
    remove(
        monkeypatch,
        "the layout, read anew in each term of a lease",
        lambda appender: real(appender) or appender.layout > 0,
    )
    with pytest.raises(AssertionError):
        await test_an_owner_whose_lease_was_over_reads_the_layout_again(three)


async def test_a_stream_that_is_no_partition_takes_no_parts(three: IngestHarness) -> None:
    assert problem(await send_part(three, None, layout=1)) == (404, "stream-not-found")


async def test_without_reading_it_an_older_layout_is_taken(
    monkeypatch: pytest.MonkeyPatch, three: IngestHarness
) -> None:
    remove(monkeypatch, "the layout that a partition is opened with", lambda _: 0)
    with pytest.raises(AssertionError):
        await test_who_opens_a_partition_takes_no_part_of_an_older_layout(three)


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[tuple[IngestHarness, IngestHarness]]:
    """The owner of partition 0, by its internal listener, and the owner of the others."""
    async with AsyncExitStack() as stack:
        served: list[ASGIApp] = []

        async def internal(scope: Scope, receive: Receive, send: Send) -> None:
            await served[0](scope, receive, send)

        url = f"http://127.0.0.1:{await stack.enter_async_context(on_tcp(internal))}"
        owner = IngestHarness(tmp_path / "owner", ingest_url=url)
        await declare_super(owner)
        app = wrap(owner.internal_app)
        served.append(Requests(access_log=False).around(app, trusted=True))
        await owner.start()
        assert (await send(owner, ["hello2"])).status_code == 200
        other = IngestHarness(tmp_path / "other", before=owner, ingest_url="unix:///nobody.sock")
        await other.start()
        yield owner, other
        await other.aclose()
        await owner.aclose()


async def test_a_part_of_another_node_is_stored_there(
    nodes: tuple[IngestHarness, IngestHarness],
) -> None:
    owner, other = nodes
    answer = await send(other, TEN, producer_id="p", producer_seq=0, producer_epoch=2)
    assert answer.status_code == 200, answer.text
    assert [one["first_offset"] for one in answer.json()["results"]] == [1, 0, 0]
    again = await send(other, TEN, producer_id="p", producer_seq=0, producer_epoch=2)
    assert again.headers["idempotent-replayed"] == "true"
    assert [one["first_offset"] for one in again.json()["results"]] == [1, 0, 0]
    assert len(await values(owner, 0)) == 5
    assert owner.service.streams.find(an_id(1)) is None
    assert other.service.counts.forwarded > 0


async def test_a_refusal_of_another_node_is_that_of_its_part(
    nodes: tuple[IngestHarness, IngestHarness],
) -> None:
    owner, other = nodes
    appender_of(owner, 0).layout = 2
    some = await send(other, TEN)
    assert some.status_code == 207
    failed = some.json()["results"][0]
    assert (failed["problem"]["code"], failed["problem"]["outcome"]) == (
        "super-stream-growing",
        "none",
    )


async def answered_by(tmp_path: Path, script: Script, *, listens: bool = True) -> dict[str, Any]:
    """What is said of the part of another node that answers as the script has it."""
    async with raw_server(script) as server:
        url = server.url if listens else "http://127.0.0.1:1"
        owner = IngestHarness(tmp_path / "owner", ingest_url=url)
        await declare_super(owner)
        await owner.start()
        assert (await send(owner, ["hello2"])).status_code == 200
        other = IngestHarness(tmp_path / "other", before=owner, ingest_url="unix:///other.sock")
        await other.start()
        some = await send(other, TEN)
        assert some.status_code == 207, some.text
        result: dict[str, Any] = some.json()["results"][0]
        await other.aclose()
        await owner.aclose()
    return result


@pytest.mark.parametrize(
    ("script", "code", "outcome"),
    [
        (lambda _: NOTHING, "peer-unavailable", "unknown"),
        (lambda _: raw_answer(200, {"first_offset": "7"}), "peer-unavailable", "unknown"),
        (lambda _: raw_answer(502, body=b"<html>"), "peer-unavailable", "unknown"),
        (lambda _: raw_problem(503, "disk-bound"), "disk-bound", "none"),
    ],
    ids=["no answer", "nonsense", "a stranger's page", "a refusal"],
)
async def test_whether_a_part_may_be_stored_is_what_its_owner_says(
    tmp_path: Path, script: Script, code: str, outcome: str
) -> None:
    failed = await answered_by(tmp_path, script)
    problem_of_part = failed["problem"]
    assert (problem_of_part["code"], problem_of_part["outcome"]) == (code, outcome)


async def test_a_part_that_was_never_sent_is_not_stored(tmp_path: Path) -> None:
    failed = await answered_by(tmp_path, lambda _: NOTHING, listens=False)
    assert failed["problem"]["code"] == "not-owner"
    assert failed["problem"]["outcome"] == "none"


async def test_where_the_last_step_is_not_answered_all_is_stored_and_that_is_said(
    tmp_path: Path,
) -> None:
    """The owner of the coordinating partition dies after the parts: it answers `begin` alone."""
    producer = next(f"p{n}" for n in range(99) if coordinating_partition(f"p{n}", 3) == 0)

    def script(asked: Asked) -> bytes:
        if asked.path.endswith("request-steps") and b'"begin"' in asked.body:
            return raw_answer(200, encode_step_said(StepSaid("go-on")))
        return NOTHING

    async with raw_server(script) as server:
        owner = IngestHarness(tmp_path / "owner", ingest_url=server.url)
        await declare_super(owner)
        await owner.start()
        assert (await send(owner, ["hello2"])).status_code == 200
        other = IngestHarness(tmp_path / "other", before=owner, ingest_url="unix:///other.sock")
        await other.start()
        answer = await send(other, ["hello1", "hello4"], producer_id=producer, producer_seq=0)
        assert problem(answer) == (503, "peer-unavailable")
        assert (answer.json()["outcome"], answer.json()["retryable"]) == ("committed", True)
        assert (await values(other, 1), await values(other, 2)) == (["0 hello1"], ["1 hello4"])
        await other.aclose()
        await owner.aclose()
