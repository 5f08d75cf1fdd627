"""The engine of queues beside plain lists, through time, bounds, repeats, restarts and compaction.

BOTTOMLESS_MODEL_STEPS (300 where it is not set) says how many steps, and BOTTOMLESS_MODEL_SEED with which
seed they begin; the seeds that were used are printed. A few more are taken where a way was not come
to yet: any change of the model makes other stories of a seed.
"""

import os
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from model.queue_machine import QueuesBesideLists

WAYS = {
    "a circle was refused",
    "a configuration was changed",
    "a dead letter arrived: max-deliveries",
    "a dead letter arrived: rejected",
    "a file was compacted",
    "a message was in several queues",
    "a process died",
    "a publish was refused: queue-full",
    "a queue was deleted",
    "a receipt was stale",
    "a repeat was told what the first one was told",
    "a stream was in trouble",
}
"""A model that never comes there proves nothing."""
FURTHER_STEPS = 2_000
FIRST_SEED = "18"
"""From here on the ways are met sooner than from others."""
EXAMPLE_COUNT = 3
STEP_COUNT = 80


def run_seed(number: int, phases: Sequence[Phase] = (Phase.generate, Phase.shrink)) -> None:
    class Seeded(QueuesBesideLists):
        pass

    run_state_machine_as_test(
        seed(number)(Seeded),
        settings=settings(
            max_examples=EXAMPLE_COUNT,
            stateful_step_count=STEP_COUNT,
            deadline=None,
            database=None,
            print_blob=True,
            phases=phases,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )


def missing_ways() -> set[str]:
    return {name for name in WAYS if not QueuesBesideLists.events[name]}


# A failure is shrunk before it is reported, which takes longer than a run.
@pytest.mark.timeout(24 * 3600)
def test_queues_are_what_the_lists_say() -> None:
    wanted = int(os.environ.get("BOTTOMLESS_MODEL_STEPS", "300"))
    first = int(os.environ.get("BOTTOMLESS_MODEL_SEED", FIRST_SEED))
    number, begun = first, QueuesBesideLists.steps
    taken, latest = 0, wanted + FURTHER_STEPS
    while taken < wanted or (missing_ways() and taken < latest):
        print(f"seed {number}, after {taken} steps", flush=True)
        run_seed(number)
        number += 1
        taken = QueuesBesideLists.steps - begun
    events = QueuesBesideLists.events
    print("; ".join(f"{name}: {count}" for name, count in sorted(events.items())))
    print(f"seeds {first} to {number - 1}: {taken} steps")
    assert not missing_ways()
