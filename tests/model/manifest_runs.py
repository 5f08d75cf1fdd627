"""Runs of the manifest's models: by seeds, for so many steps, until every way was come to."""

from collections.abc import Collection, Sequence

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from model.publishing import Publishing

EXAMPLE_COUNT = 25
STEP_COUNT = 40
FURTHER_STEPS = 4_000


def run_seed(
    machine: type[Publishing],
    number: int,
    phases: Sequence[Phase] = (Phase.generate, Phase.shrink),
    example_count: int = EXAMPLE_COUNT,
) -> None:
    class Seeded(machine):  # type: ignore[misc, valid-type]
        pass

    run_state_machine_as_test(
        seed(number)(Seeded),
        settings=settings(
            max_examples=example_count,
            stateful_step_count=STEP_COUNT,
            deadline=None,
            database=None,
            print_blob=True,
            phases=phases,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )


def run_steps(
    machine: type[Publishing],
    wanted: int,
    first: int,
    ways: Collection[str],
    example_count: int = EXAMPLE_COUNT,
) -> None:
    """Take so many steps, from a seed on, and a few more where a way was not come to yet: any change of
    a model makes other stories of a seed. The seeds that were used are printed."""
    number, begun = first, machine.steps
    taken = 0
    while taken < wanted or (missing(machine, ways) and taken < wanted + FURTHER_STEPS):
        print(f"seed {number}, after {taken} steps", flush=True)
        run_seed(machine, number, example_count=example_count)
        number += 1
        taken = machine.steps - begun
    print("; ".join(f"{name}: {count}" for name, count in sorted(machine.events.items())))
    print(f"seeds {first} to {number - 1}: {taken} steps")
    assert not missing(machine, ways)


def missing(machine: type[Publishing], ways: Collection[str]) -> set[str]:
    return {name for name in ways if not machine.events[name]}
