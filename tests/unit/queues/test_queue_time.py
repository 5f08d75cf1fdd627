"""Time in queues, while the wall clock of a node is set back: what is due comes, and nothing goes back."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.guards import remove

from bottomless.errors import Code, Unavailable
from bottomless_server.node.file_calls import RealFileCalls
from bottomless_server.queues.calls import OutMessage
from bottomless_server.queues.core.queue_time import QueueTime
from bottomless_server.queues.offline.rebuild import Rebuilding, rebuild_store
from bottomless_server.queues.offline.store_directory import StoreDirectory
from unit.queues.engine_harness import Engine
from unit.queues.service_harness import Installation, QueuesHarness, one_node

HOUR = 3_600_000
LATER = 33_000
"""More than the visibility of a message, by a time that goes a sixteenth slower."""


async def after(node: QueuesHarness, ms: int) -> None:
    """Let time pass, and let happen what is due then."""
    node.installation.clocks.advance(ms)
    await node.service.lease.renew()
    await node.service.place.there().upkeep()


async def came_after_the_clock_was_set_back(directory: Path) -> list[str]:
    """What is ready when the visibility of one message and the delay of another are over."""
    async with one_node(directory) as node:
        await node.create(visibility_ms=30_000)
        await node.publish("taken")
        assert len(await node.receive()) == 1
        body = {"messages": [{"value": "delayed", "delay_ms": 30_000}]}
        await node.client.post("/v1/queues/jobs/messages", json=body)
        node.installation.clocks.wall -= HOUR
        await after(node, LATER)
        return [each["value"] for each in await node.receive()]


async def test_what_is_due_comes_where_the_wall_clock_is_set_back(tmp_path: Path) -> None:
    assert await came_after_the_clock_was_set_back(tmp_path) == ["taken", "delayed"]


async def test_without_the_guard_nothing_comes_until_the_wall_clock_has_caught_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = "the time of queues goes on where the wall clock is set back"
    remove(monkeypatch, guard, lambda time, *_: time)
    assert await came_after_the_clock_was_set_back(tmp_path) == []


async def test_it_goes_on_from_where_the_ledger_is_if_that_is_ahead_at_a_start(
    tmp_path: Path,
) -> None:
    """A machine began with a wrong clock, which was set right while its node was down."""
    installation = await Installation().start()
    installation.clocks.wall += 24 * HOUR
    node = await installation.node(tmp_path / "queues").start()
    await node.create(visibility_ms=30_000)
    await node.publish("a")
    (first,) = await node.receive()
    await node.aclose()
    installation.clocks.wall -= 24 * HOUR
    node = await installation.node(tmp_path / "queues").start()
    await after(node, LATER)
    await node.publish("b")
    again, other = await node.receive()
    assert (again["value"], other["value"]) == ("a", "b")
    assert other["published_at"] > first["published_at"]
    await node.aclose()
    await installation.manifest.stop()


async def test_what_waits_on_its_way_out_grows_old_though_the_wall_clock_is_set_back(
    tmp_path: Path,
) -> None:
    async with one_node(tmp_path) as node:
        await node.installation.create_stream("log")
        await node.create(archive={"stream": "log"})
        await node.publish("a")
        (message,) = await node.receive()
        await node.client.post("/v1/queues/jobs/ack", json={"receipts": [message["receipt"]]})
        node.installation.clocks.wall -= HOUR
        await after(node, LATER)
        await node.service.measures.look()
        ages = [
            sample.value
            for metric in node.service.measures.metrics()
            for sample in metric.samples
            if sample.name.endswith("outgoing_age_seconds")
        ]
        assert ages == [pytest.approx(LATER * 15 / 16_000, abs=0.01)]


def test_what_is_shown_goes_on_where_the_wall_clock_is_not_believed() -> None:
    time = QueueTime(60_000)
    assert time.shown(1_000, 0) == 1_000
    assert time.shown(HOUR, 16_000) == 1_000 + 15_000


async def after_a_rebuild(directory: Path) -> list[bytes]:
    """What is ready of messages that were published before a clock was set back, once their ledger was lost
    and made anew."""
    engine = Engine(directory)
    await engine.open()
    await engine.create("jobs")
    delayed = OutMessage(b"delayed", delay_ms=HOUR)
    await engine.send("jobs", messages=[OutMessage(b"ready"), delayed])
    await engine.close()
    engine.now -= HOUR
    store = StoreDirectory(RealFileCalls(), directory)
    store.remove_ledger()
    rebuild_store(store, Rebuilding(), now=engine.now, stray_id=b"s" * 16)
    await engine.open()
    await engine.engine.upkeep()
    found = await engine.drain("jobs")
    await engine.close()
    return found


async def test_a_ledger_that_is_made_anew_goes_on_from_its_last_message(tmp_path: Path) -> None:
    assert await after_a_rebuild(tmp_path) == [b"ready"]


async def test_without_the_guard_what_was_published_is_delayed_by_a_rebuild(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = "the time of a ledger that is made anew is not before its messages"
    remove(monkeypatch, guard, lambda now, _: now)
    assert await after_a_rebuild(tmp_path) == []


def test_it_is_the_wall_clock_while_that_goes_on() -> None:
    time = QueueTime(60_000)
    assert [time.read(1_000 + ms, ms) for ms in (0, 5, 5, 70_000)] == [1_000, 1_005, 1_005, 71_000]


def test_it_comes_back_to_a_wall_clock_that_was_set_back() -> None:
    time = QueueTime(60_000)
    time.read(HOUR, 0)
    told = [time.read(at, at) - at for at in range(0, 17 * HOUR, 60_000)]
    assert told[0] == HOUR
    assert told == sorted(told, reverse=True)
    assert told[-1] == 0


def test_a_wall_clock_that_jumps_ahead_is_not_believed_wherever_the_ledger_is() -> None:
    time = QueueTime(60_000)
    time.go_on_from(HOUR, 0)
    assert time.read(1_000, 0) == HOUR
    with pytest.raises(Unavailable) as caught:
        time.read(1_000 + 70_001, 10_000)
    assert caught.value.code is Code.CLOCK_SKEW


def test_a_ledger_that_is_opened_takes_no_time_back() -> None:
    time = QueueTime(60_000)
    time.read(HOUR, 0)
    assert time.read(0, 16_000) == HOUR + 15_000
    time.go_on_from(HOUR + 1_000, 16_000)
    assert time.read(0, 16_000) == HOUR + 15_000


STEPS = st.lists(st.tuples(st.integers(0, 10_000), st.integers(-HOUR, 50_000)), max_size=30)


@given(STEPS)
def test_it_never_stands_still_and_never_goes_back(steps: list[tuple[int, int]]) -> None:
    """`steps`: how long it takes, and how far the wall clock is set meanwhile."""
    time = QueueTime(60_000)
    wall, elapsed = 10 * HOUR, 0
    before = time.read(wall, elapsed)
    highest = wall
    for passed, stepped in steps:
        elapsed += passed
        wall += passed + stepped
        try:
            now = time.read(wall, elapsed)
        except Unavailable:
            wall -= stepped
            highest += passed
            continue
        highest = max(highest + passed, wall)
        assert before + passed - passed // 16 - 1 <= now <= highest
        before = now
