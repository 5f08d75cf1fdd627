"""Two writers of leaderless streams end with a plain list of what they acknowledged."""

import os
from collections import Counter
from typing import Final

import pytest
from unit.ingest.leaderless.harness import Stores

from model.leaderless_producers import ProducerWorld
from model.leaderless_writers import World

SEEDS: Final = int(os.environ.get("BOTTOMLESS_MODEL_WRITERS", "2"))
FURTHER: Final = 6
"""So many seeds more at most, where none before met all that is to be met: any change makes other stories."""


def run(seed: int, *, sync: bool = False) -> World:
    world = World(seed, sync=sync)
    try:
        world.run()
    finally:
        while Stores.opened:
            Stores.opened.pop().close()
    return world


@pytest.mark.parametrize("sync", [False, True])
def test_whatever_happens_a_stream_is_what_was_acknowledged(*, sync: bool) -> None:
    events: Counter[str] = Counter()
    names = {"acknowledged", "killed", "deleted", "slept", "store begun anew"}
    for seed in range(SEEDS + FURTHER):
        if seed >= SEEDS and names <= events.keys():
            break
        events += run(seed, sync=sync).events
    assert names <= events.keys()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_whatever_happens_each_record_of_a_producer_is_stored_once() -> None:
    # Of a node that was killed some calls are never made, which their end complains about.
    events: Counter[str] = Counter()
    names = {"acknowledged", "killed", "slept"}
    for seed in range(SEEDS + FURTHER):
        if seed >= SEEDS and names <= events.keys():
            break
        world = ProducerWorld(seed)
        try:
            world.run()
        finally:
            while Stores.opened:
                Stores.opened.pop().close()
        events += world.events
    assert names <= events.keys()
