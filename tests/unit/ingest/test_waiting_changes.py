"""Which changes of what is known of producers go into a round together, and what is answered."""

import asyncio

import pytest
from support.guards import remove

from bottomless.errors import Code, Overloaded, StoreError
from bottomless.model.chunk import TrackedEntry
from bottomless_server.core.tracking.known_producers import TrackingBounds
from bottomless_server.core.tracking.tracking import Tracking
from bottomless_server.ingest.local.waiting_changes import StateChange, WaitingChanges
from bottomless_server.ingest.producers import producer_changes
from unit.ingest.harness import IngestHarness

BOUNDS = TrackingBounds(producer_count_max=2, append_count_max=5, key_count_max=10, keep_ms=1_000)
NOW = 1_000


def raising(producer_id: str) -> StateChange:
    return lambda tracking, now, places: producer_changes.raise_epoch(
        tracking, producer_id, now, places
    )


def forgetting(producer_id: str) -> StateChange:
    return lambda tracking, now, _: producer_changes.forget(tracking, producer_id, now)


class Standing:
    """A line, and what is known of producers."""

    def __init__(self) -> None:
        self.waiting = WaitingChanges()
        self.tracking = Tracking(BOUNDS)

    def add(self, *changes: StateChange) -> list[asyncio.Future[None]]:
        return [self.waiting.add(change) for change in changes]

    def round(self) -> int:
        """One round, from the choice to the answers; returns how many changes it wrote."""
        chosen = self.waiting.choose(self.tracking, NOW)
        self.tracking.take_tracked(chosen.entries)
        chosen.settle()
        return len(chosen.changes)

    def epochs(self) -> dict[str, int]:
        return {name: known.epoch for name, known in self.tracking.producers.items()}


def code_of(answer: asyncio.Future[None]) -> Code | None:
    error = answer.exception()
    assert isinstance(error, StoreError)
    return error.code


async def test_changes_that_wait_together_are_one_round() -> None:
    standing = Standing()
    answers = standing.add(raising("a"), raising("b"))
    assert standing.round() == 2
    assert all(one.done() and one.exception() is None for one in answers)
    assert standing.epochs() == {"a": 1, "b": 1}


async def test_one_that_is_refused_is_nothing_to_the_others() -> None:
    standing = Standing()
    first, refused, last = standing.add(raising("a"), forgetting("b"), raising("c"))
    assert standing.round() == 2
    assert code_of(refused) is Code.PRODUCER_NOT_FOUND
    assert first.exception() is None is last.exception()
    assert standing.epochs() == {"a": 1, "c": 1}


async def test_one_that_has_nothing_to_write_is_answered_without_a_round() -> None:
    standing = Standing()
    [answer] = standing.add(lambda *_: [])
    assert standing.round() == 0
    assert answer.exception() is None


async def test_a_name_is_changed_once_in_a_round() -> None:
    standing = Standing()
    first, second, other = standing.add(raising("a"), raising("a"), raising("b"))
    assert standing.round() == 2
    assert (first.done(), second.done(), other.done()) == (True, False, True)
    assert standing.round() == 1
    assert standing.epochs() == {"b": 1, "a": 2}


async def test_without_that_one_of_two_changes_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    remove(monkeypatch, "one change of a name in a round", lambda *_: True)
    with pytest.raises(AssertionError):
        await test_a_name_is_changed_once_in_a_round()


async def test_new_names_of_one_round_do_not_share_a_place() -> None:
    standing = Standing()
    *_, last = standing.add(raising("a"), raising("b"), raising("c"))
    assert standing.round() == 2
    assert code_of(last) is Code.QUOTA_EXCEEDED
    assert standing.epochs() == {"a": 1, "b": 1}


async def test_all_that_wait_are_refused_with_what_stops_the_stream() -> None:
    standing = Standing()
    answers = standing.add(raising("a"), raising("b"))
    standing.waiting.refuse_all(Overloaded("no", code=Code.QUOTA_EXCEEDED))
    assert [code_of(one) for one in answers] == [Code.QUOTA_EXCEEDED] * 2
    assert not standing.waiting


async def test_a_bug_in_a_change_forgets_nobody() -> None:
    standing = Standing()

    def broken(*_: object) -> list[TrackedEntry]:
        raise RuntimeError

    standing.add(raising("a"), broken)
    with pytest.raises(RuntimeError):
        standing.round()
    assert len(standing.waiting) == 2


async def test_changes_of_a_stream_that_come_together_share_a_chunk_and_its_sync(
    harness: IngestHarness,
) -> None:
    await harness.append("x")
    before = len(harness.files.calls)
    change = harness.appender.change
    results = await asyncio.gather(
        *(change(raising(f"p{number}")) for number in range(20)),
        change(forgetting("nobody")),
        return_exceptions=True,
    )
    calls = [call.name for call in harness.files.calls[before:] if ".segment" in call.path]
    assert results[:20] == [None] * 20
    assert isinstance(results[20], StoreError)
    assert calls == ["pwritev", "fdatasync"]

    after = await harness.after_crash().start()
    assert {f"p{number}" for number in range(20)} == {*after.appender.tracking.producers}
    await after.aclose()
