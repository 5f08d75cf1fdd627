"""Passes of the garbage collector are short, and what is garbage goes all the same.

The interpreter makes no passes by itself here, so each object goes by the pass that is named.
test_runtime_collector.py runs these in a process of their own.
"""

import asyncio
import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest
from support.set_aside import bring_back

from bottomless_server.runtime.process.collector import Collector, short_passes
from bottomless_server.runtime.process.long_lived import REST_SECONDS_MAX, SET_ASIDE_MIN, Look


class Circle:
    """Refers to itself, so that no reference to it is ever the last one."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _no_passes_of_the_interpreter() -> Iterator[None]:
    bring_back()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.enable()


def age() -> None:
    """What the interpreter does when some ten thousand objects came and stayed."""
    gc.collect(0)
    for _ in range(10):
        gc.collect(1)


def much() -> list[object]:
    """As many objects as are set aside together."""
    return [[] for _ in range(SET_ASIDE_MIN)]


def given_up(thing: object) -> "weakref.ref[object]":
    return weakref.ref(thing)


def test_what_is_set_aside_is_not_looked_at_by_later_passes() -> None:
    circle = Circle()
    Collector()
    seen = given_up(circle)
    del circle
    gc.collect()

    assert seen() is not None


def test_what_is_set_aside_and_no_circle_goes_with_its_last_reference() -> None:
    held = {"set aside": Circle()}
    Collector()
    seen = given_up(held["set aside"])
    held["set aside"].itself = None  # type: ignore[assignment]
    del held

    assert seen() is None


def test_a_circle_that_is_garbage_already_is_not_set_aside() -> None:
    collector = Collector()
    circle = Circle()
    age()
    seen = given_up(circle)
    del circle
    assert collector.tick() is Look.NEW

    assert seen() is None


def test_much_that_is_new_is_set_aside_once_it_has_aged() -> None:
    collector = Collector()
    new = much()
    assert collector.tick() is Look.NOTHING
    before = gc.get_freeze_count()
    age()
    assert collector.tick() is Look.NEW

    assert gc.get_freeze_count() >= before + len(new)
    assert len(gc.get_objects()) < SET_ASIDE_MIN


def test_a_little_that_is_new_stays_in_sight_of_the_collector() -> None:
    collector = Collector()
    circle = Circle()
    age()
    assert collector.tick() is Look.NEW
    seen = given_up(circle)
    del circle
    age()
    assert collector.tick() is Look.NEW

    assert seen() is None


def test_a_circle_that_was_in_use_when_it_was_set_aside_goes_in_time() -> None:
    now = 0.0
    collector = Collector(lambda: now)
    circle, _ = Circle(), much()
    age()
    assert collector.tick() is Look.NEW
    seen = given_up(circle)
    del circle
    age()
    assert collector.tick() is Look.NEW
    assert seen() is not None
    now = REST_SECONDS_MAX
    assert collector.tick() is Look.ALL

    assert seen() is None


def test_it_goes_in_time_too_where_nothing_is_new() -> None:
    now = 0.0
    circle = Circle()
    collector = Collector(lambda: now)
    seen = given_up(circle)
    del circle
    now = REST_SECONDS_MAX
    assert collector.tick() is Look.ALL

    assert seen() is None


COMING_AND_GOING = """
import gc
from bottomless_server.runtime.process.collector import Collector
from bottomless_server.runtime.process.long_lived import SET_ASIDE_MIN, Look

class Circle:
    def __init__(self):
        self.itself = self

gc.disable()
collector = Collector(lambda: 0.0)
kept = gc.get_freeze_count()
part, rounds, most = max(kept // 4, SET_ASIDE_MIN), 40, 0
for _ in range(rounds):
    circles = [Circle() for _ in range(part)]
    gc.collect(0)
    for _ in range(10):
        gc.collect(1)
    assert collector.tick() in (Look.NEW, Look.ALL)
    most = max(most, gc.get_freeze_count())
    del circles
print(most < 4 * (kept + part) < rounds * part // 2)
"""


def test_circles_that_come_and_go_take_a_few_times_what_is_in_use_at_most() -> None:
    """With a clock that stands still: it is their number alone that has all looked at. In a process
    of its own, since one that runs tests has a great many objects."""
    done = subprocess.run(
        [sys.executable, "-c", COMING_AND_GOING],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )

    assert done.stdout == "True\n"


async def test_a_process_without_them_is_as_it_was() -> None:
    before = gc.get_threshold(), list(gc.callbacks), len(asyncio.all_tasks())
    async with short_passes():
        assert gc.get_freeze_count() > 0
        assert gc.get_threshold() != before[0]

    assert (gc.get_threshold(), list(gc.callbacks), len(asyncio.all_tasks())) == before
    assert gc.get_freeze_count() == 0


async def test_who_looked_for_no_garbage_while_it_loaded_does_from_here_on() -> None:
    gc.disable()
    try:
        async with short_passes():
            assert gc.isenabled()
    finally:
        gc.enable()


PROGRAM = """
import gc
from bottomless_server.runtime.process.service import run_process

async def main():
    print(gc.get_freeze_count() > 10_000, len(gc.get_objects()) < 10_000)
    return 0

run_process(main)
print(gc.get_freeze_count())
"""


def test_each_process_of_ours_runs_so() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120
    )

    assert done.stdout.endswith("True True\n0\n")
