"""A lapse of the node's lease is noticed, whatever hides it.

Tests and simulation had one clock for nodes and coordination, and partitions that were longer
than any call, so that a lapse always showed in the node's own clock; no test asked what the
answer to a renewal proves. Now machines of the simulation have clocks of their own, which stand
still while the machine sleeps, Valkey's clock steps, and answers come after their lease
(`./dev sim SEED --troubles clocks`, and `jams`, where no clock is wrong).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support.guards import guarded, remove
from support.waiting import eventually

from bottomless.errors import Fenced
from bottomless.model.names import StreamId
from bottomless.model.stream import StreamRecord
from bottomless_server.coordination.base import CoordinationUnavailable, CoordinationUnknown, Hold
from bottomless_server.node.core import ownership
from bottomless_server.node.owner import Claim, Owner
from bottomless_server.stores.streams import node_key
from unit.ingest.harness import STREAM, IngestHarness, problem

COMMITS = "/internal/v1/commits"
HoldCall = Callable[[str, bytes, int], Awaitable[Hold]]


async def take_over(harness: IngestHarness) -> None:
    """What an operator's forced takeover makes of the record; the lease is gone."""
    home = (await harness.record()).home
    assert home is not None
    assert await harness.coordination.get(node_key(home)) is None

    await harness.streams.update(STREAM, taken)


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


async def succeeded(harness: IngestHarness, tmp_path: Path) -> IngestHarness:
    """The node that owns the stream after the takeover, with a record of its own."""
    await take_over(harness)
    other = IngestHarness(tmp_path / "other", before=harness, ingest_url="unix:///other.sock")
    await other.start()
    assert (await other.append("of the new owner")).status_code == 200
    return other


async def check_deposed(harness: IngestHarness) -> None:
    """It acknowledges, shows and feeds nothing."""
    assert problem(await harness.append("from the past")) == (503, "not-owner")
    assert problem(await harness.chunks(0)) == (503, "not-owner")
    feed = await harness.internal.get(COMMITS)
    assert feed.status_code == 503 or feed.json()["streams"] == []


async def late(harness: IngestHarness, tmp_path: Path) -> IngestHarness:
    """Renewals of which one answer and the next request are late. No clock is wrong here.

    The lease runs out in coordination at 12 s, the renewal that was begun at 5 s, when the node
    believed until 8 s, arrives at 12.1 s; in between the stream got another owner.
    """
    real: HoldCall = harness.coordination.hold
    others: list[IngestHarness] = []

    async def reply_late(key: str, value: bytes, ttl_ms: int) -> Hold:
        held = await real(key, value, ttl_ms)
        harness.time.advance(2_000)
        return held

    async def request_late(key: str, value: bytes, ttl_ms: int) -> Hold:
        vars(harness.coordination)["hold"] = real
        harness.time.advance(7_100)
        others.append(await succeeded(harness, tmp_path))
        return await real(key, value, ttl_ms)

    vars(harness.coordination)["hold"] = reply_late
    await harness.lease.renew()
    harness.time.advance(3_000)
    vars(harness.coordination)["hold"] = request_late
    await harness.lease.renew()
    assert harness.lease.is_live()
    return others[0]


async def test_a_renewal_that_was_begun_in_time_and_answered_too_late_is_a_lapse(
    harness: IngestHarness, tmp_path: Path
) -> None:
    await harness.append("only here")
    term = harness.lease.term
    other = await late(harness, tmp_path)

    assert harness.lease.term > term
    await check_deposed(harness)
    await other.aclose()


