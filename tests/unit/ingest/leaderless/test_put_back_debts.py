"""Coordination comes back as another run of itself, and lacks commits of which the replies were lost. A
process writes as two instances, one of them for what was staged, and others go by the word of either."""

import asyncio
import os
from random import Random
from typing import Final, TypeAlias

import pytest
from support.guards import remove
from support.wire import Passage

from bottomless.errors import Code, StoreError
from bottomless_server.ingest.producers.producers import Appended
from unit.ingest.leaderless.harness import Stores, WriterProcess, a_house, until
from unit.ingest.leaderless.making import an_append
from unit.ingest.leaderless.test_compared_stores import next_generation
from unit.ingest.leaderless.test_put_back import LOST, MOMENT, NO_REPLY, two_nodes
from unit.ingest.leaderless.test_staged_writer import committed

BESIDE = "what a process owes as its other instance, told with each number"
WAITS = "a repeat by another instance of the process, before anything new"
WHOLE = "others that may have to repeat something too, heard before anything new"
LOOKED_AT = "all instances of a process, looked at before one shows its life"
COMES_FIRST = "what may have been seen, committed again before anything else"

Said: TypeAlias = "asyncio.Future[Appended | StoreError]"


def stage(node: WriterProcess, number: int, *values: bytes, stream: int) -> Said:
    """Begin a commit of what was staged; the future has what it is told."""
    work = committed(node, number, *values, stream=stream)
    return asyncio.ensure_future(node.process.spawn(work), loop=node.stores.loop)


def as_seen(stores: Stores, stream: int) -> tuple[list[tuple[int, object]], list[int]]:
    """What readers find in a stream: records at their offsets, and times of commits."""
    return stores.records(stream), [entry.timestamp for entry in stores.entries(stream)]


def lost_commit_of_what_was_staged(
    seconds: float,
) -> tuple[Stores, WriterProcess, WriterProcess, Said]:
    """Readers saw it, its writer heard nothing for so long, and then the store was put back."""
    stores, first, second = two_nodes()
    assert isinstance(stores.do(committed(first, 0, b"before", stream=1)), Appended)
    copy = stores.coordination.copy()
    stores.trouble.next["coordination.exec"] = [NO_REPLY]
    work = stage(first, 1, b"a", b"b", stream=0)
    until(stores, lambda: stores.values(0) == [b"a", b"b"])
    stores.trouble.always["coordination.watch"] = LOST
    stores.do(asyncio.sleep(seconds))
    stores.trouble.always.clear()
    stores.coordination.put_back(copy)
    return stores, first, second, work


