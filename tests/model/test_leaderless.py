"""Leaderless streams, beside everything that may happen to them: each run is drawn by its seed."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from support.guards import remove

from bottomless.formats.stream_record import decode_record
from bottomless.model.names import StreamId
from bottomless.model.stream import StreamRecord
from bottomless_server.coordination.base import Changes, Values
from bottomless_server.stores.streams import stream_key
from model.leaderless import SERVED, LossKind, Violation, World
from model.leaderless_variants import believed, held_first, index_first, same_number

TESTS: Final = Path(__file__).parents[1]
STEPS: Final = int(os.environ.get("BOTTOMLESS_LEADERLESS_STEPS", "2500"))
"""Calls of one run; a long run by hand takes more of them."""
SEED_COUNT: Final = int(os.environ.get("BOTTOMLESS_LEADERLESS_SEEDS", "6"))
FURTHER: Final = 8
"""So many seeds more at most, where none before met all that is rare: any change makes other stories."""
RARE: Final = (
    "a lost bump",
    "a stream waits",
    "put again: SETTLED",
    "killed between two EXECs",
    "deleted a stream",
)


def run(
    seed: int,
    steps: int,
    prepare: Callable[[World], None] = lambda _: None,
    loss: LossKind | None = None,
) -> World:
    """A world in which so many calls have happened."""
    world = World(seed, loss)
    prepare(world)
    try:
        world.run(steps)
    finally:
        world.close()
    return world


def test_no_order_of_events_breaks_what_must_hold() -> None:
    events: Counter[str] = Counter()
    missing = {"acknowledged", "pruned", "deleted", *RARE}
    for seed in range(SEED_COUNT + FURTHER):
        if seed >= SEED_COUNT and not missing:
            break
        events += run(seed, STEPS).events
        missing -= events.keys()
    assert not missing, events


def test_a_seed_tells_the_same_story_whatever_the_order_of_sets() -> None:
    """Else what a run meets is luck: each process has another order of sets of names."""
    program = "from model.test_leaderless import run; print(sorted(run(1, 800).events.items()))"
    stories = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONPATH": str(TESTS), "PYTHONHASHSEED": order},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout.splitlines()[-1]
        for order in ("0", "1")
    }
    assert len(stories) == 1


@pytest.mark.parametrize("loss", LossKind)
def test_no_loss_of_coordination_costs_what_the_bucket_has(loss: LossKind) -> None:
    """This model was blind to it: its coordination was never lost."""
    events: Counter[str] = Counter()
    for seed in range(SEED_COUNT + 4):
        events += run(seed, 1_500, loss=loss).events
    assert events["heard of the loss"] > 0, events


def test_a_run_is_the_same_each_time() -> None:
    first, second = run(7, 500), run(7, 500)
    assert first.events == second.events
    # The mark of freed names is drawn by nobody's seed.
    assert first.coordination.copy().indexes == second.coordination.copy().indexes


class _RecordOfBefore:
    """Every second prune goes by the stream's record as somebody saw it some time ago."""

    def __init__(self) -> None:
        self._seen: dict[StreamId, list[bytes]] = {}

    def __call__(self, values: Values, stream_id: StreamId) -> StreamRecord | None:
        value = values[stream_key(stream_id)]
        if value is None:
            return None
        seen = self._seen.setdefault(stream_id, [])
        seen.append(value)
        ago = 4 if len(seen) % 2 else 1
        return decode_record(seen[max(0, len(seen) - ago)], SERVED)


class Removed(NamedTuple):
    """A guard, and what stands in its place."""

    name: str
    variant: Callable[[], Callable[..., Any]]
    seed: int
    """The seed that notices it soonest; others are searched only if it does not any more."""
    trouble: float = 0.12
    """The share of transactions that something befalls."""
    loss: LossKind | None = None


async def _unlooked(*_: Any) -> None:
    pass


REMOVED: Final = [
    Removed("the state of the tail in the EXEC of a commit", lambda: lambda _: None, 0),
    Removed("the settled sequence in the EXEC of a commit", lambda: lambda *_: False, 11),
    Removed("what is settled, read before what is held", lambda: held_first, 6),
    Removed("what is settled, read before the index in a release", lambda: index_first, 2),
    Removed(
        "a new attempt before a lost commit is taken for none", lambda: lambda *_: Changes(), 2
    ),
    Removed("a number of its own for each attempt", lambda: same_number, 1, trouble=0.6),
    Removed("the stream record in the EXEC of a prune", _RecordOfBefore, 0),
    Removed(
        "the instance, looked at again after what is held",
        lambda: believed,
        5,
        loss=LossKind.EMPTIED,
    ),
    Removed(
        "the newest object of an instance that others settled",
        lambda: _unlooked,
        0,
        loss=LossKind.PUT_BACK,
    ),
    Removed(
        "the run of the store that was compared with the bucket",
        lambda: lambda *_: None,
        7,
        loss=LossKind.PUT_BACK,
    ),
]


def is_noticed(
    first: int,
    prepare: Callable[[World], None] = lambda _: None,
    loss: LossKind | None = None,
) -> int | None:
    """The seed of the run that notices it; None if none does."""
    seeds: list[int] = [first, *range(60)]
    for seed in seeds:
        try:
            run(seed, 1_500 if loss else 4_000, prepare, loss)
        except Violation:
            return seed
    return None


@pytest.mark.parametrize("removed", REMOVED, ids=lambda removed: removed.name)
def test_each_guard_that_is_taken_away_is_missed(
    removed: Removed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare(world: World) -> None:
        world.coordination.trouble = removed.trouble

    remove(monkeypatch, removed.name, removed.variant())
    assert is_noticed(removed.seed, prepare, removed.loss) is not None


@pytest.mark.parametrize("watched", ["bottomless:tail:", "bottomless:wal-instance:"])
def test_a_commit_that_does_not_watch_what_it_read_is_noticed(watched: str) -> None:
    """Must fail: the tail, or the instance, is read and not watched."""

    def prepare(world: World) -> None:
        world.coordination.unwatched = watched

    assert is_noticed(0, prepare) is not None
