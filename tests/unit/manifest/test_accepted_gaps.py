"""Holes that an operator accepts: what is durable before them is kept, whatever happens meanwhile.

A fragment may be whole in the bucket while nobody has told of it: its uploader died between the put
and that. The checks of accepted gaps had nothing under an intent, and those of takeovers have
no owner that lives.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from support.guards import remove
from support.manifest import NODE, OWNER, STREAM, Crash, Fault, ManifestHarness
from support.rebuilding import a_harness, rebuild

from bottomless.errors import Code, Unavailable, WrongOffset
from bottomless.model.names import Uid
from bottomless.model.stream import EpochStart
from bottomless_server.manifest.mutators.accept_gap import accept_gap
from bottomless_server.manifest.mutators.mutator import Mutators
from bottomless_server.manifest.mutators.sessions import begin, give_up, intend
from bottomless_server.manifest.tree.committer import Committer
from bottomless_server.manifest.tree.core.events import Why

LOG_BEGINS, LOG_ENDS = 50, 90
TENS = [(0, 10), (10, 20), (20, 30)]


class Hole:
    """A stream whose log begins at 50. Its manifest ends at 10; fragments from there on are put."""

    def __init__(self, harness: ManifestHarness, *stored: int) -> None:
        self.harness = harness
        self.stored = stored
        self.uids: dict[int, Uid] = {}

    async def dig(self, *asked: int) -> "Hole":
        harness = self.harness
        committer = await harness.open()
        own = {"home": NODE, "owner_url": OWNER, "dirty": True, "reserved_next": 1_000}
        await committer.change(lambda record: replace(record, **own))  # type: ignore[arg-type]
        uids = await intend(harness.context, committer, "s1", [0, *(asked or self.stored)])
        self.uids = dict(zip([0, *(asked or self.stored)], uids, strict=True))
        await committer.register("s1", [await harness.put_fragment(uids[0], 0)])
        await committer.flush()
        for first in self.stored:
            await self.put(first)
        harness.owners.first[STREAM] = LOG_BEGINS
        harness.owners.committed[STREAM] = LOG_ENDS
        return self

    async def put(self, first: int) -> Any:
        return await self.harness.put_fragment(self.uids[first], first, timestamp=1_000 + first)

    async def open(self) -> Committer:
        return await Committer.open(self.harness.context, STREAM)

    async def accept(self, committer: Committer | None = None) -> dict[str, Any]:
        committer = committer or await self.open()
        told = await accept_gap(self.harness.context, committer, LOG_BEGINS)
        gap: dict[str, Any] = told["gap"]
        return gap

    async def entries(self) -> list[tuple[int, int]]:
        return [(one.first_offset, one.next_offset) for one in await self.harness.entries()]


async def a_hole(*stored: int, asked: tuple[int, ...] = ()) -> Hole:
    return await Hole(ManifestHarness(), *stored).dig(*asked)


async def test_what_is_durable_and_nobody_told_of_is_kept_when_a_gap_is_accepted() -> None:
    hole = await a_hole(10, 20, 40)

    gap = await hole.accept()

    # What lies after a hole is in the gap, as at a takeover.
    assert await hole.entries() == [*TENS, (30, 50)]
    assert (gap["first_offset"], gap["next_offset"]) == (30, 50)
    record = await hole.harness.record()
    assert (record.home, record.owner_url, record.epoch) == (NODE, OWNER, 1)
    assert await hole.accept() == gap, "the same again finds its own work"


@pytest.mark.parametrize("held_count_max", [1, 2, 3])
async def test_no_bound_on_what_waits_has_durable_fragments_covered(held_count_max: int) -> None:
    """They came as one, were refused as one for being too many, and the gap followed."""
    harness = ManifestHarness(manifest_held_count_max=held_count_max)
    hole = await Hole(harness, 10, 20, 30, 40).dig()

    assert (await hole.accept())["first_offset"] is None
    assert await hole.entries() == [*TENS, (30, 40), (40, 50)]


async def test_the_next_session_adopts_what_is_durable_whatever_the_bound_on_what_waits() -> None:
    harness = ManifestHarness(manifest_held_count_max=1)
    hole = await Hole(harness, 10, 20, 30, 40).dig()

    await begin(harness.context, await hole.open(), "s2")

    assert await hole.entries() == [*TENS, (30, 40), (40, 50)]
    assert (await harness.record()).quarantine == ()


async def test_one_that_is_given_up_meanwhile_takes_none_along_that_stands_before_it() -> None:
    hole = await a_hole(10, 20, 30)
    committer, other = await hole.open(), await hole.open()
    real: Any = committer.register

    async def register(*args: Any) -> Any:
        if hole.uids[30] in {intent.uid for intent in other.record.intents}:
            await other.refresh()
            await give_up(hole.harness.context, other, {hole.uids[30]})
        return await real(*args)

    vars(committer)["register"] = register

    assert (await hole.accept(committer))["first_offset"] == 30
    assert await hole.entries() == [*TENS, (30, 50)]


async def test_nothing_is_given_up_where_all_of_the_hole_is_durable() -> None:
    hole = await a_hole(10, 20, 30, 40)

    assert (await hole.accept())["first_offset"] is None
    assert await hole.entries() == [*TENS, (30, 40), (40, 50)]


async def test_a_fragment_that_reaches_into_the_log_is_kept_and_one_beyond_its_end_is_not() -> None:
    """What the owner does not vouch for may be what a recovery has cut."""
    hole = await a_hole(10, 20, 30, 40)
    hole.harness.owners.committed[STREAM] = 45
    hole.harness.owners.first[STREAM] = 35

    await accept_gap(hole.harness.context, await hole.open(), 35)
    assert await hole.entries() == [*TENS, (30, 40)]

    hole = await a_hole(10, 20)
    hole.harness.owners.committed[STREAM] = 25
    hole.harness.owners.first[STREAM] = 22
    await accept_gap(hole.harness.context, await hole.open(), 22)
    assert await hole.entries() == [*TENS[:2], (20, 22)]


@pytest.mark.parametrize("silent", ["first", "committed"])
async def test_without_a_word_of_the_owner_nothing_changes(silent: str) -> None:
    hole = await a_hole(10, 20)
    getattr(hole.harness.owners, silent).clear()
    before = await hole.harness.record()

    with pytest.raises(Unavailable) as raised:
        await hole.accept()

    assert raised.value.code is Code.NOT_OWNER
    assert await hole.harness.record() == before


async def test_nor_does_a_question_for_a_hole_that_is_not_there_change_anything() -> None:
    hole = await a_hole(10, 20)
    before = await hole.harness.record()

    with pytest.raises(WrongOffset):
        await accept_gap(hole.harness.context, await hole.open(), LOG_BEGINS + 1)

    assert await hole.harness.record() == before


async def test_what_was_given_up_or_is_of_another_epoch_is_not_kept() -> None:
    hole = await a_hole(10)
    hole.harness.owners.committed.clear()
    await begin(hole.harness.context, await hole.open(), "s2")
    hole.harness.owners.committed[STREAM] = LOG_ENDS
    await hole.accept()
    assert await hole.entries() == [(0, 10), (10, 50)]

    hole = await a_hole(10)
    epochs = (EpochStart(1, 0), EpochStart(2, 10))
    await hole.harness.streams.update(
        STREAM, lambda record: replace(record, epoch=2, epochs=epochs)
    )
    await hole.accept()
    assert await hole.entries() == [(0, 10), (10, 50)]


@pytest.mark.parametrize("left", range(12))
@pytest.mark.parametrize("by", ["the operation", "a session"])
async def test_whenever_it_dies_who_comes_next_finishes_it_and_keeps_the_same(
    left: int, by: str
) -> None:
    hole = await a_hole(10, 20, 40)
    hole.harness.fuse.left = left
    with suppress(Crash):
        await hole.accept()
    hole.harness.fuse.left = None

    if by == "a session":
        await begin(hole.harness.context, await hole.open(), "s2")
    mutators = Mutators(hole.harness.context)
    await mutators.of(STREAM).accept_gap(LOG_BEGINS)
    await mutators.aclose()

    assert await hole.entries() == [*TENS, (30, 50)]


@pytest.mark.parametrize("count", range(5))
@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.LOST_APPLIED, Fault.LOST_LATE])
async def test_whatever_answer_is_lost_the_same_is_kept(count: int, fault: Fault) -> None:
    hole = await a_hole(10, 20, 40)
    committer = await hole.open()
    hole.harness.coordination.faults = [Fault.NONE] * count + [fault, fault]

    with suppress(Unavailable):
        await hole.accept(committer)
    hole.harness.coordination.faults = []
    await hole.accept(committer)
    hole.harness.coordination.arrive()

    assert await hole.entries() == [*TENS, (30, 50)]


@pytest.mark.parametrize("when", ["before the root is put", "before the EXEC"])
async def test_what_another_process_publishes_meanwhile_brings_what_stood_after_it_along(
    when: str,
) -> None:
    """The fragment at 30 lands after it was looked for, and is published by the other manifest; what
    stood after that hole goes on from the end then, and belongs to the stream."""
    hole = await a_hole(10, 20, 40, asked=(10, 20, 30, 40))
    committer, other = await hole.open(), await hole.open()
    # The other two are published before, so that the next change is the gap.
    for first in (10, 20):
        await other.register("s1", [await _known(hole, first)])
    await other.flush()
    await committer.refresh()

    async def meanwhile() -> None:
        await other.register("s1", [await hole.put(30)])
        await other.flush()

    if when == "before the EXEC":
        hole.harness.coordination.before_transact = meanwhile
    else:
        hole.harness.drive.before_put = meanwhile
    gap = await hole.accept(committer)

    assert gap["first_offset"] is None
    assert await hole.entries() == [*TENS, (30, 40), (40, 50)]


async def _known(hole: Hole, first: int) -> Any:
    """What was put, once more, as its uploader would tell of it."""
    harness = ManifestHarness()
    return await harness.put_fragment(hole.uids[first], first, timestamp=1_000 + first)


async def test_the_uploader_whose_fragment_was_kept_is_told_that_it_is_applied() -> None:
    hole = await a_hole(10, 40)
    committer = await hole.open()
    await hole.accept(committer)

    kept, late = await _known(hole, 10), await _known(hole, 40)
    assert await committer.register("s1", [kept]) == ()
    assert committer.outcome(kept.uid) is True
    assert await committer.register("s1", [late]) == (late.uid,)
    assert committer.outcome(late.uid) is Why.TAKEN


@pytest.mark.parametrize("left", range(10))
async def test_a_loss_of_coordination_at_any_step_of_it_loses_nothing_that_is_durable(
    left: int,
) -> None:
    harness = await a_harness()
    hole = await Hole(harness, 10, 20).dig()
    harness.fuse.left = left
    with suppress(Crash):
        await hole.accept()
    harness.fuse.left = None
    harness.coordination.lose()

    assert (await rebuild(harness))["unreadable_streams"] == 0

    assert (await hole.entries())[:3] == TENS


def _no_run(*_: object) -> Callable[..., Any]:
    async def run(*_: object) -> list[Any]:
        return []

    return run


async def test_without_that_look_the_gap_covers_what_is_durable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(monkeypatch, "what is adopted before a gap", _no_run())
    hole = await a_hole(10, 20)

    await hole.accept()

    assert await hole.entries() == [(0, 10), (10, 50)]
