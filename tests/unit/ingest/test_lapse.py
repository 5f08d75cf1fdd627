"""A lapse of the node's lease is noticed, whatever hides it.

Tests and simulation had one clock for nodes and coordination, and partitions that were longer
than any call, so that a lapse always showed in the node's own clock; no test asked what the
answer to a renewal proves. Now machines of the simulation have clocks of their own, which stand
still while the machine sleeps, Valkey's clock steps, and answers come after their lease
(`./dev sim SEED --troubles clocks`, and `jams`, where no clock is wrong).
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bottomless.errors import Fenced
from bottomless.model.names import StreamId
from bottomless.model.stream import StreamRecord
from bottomless_server.coordination.base import CoordinationUnknown, Hold
from bottomless_server.node import lease as lease_module
from bottomless_server.node.core import ownership
from bottomless_server.node.core.belief import Belief
from bottomless_server.node.owner import Claim
from bottomless_server.stores.streams import node_key
from unit.ingest.house import STREAM, House, eventually, problem

COMMITS = "/internal/v1/commits"
HoldCall = Callable[[str, bytes, int], Awaitable[Hold]]


async def take_over(house: House) -> None:
    """What an operator's forced takeover makes of the record; the lease is gone."""
    home = (await house.record()).home
    assert home is not None
    assert await house.coordination.get(node_key(home)) is None

    await house.streams.update(STREAM, taken)


def taken(record: StreamRecord) -> StreamRecord:
    return replace(
        record,
        epoch=record.epoch + 1,
        version=record.version + 1,
        home=None,
        owner_url=None,
        dirty=False,
        published_next=record.reserved_next,
    )


async def succeeded(house: House, tmp_path: Path) -> House:
    """The node that owns the stream after the takeover, with a record of its own."""
    await take_over(house)
    other = House(tmp_path / "other", before=house, ingest_url="unix:///other.sock")
    await other.start()
    assert (await other.append("of the new owner")).status_code == 200
    return other


async def check_deposed(house: House) -> None:
    """It acknowledges, shows and feeds nothing."""
    assert problem(await house.append("from the past")) == (503, "not-owner")
    assert problem(await house.chunks(0)) == (503, "not-owner")
    feed = await house.internal.get(COMMITS)
    assert feed.status_code == 503 or feed.json()["streams"] == []


async def late(house: House, tmp_path: Path) -> House:
    """Renewals of which one answer and the next request are late. No clock is wrong here.

    The lease runs out in coordination at 12 s, the renewal that was begun at 5 s, when the node
    believed until 8 s, arrives at 12.1 s; in between the stream got another owner.
    """
    real: HoldCall = house.coordination.hold
    others: list[House] = []

    async def reply_late(key: str, value: bytes, ttl_ms: int) -> Hold:
        held = await real(key, value, ttl_ms)
        house.time.advance(2_000)
        return held

    async def request_late(key: str, value: bytes, ttl_ms: int) -> Hold:
        vars(house.coordination)["hold"] = real
        house.time.advance(7_100)
        others.append(await succeeded(house, tmp_path))
        return await real(key, value, ttl_ms)

    vars(house.coordination)["hold"] = reply_late
    await house.lease.renew()
    house.time.advance(3_000)
    vars(house.coordination)["hold"] = request_late
    await house.lease.renew()
    assert house.lease.is_live()
    return others[0]


async def test_a_renewal_that_was_begun_in_time_and_answered_too_late_is_a_lapse(
    house: House, tmp_path: Path
) -> None:
    await house.append("only here")
    term = house.lease.term
    other = await late(house, tmp_path)

    assert house.lease.term > term
    await check_deposed(house)
    await other.aclose()


async def test_without_the_evidence_of_the_answer_a_late_one_hides_the_lapse(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "is_lapse", lambda before, *_, **__: before is None)
    await house.append("only here")
    other = await late(house, tmp_path)

    with pytest.raises(AssertionError):
        await check_deposed(house)
    await other.aclose()