@pytest.mark.parametrize(
    ("missing", "seconds", "by"),
    [
        (None, 1.0, "another node"),
        (None, 18.0, "another node"),
        (None, 1.0, "the same node"),
        (None, 70.0, "the same node"),
        (COMES_FIRST, 18.0, "the same node"),
        (BESIDE, 1.0, "another node"),
        (WAITS, 1.0, "the same node"),
    ],
)
def test_what_was_staged_and_seen_comes_first_too(
    missing: str | None, seconds: float, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its append was told that nothing was stored after a while, and it got another time. Meanwhile the
    other instance of its node said that nothing was missing, and took its offsets, or let others."""
    if missing is not None:
        remove(monkeypatch, missing, _none if missing == WAITS else lambda *_: False)
    stores, first, second, work = lost_commit_of_what_was_staged(seconds)

    beside = first.put(2, an_append(b"beside it"))
    others = (second if by == "another node" else first).put(0, an_append(b"other"))
    assert all(isinstance(one, Appended) for one in first.told(beside, others))
    first.told(work)
    stores.do(asyncio.sleep(MOMENT))

    assert (stores.values(0) == [b"a", b"b", b"other"]) is (missing is None)


def test_what_was_staged_and_seen_has_the_time_that_it_had() -> None:
    stores, _, second, work = lost_commit_of_what_was_staged(1.0)
    second.append(0, an_append(b"other"))
    second.told(work)
    times = [entry.timestamp for entry in stores.entries(0)]
    assert times[0] == times[1] < times[2] - MOMENT * 1000


async def _none(*_: object) -> None:
    return


@pytest.mark.parametrize("missing", [None, WHOLE])
def test_who_has_repeated_its_own_commit_waits_for_those_of_others(
    missing: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that both have something to repeat do not wait for each other. One of them went on at once with
    an append that was new, to the stream of the other, which stood still."""
    if missing is not None:
        remove(monkeypatch, missing, lambda *_: False)
    stores, first, second = two_nodes()
    copy, waiting = stores.coordination.copy(), []
    for stream, node in enumerate((first, second)):
        stores.trouble.next["coordination.exec"] = [NO_REPLY]
        waiting.append(node.put(stream, an_append(b"seen")))
        until(stores, lambda stream=stream: stores.values(stream) == [b"seen"])  # type: ignore[misc]
    stores.trouble.always["coordination.watch"] = LOST
    stores.do(asyncio.sleep(1))
    stores.trouble.always.clear()
    stores.coordination.put_back(copy)
    waiting.append(first.put(1, an_append(b"another")))
    run = second.writer.run
    assert run is not None
    until(stores, lambda: bool(stores.instances()[run.numbers.instance].attempt % 2))
    second.process.pause()
    stores.do(asyncio.sleep(12))
    second.process.resume()
    first.told(*waiting)

    assert stores.values(0) == [b"seen"]
    assert (stores.values(1)[0] == b"seen") is (missing is None)


@pytest.mark.parametrize("missing", [None, LOOKED_AT])
def test_no_instance_shows_life_while_another_of_its_process_has_lost_something(
    missing: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was staged was acknowledged, and its note is on its way. The other instance of its node found
    its own record whole, and said so before anybody looked at that of the first."""
    if missing is not None:
        remove(monkeypatch, missing, lambda *_: None)
    stores, first, second = two_nodes()
    assert isinstance(stores.do(committed(first, 0, b"before", stream=1)), Appended)
    assert isinstance(first.append(2, an_append(b"before")), Appended)
    stores.do(asyncio.sleep(5))
    copy = stores.coordination.copy()
    stores.trouble.next["drive.put"] = [Passage(), Passage(there_seconds=20.0)]
    said = stores.do(committed(first, 1, b"acknowledged", stream=0))
    assert isinstance(said, Appended)
    until(stores, lambda: not stores.trouble.next["drive.put"])
    stores.coordination.put_back(copy)

    other = second.put(0, an_append(b"another"))
    stores.do(asyncio.sleep(0.8))
    first.append(2, an_append(b"beside it"))

    [told] = second.told(other)
    if missing is None:
        assert isinstance(told, StoreError)
        return
    assert isinstance(told, Appended)
    assert told.first_offset == said.first_offset


def test_an_instance_for_what_is_staged_of_before_a_rebuild_holds_nobody_up() -> None:
    """Nobody could show its life, so the node refused everything for half a minute."""
    stores, node = a_house()
    assert isinstance(stores.do(committed(node, 0, b"a", stream=1)), Appended)
    stores.do(asyncio.sleep(5))
    stores.do(next_generation(stores))
    stores.coordination.start_anew()
    begun = stores.loop.now
    while not isinstance(said := node.append(0, an_append(b"b")), Appended):
        assert isinstance(said, StoreError)
        assert said.code in (Code.COORDINATION_REGRESSED, Code.COORDINATION_UNAVAILABLE)
        stores.do(asyncio.sleep(1))
    assert stores.loop.now - begun < 3 * MOMENT
    assert isinstance(stores.do(committed(node, 0, b"c", stream=0)), Appended)


SEEDS: Final = os.environ.get("BOTTOMLESS_TEST_PUT_BACK_SEEDS")
"""So many seeds, from 0; else those that missed most before it held."""


@pytest.mark.parametrize("seed", [0, 3, 10] if SEEDS is None else range(int(SEEDS)))
def test_whatever_was_lost_by_whomever_stays_as_it_was_seen(seed: int) -> None:
    """One to three of the four writers of two nodes lose the reply of a commit, each to a stream of its
    own; then nodes stand still, and all append to all streams."""
    random = Random(seed)
    stores, *nodes = two_nodes()
    numbers = iter(range(1_000))

    def write(node: WriterProcess, stream: int, *, staged: bool) -> Said:
        number = next(numbers)
        if staged:
            return stage(node, number, *[b"%d.%d" % (number, one) for one in (0, 1)], stream=stream)
        return node.put(stream, an_append(b"%d" % number))

    def any_write() -> Said:
        return write(random.choice(nodes), random.randrange(3), staged=random.random() < 0.3)

    writers = [(node, staged) for node in nodes for staged in (False, True)]
    losers = random.sample(writers, random.randint(1, 3))
    begun = [write(node, random.randrange(3), staged=True) for node, staged in losers if staged]
    nodes[0].told(*begun, *(any_write() for _ in range(random.randrange(5))))
    stores.do(asyncio.sleep(random.choice([0.0, 4.0])))
    copy, waiting = stores.coordination.copy(), []
    for stream, (node, staged) in enumerate(losers):
        before = len(stores.values(stream))
        stores.trouble.next["coordination.exec"] = [NO_REPLY]
        waiting.append(write(node, stream, staged=staged))
        until(stores, lambda stream=stream, before=before: len(stores.values(stream)) > before)  # type: ignore[misc]
    stores.trouble.always["coordination.watch"] = LOST
    stores.do(asyncio.sleep(random.choice([1.0, 18.0])))
    seen = [as_seen(stores, stream) for stream in range(3)]
    stores.trouble.always.clear()
    stores.coordination.put_back(copy)

    for _ in range(random.randrange(2, 9)):
        stores.do(asyncio.sleep(2 * random.random()))
        waiting.append(any_write())
        node = random.choice(nodes)
        if random.random() < 0.2:
            node.process.pause()
            stores.do(asyncio.sleep(8 * random.random()))
            node.process.resume()
    told = nodes[0].told(*waiting)

    for stream, (records, times) in enumerate(seen):
        now, at = as_seen(stores, stream)
        assert now[: len(records)] == records[: len(now)]
        assert at[: len(times)] == times[: len(at)]
    for stream in range(len(losers)):
        # Where the store had a reply for one of them after all, the bucket proves what is missing.
        gone_back = any(
            isinstance(one, StoreError) and one.code is Code.COORDINATION_REGRESSED for one in told
        )
        assert gone_back or len(stores.records(stream)) >= len(seen[stream][0])
