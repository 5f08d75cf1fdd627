"""Streams whose fragments move between three drives, in a storm: `./dev sim SEED --tiers 2`.

Fifty seeds are `./dev soak tier-seeds`; forty in which drives are lost for good are `./dev soak drive-seeds`.
"""

import re

import pytest

from simulation.test_simulation import simulated

STORM = "3"
SEED = "5,"
FURTHER = 12
"""Up to which seed others are taken where this one has not all of the ways."""
WAYS = ("moves done", "drives away", "steps of moves at which one dies")


@pytest.mark.timeout(1_800)
def test_each_fragment_is_on_its_drive_and_nothing_else_is_whatever_befalls_drives() -> None:
    """A seed found that a fragment counted as uploaded which lay below a mount."""
    told, missing = "", set(WAYS)
    for seed in (SEED, *(f"{one}," for one in range(1, FURTHER + 1) if f"{one}," != SEED)):
        asked = (seed, "--tiers", "2", "--storm-seconds", STORM, "--troubles", "moves")
        code, more = simulated(*asked)
        assert code == 0, more
        told += more
        missing -= {way for way in WAYS if re.search(rf"'{way}': [1-9]", more)}
        if not missing:
            break
    print(told)
    assert not missing, told


@pytest.mark.timeout(60)
def test_options_that_do_not_go_together_are_refused() -> None:
    code, told = simulated("1", "--tiers", "2", "--queues")
    assert (code, told) == (2, "")