async def test_a_lease_that_was_taken_anew_is_a_lapse_also_where_no_clock_saw_the_time_pass(
    house: House, tmp_path: Path
) -> None:
    """A virtual machine that its host paused, or a step of Valkey's clock."""
    await house.append("only here")
    house.time.sleep(13_000, unseen=True)
    other = await succeeded(house, tmp_path)
    assert house.lease.is_live(), "nothing on this node says what happened"

    house.time.advance(3_000)
    await house.lease.renew()
    await check_deposed(house)
    await other.aclose()


async def test_without_telling_taken_from_renewed_a_deposed_owner_goes_on_for_ever(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: HoldCall = house.coordination.hold

    async def always_renewed(key: str, value: bytes, ttl_ms: int) -> Hold:
        return Hold.RENEWED if await real(key, value, ttl_ms) else Hold.REFUSED

    await house.append("only here")
    monkeypatch.setattr(house.coordination, "hold", always_renewed)
    house.time.sleep(13_000, unseen=True)
    other = await succeeded(house, tmp_path)
    for _ in range(20):
        house.time.advance(3_000)
        await house.lease.renew()

    with pytest.raises(AssertionError):
        await check_deposed(house)
    await other.aclose()


async def test_a_renewal_without_an_answer_may_have_been_the_one_that_took_the_lease(
    house: House, tmp_path: Path
) -> None:
    await house.append("only here")
    house.time.sleep(13_000, unseen=True)
    other = await succeeded(house, tmp_path)
    real: HoldCall = house.coordination.hold

    async def unheard(key: str, value: bytes, ttl_ms: int) -> Hold:
        vars(house.coordination)["hold"] = real
        assert await real(key, value, ttl_ms) is Hold.TAKEN
        raise CoordinationUnknown("the reply was lost")

    vars(house.coordination)["hold"] = unheard
    await house.lease.renew()
    await house.lease.renew()

    await check_deposed(house)
    await other.aclose()


async def test_a_node_that_slept_asks_before_it_acts(house: House, tmp_path: Path) -> None:
    """Its monotonic clock stood still: by that clock alone the lease is as good as new."""
    await house.append("only here")
    house.time.sleep(13_000)
    other = await succeeded(house, tmp_path)

    await check_deposed(house)
    await other.aclose()


async def test_without_the_boot_clock_a_node_that_slept_acknowledges(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Belief, "slept", lambda *_: False)
    await house.append("only here")
    house.time.sleep(13_000)
    other = await succeeded(house, tmp_path)

    with pytest.raises(AssertionError):
        await check_deposed(house)
    await other.aclose()


@pytest.mark.parametrize("slept_ms", [60_000, 61_000, 8 * 3_600_000, 90 * 86_400_000])
async def test_a_node_that_slept_and_is_still_the_owner_answers_after_one_renewal(
    house: House, slept_ms: int
) -> None:
    """Nobody is refused for it: whoever appends waits for the renewal, and all for the same.

    This test slept for exactly the minute by which a wall clock may jump, and the machines of the
    simulation sleep for seconds; so nobody saw that a longer sleep was taken for a jump, and that
    every append was refused with `clock-skew` until the process was started again.
    """
    await house.append("a")
    renewals = 0
    real: HoldCall = house.coordination.hold

    async def counted(key: str, value: bytes, ttl_ms: int) -> Hold:
        nonlocal renewals
        renewals += 1
        return await real(key, value, ttl_ms)

    vars(house.coordination)["hold"] = counted
    house.time.sleep(slept_ms)
    answers = await asyncio.gather(*(house.append(f"b{number}") for number in range(8)))

    assert [answer.status_code for answer in answers] == [200] * 8
    assert 1 <= renewals <= 2, "of the appends, and of the task that was woken"


async def test_a_sleep_wakes_the_renewal_also_where_nobody_appends(house: House) -> None:
    await house.append("a")
    house.time.sleep(60_000)
    assert not house.lease.is_live()

    await eventually(house.lease.is_live)


async def fenced_in_background(
    house: House, monkeypatch: pytest.MonkeyPatch, *, forgets: bool = False
) -> None:
    """Half of the block is used, and coordination says that the stream is another's."""
    monkeypatch.setattr(ownership, "RESERVE_COUNT", 10)
    await house.append("a")
    house.time.sleep(13_000, unseen=True)
    await take_over(house)
    heard = asyncio.Event()
    real = Claim._reserve

    async def reserve(claim: Claim, next_offset: int) -> None:
        try:
            await real(claim, next_offset)
        except Fenced:
            claim._fenced = not forgets
            heard.set()
            raise

    monkeypatch.setattr(Claim, "_reserve", reserve)
    for _ in range(6):
        await house.append("still believed")
    async with asyncio.timeout(60):
        await heard.wait()


async def test_an_owner_that_hears_in_the_background_that_it_is_fenced_stops(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fenced_in_background(house, monkeypatch)
    before = house.appender.log.next_offset

    answer = await house.append("after the fence")

    assert answer.status_code != 200 or answer.json()["first_offset"] > before, answer.text


async def test_without_that_fence_it_acknowledges_what_will_be_lost(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fenced_in_background(house, monkeypatch, forgets=True)
    before = house.appender.log.next_offset

    answer = await house.append("after the fence")

    assert (answer.status_code, answer.json()["first_offset"]) == (200, before)


async def test_a_fence_that_was_heard_is_not_taken_back_by_an_older_answer(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checks before were blind: nothing was heard while a confirmation was on its way."""
    await house.append("a")
    claim = house.appender.claim
    house.time.sleep(13_000, unseen=True)
    await house.lease.renew()
    assert not claim.held, "it is to be confirmed"
    load = claim._owner.load

    async def heard_meanwhile(stream_id: StreamId) -> StreamRecord:
        before = await load(stream_id)
        # Only where Valkey's clock steps the lease is gone within one question.
        await house.streams.update(STREAM, taken)
        with pytest.raises(Fenced):
            await claim.reserve(claim.reserved_next + 1)
        return before

    monkeypatch.setattr(claim._owner, "load", heard_meanwhile)
    with pytest.raises(Fenced):
        await claim.confirm()
    assert not claim.held


async def test_one_unexpected_exception_does_not_end_the_renewal_of_the_lease(
    tmp_path: Path,
) -> None:
    """What uvloop raises of a connection that is closed is no StoreError: no test let a call fail
    as it is not known to fail."""
    house = House(tmp_path / "ingest", ingest_renew_ms=20)
    await (await house.declare()).start()
    real: HoldCall = house.coordination.hold
    renewed = asyncio.Event()

    async def broken(key: str, value: bytes, ttl_ms: int) -> Hold:
        vars(house.coordination)["hold"] = healthy
        raise RuntimeError("the handler is closed")

    async def healthy(key: str, value: bytes, ttl_ms: int) -> Hold:
        renewed.set()
        return await real(key, value, ttl_ms)

    vars(house.coordination)["hold"] = broken
    async with asyncio.timeout(60):
        await renewed.wait()

    assert (await house.append("a")).status_code == 200
    await house.aclose()


async def test_without_the_last_resort_of_loops_one_exception_ends_the_renewal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def bare(_: str, step: Callable[[], Awaitable[float]], **__: float) -> None:
        while True:
            await step()

    async def broken(key: str, value: bytes, ttl_ms: int) -> Hold:
        raise RuntimeError("the handler is closed")

    monkeypatch.setattr(lease_module, "endless", bare)
    house = House(tmp_path / "ingest", ingest_renew_ms=20)
    await (await house.declare()).start()
    vars(house.coordination)["hold"] = broken
    task = house.lease._task
    assert task is not None

    await eventually(task.done)
    assert isinstance(task.exception(), RuntimeError)
    house.lease._task = None
    await house.aclose()
