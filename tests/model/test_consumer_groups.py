"""A consumer group in any order of joins, deaths, late heartbeats, lost replies and growth."""

import os
from collections.abc import Callable, Sequence

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from support.guards import remove

from model.consumer_groups import GroupOfMembers

WAYS = {
    "a member joined",
    "a late heartbeat",
    "a heartbeat at the last moment",
    "a reply to a heartbeat was lost",
    "a partition was revoked",
    "a commit passed",
    "a commit was fenced",
    "a commit met a change of the holder",
    "the scope grew",
}
"""A model that never comes there proves nothing."""


def run_seed(number: int, phases: Sequence[Phase] = (Phase.generate, Phase.shrink)) -> None:
    class Seeded(GroupOfMembers):
        pass

    run_state_machine_as_test(
        seed(number)(Seeded),
        settings=settings(
            max_examples=25,
            stateful_step_count=40,
            deadline=None,
            database=None,
            print_blob=True,
            phases=phases,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )


def run_seeds(count: int) -> None:
    for number in range(count):
        run_seed(number, [Phase.generate])


# A failure is shrunk before it is reported, which takes longer than a run.
@pytest.mark.timeout(24 * 3600)
def test_a_generation_has_one_holder_and_a_partition_a_live_one_soon() -> None:
    wanted = int(os.environ.get("BOTTOMLESS_MODEL_STEPS", "1000"))
    number = first = int(os.environ.get("BOTTOMLESS_MODEL_SEED", "0"))
    begun = GroupOfMembers.steps
    while (taken := GroupOfMembers.steps - begun) < wanted:
        run_seed(number)
        number += 1
    events = GroupOfMembers.events
    print("; ".join(f"{name}: {count}" for name, count in sorted(events.items())))
    print(f"seeds {first} to {number - 1}: {taken} steps")
    assert {name for name, count in events.items() if count} >= WAYS


def no_commit_is_fenced(*_: object) -> None:
    """Let every commit pass."""


def anything_goes(*_: object) -> bool:
    """Take every release as good, and every lease as over."""
    return True


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("guard", "variant"),
    [
        ("the generation in the commit's EXEC", no_commit_is_fenced),
        ("the generation in a release", anything_goes),
        ("the watched lease key when a member expires", anything_goes),
    ],
)
def test_without_a_guard_it_is_noticed(
    guard: str, variant: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch, guard, variant)
    with pytest.raises(AssertionError):
        run_seeds(20)