async def test_without_the_evidence_of_the_answer_a_late_one_hides_the_lapse(
    harness: IngestHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(
        monkeypatch,
        "the time at which a renewal is answered",
        lambda before, *_, **__: before is None,
    )
    await harness.append("only here")
    other = await late(harness, tmp_path)

    with pytest.raises(AssertionError):
        await check_deposed(harness)
    await other.aclose()


async def test_a_lease_that_was_taken_anew_is_a_lapse_also_where_no_clock_saw_the_time_pass(
    harness: IngestHarness, tmp_path: Path
) -> None:
    """A virtual machine that its host paused, or a step of Valkey's clock."""
    await harness.append("only here")
    harness.time.sleep(13_000, unseen=True)
    other = await succeeded(harness, tmp_path)
    assert harness.lease.is_live(), "nothing on this node says what happened"

    harness.time.advance(3_000)
    await harness.lease.renew()
    await check_deposed(harness)
    await other.aclose()


async def test_without_telling_taken_from_renewed_a_deposed_owner_goes_on_for_ever(
    harness: IngestHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: HoldCall = harness.coordination.hold

    async def always_renewed(key: str, value: bytes, ttl_ms: int) -> Hold:
        return Hold.RENEWED if await real(key, value, ttl_ms) else Hold.REFUSED

    await harness.append("only here")
    monkeypatch.setattr(harness.coordination, "hold", always_renewed)
    harness.time.sleep(13_000, unseen=True)
    other = await succeeded(harness, tmp_path)
    for _ in range(20):
        harness.time.advance(3_000)
        await harness.lease.renew()

    with pytest.raises(AssertionError):
        await check_deposed(harness)
    await other.aclose()


async def test_a_renewal_without_an_answer_may_have_been_the_one_that_took_the_lease(
    harness: IngestHarness, tmp_path: Path
) -> None:
    await harness.append("only here")
    harness.time.sleep(13_000, unseen=True)
    other = await succeeded(harness, tmp_path)
    real: HoldCall = harness.coordination.hold

    async def unheard(key: str, value: bytes, ttl_ms: int) -> Hold:
        vars(harness.coordination)["hold"] = real
        assert await real(key, value, ttl_ms) is Hold.TAKEN
        raise CoordinationUnknown("the reply was lost")

    vars(harness.coordination)["hold"] = unheard
    await harness.lease.renew()
    await harness.lease.renew()

    await check_deposed(harness)
    await other.aclose()


async def test_a_node_that_slept_asks_before_it_acts(
    harness: IngestHarness, tmp_path: Path
) -> None:
    """Its monotonic clock stood still: by that clock alone the lease is as good as new."""
    await harness.append("only here")
    harness.time.sleep(13_000)
    other = await succeeded(harness, tmp_path)

    await check_deposed(harness)
    await other.aclose()


async def test_without_the_boot_clock_a_node_that_slept_acknowledges(
    harness: IngestHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch, "the boot clock beside the monotonic one", lambda *_: False)
    await harness.append("only here")
    harness.time.sleep(13_000)
    other = await succeeded(harness, tmp_path)

    with pytest.raises(AssertionError):
        await check_deposed(harness)
    await other.aclose()


@pytest.mark.parametrize("slept_ms", [60_000, 61_000, 8 * 3_600_000, 90 * 86_400_000])
async def test_a_node_that_slept_and_is_still_the_owner_answers_after_one_renewal(
    harness: IngestHarness, slept_ms: int
) -> None:
    """Nobody is refused for it: whoever appends waits for the renewal, and all for the same.

    This test slept for exactly the minute by which a wall clock may jump, and the machines of the
    simulation sleep for seconds; so nobody saw that a longer sleep was taken for a jump, and that
    every append was refused with `clock-skew` until the process was started again.
    """
    await harness.append("a")
    renewals = 0
    real: HoldCall = harness.coordination.hold

    async def counted(key: str, value: bytes, ttl_ms: int) -> Hold:
        nonlocal renewals
        renewals += 1
        return await real(key, value, ttl_ms)

    vars(harness.coordination)["hold"] = counted
    harness.time.sleep(slept_ms)
    answers = await asyncio.gather(*(harness.append(f"b{number}") for number in range(8)))

    assert [answer.status_code for answer in answers] == [200] * 8
    assert 1 <= renewals <= 2, "of the appends, and of the task that was woken"


async def test_a_sleep_wakes_the_renewal_also_where_nobody_appends(harness: IngestHarness) -> None:
    await harness.append("a")
    harness.time.sleep(60_000)
    assert not harness.lease.is_live()

    await eventually(harness.lease.is_live)


async def fenced_in_background(
    harness: IngestHarness, monkeypatch: pytest.MonkeyPatch, *, forgets: bool = False
) -> None:
    """Half of the block is used, and coordination says that the stream is another's."""
    monkeypatch.setattr(ownership, "RESERVE_COUNT", 10)
    await harness.append("a")
    harness.time.sleep(13_000, unseen=True)
    await take_over(harness)
    heard = asyncio.Event()
    name = "a fence that is heard in the background"
    note_fence = guarded(name)

    def hear(claim: Claim) -> None:
        if not forgets:
            note_fence(claim)
        heard.set()

    remove(monkeypatch, name, hear)
    for _ in range(6):
        await harness.append("still believed")
    async with asyncio.timeout(60):
        await heard.wait()


async def test_an_owner_that_hears_in_the_background_that_it_is_fenced_stops(
    harness: IngestHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fenced_in_background(harness, monkeypatch)
    before = harness.appender.log.committed_next

    answer = await harness.append("after the fence")

    assert answer.status_code != 200 or answer.json()["first_offset"] > before, answer.text


async def test_without_that_fence_it_acknowledges_what_will_be_lost(
    harness: IngestHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fenced_in_background(harness, monkeypatch, forgets=True)
    before = harness.appender.log.committed_next

    answer = await harness.append("after the fence")

    assert (answer.status_code, answer.json()["first_offset"]) == (200, before)


async def test_a_fence_that_was_heard_is_not_taken_back_by_an_older_answer(
    harness: IngestHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checks before were blind: nothing was heard while a confirmation was on its way."""
    await harness.append("a")
    claim = harness.appender.claim
    harness.time.sleep(13_000, unseen=True)
    await harness.lease.renew()
    assert not claim.held, "it is to be confirmed"
    load = Owner.load

    async def heard_meanwhile(owner: Owner, stream_id: StreamId) -> StreamRecord:
        before = await load(owner, stream_id)
        # Only where Valkey's clock steps the lease is gone within one question.
        await harness.streams.update(STREAM, taken)
        with pytest.raises(Fenced):
            await claim.reserve(claim.reserved_next + 1)
        return before

    monkeypatch.setattr(Owner, "load", heard_meanwhile)
    with pytest.raises(Fenced):
        await claim.confirm()
    assert not claim.held


async def test_one_unexpected_exception_does_not_end_the_renewal_of_the_lease(
    tmp_path: Path,
) -> None:
    """What uvloop raises of a connection that is closed is no StoreError: no test let a call fail
    as it is not known to fail."""
    harness = IngestHarness(tmp_path / "ingest", ingest_renew_ms=20)
    await (await harness.declare()).start()
    real: HoldCall = harness.coordination.hold
    renewed = asyncio.Event()

    async def broken(key: str, value: bytes, ttl_ms: int) -> Hold:
        vars(harness.coordination)["hold"] = healthy
        raise RuntimeError("the handler is closed")

    async def healthy(key: str, value: bytes, ttl_ms: int) -> Hold:
        renewed.set()
        return await real(key, value, ttl_ms)

    vars(harness.coordination)["hold"] = broken
    async with asyncio.timeout(60):
        await renewed.wait()

    assert (await harness.append("a")).status_code == 200
    await harness.aclose()


async def test_without_the_last_resort_of_loops_one_exception_ends_the_renewal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def bare(_: str, step: Callable[[], Awaitable[float]], **__: float) -> None:
        while True:
            await asyncio.sleep(await step())

    async def broken(key: str, value: bytes, ttl_ms: int) -> Hold:
        raise RuntimeError("the handler is closed")

    remove(monkeypatch, "the last resort of lasting loops", bare)
    harness = IngestHarness(tmp_path / "ingest", ingest_renew_ms=20)
    await (await harness.declare()).start()
    vars(harness.coordination)["hold"] = broken
    [task] = [one for one in asyncio.all_tasks() if one.get_name() == "node-lease"]

    await eventually(task.done)
    with pytest.raises(RuntimeError, match="the handler is closed"):
        await harness.aclose()


@pytest.mark.parametrize(("shown", "is_held"), [(0, True), (1, False)])
async def test_the_first_generation_that_a_node_sees_is_no_rebuild_a_later_one_is(
    tmp_path: Path, shown: int, *, is_held: bool
) -> None:
    """A node that starts before manifest has created the generation claims streams all the same.

    Its first renewal after that was taken for one after a rebuild: an append that was just being
    written was answered `not-owner`, outcome unknown, once in the life of a new deployment. No
    harness had a coordination without a generation when a node started.
    """
    harness = await IngestHarness(tmp_path / "ingest").declare()
    harness.show_generation(None)
    await harness.start()
    assert (await harness.append("of a new deployment")).status_code == 200

    harness.show_generation(shown)
    await harness.lease.renew()

    assert harness.appender.claim.held is is_held
    assert (await harness.append("afterwards")).status_code == 200
    await harness.aclose()


async def renewed_over(silences: list[int], harness: IngestHarness) -> None:
    """A renewal that is begun in its time, of a store that says nothing for so many ms each."""
    get_many = harness.coordination.get_many

    async def silent(redis_keys: Sequence[str]) -> list[bytes | None]:
        if silences:
            harness.time.advance(silences.pop())
            raise CoordinationUnavailable("nobody heard anything of the store")
        return await get_many(redis_keys)

    harness.time.advance(3_000)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(harness.coordination, "get_many", silent)
        await harness.lease.renew()


async def test_a_renewal_asks_a_silent_store_again_before_its_lease_is_over(
    tmp_path: Path,
) -> None:
    """The next renewal would come after that: it was a lapse of each node, though the store was silent for
    four seconds only."""
    harness = await IngestHarness(tmp_path).start()
    lease, term = harness.lease, harness.lease.term
    await renewed_over([4_000], harness)
    harness.time.advance(7_900)
    lease.require()
    assert lease.term == term
    await harness.aclose()


async def test_a_store_that_cannot_be_reached_is_asked_again_with_the_next_renewal(
    tmp_path: Path,
) -> None:
    harness = await IngestHarness(tmp_path).start()
    silences = [0, 0]
    await renewed_over(silences, harness)
    assert silences == [0]
    await harness.aclose()
