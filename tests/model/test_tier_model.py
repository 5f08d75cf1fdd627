"""The manifest over three drives beside the same list, while fragments move between them.

What `test_manifest_model.py` proves of one drive is proved of three, with all its troubles, and besides,
after every step: each entry's object is on its drive; what a move names is what it has copied, all at
once, and the move is over; what it was made from stays for as long as somebody may read it; what lies on
each drive adds up; nothing is stored that nobody names, once all has come to rest; nothing is lost but
what lay on a drive that was given up.

BOTTOMLESS_MODEL_STEPS (600 where it is not set) says how many steps, and BOTTOMLESS_MODEL_SEED with which
seed they begin.
"""

import os

import pytest
from hypothesis import Phase

from bottomless.errors import StoreError
from model.drives_beside_a_list import ManifestOverDrives
from model.manifest_runs import run_seed, run_steps
from model.tier_guards import GUARDS

WAYS = {
    "a fragment was put on another drive",
    "a move was done",
    "a move was given up",
    "a copy was put of a move that was given up",
    "a mover took a move over",
    "a policy moved fragments",
    "fragments lay on several drives",
    "a lease held what was moved",
    "a move was done within a pass of the deleter",
    "a mount was gone",
    "a drive was retired",
    "a drive was in use",
    "a drive was given up",
    "a drive was given up within a pass of the deleter",
    "a fragment was lost with its drive",
    "a rebuild passed over a drive",
    "a takeover waited for a drive",
    "what a rebuild had not seen was adopted",
}
"""A model that never comes there proves nothing."""
FIRST_SEED = "4"
"""It comes to all of the ways."""
EXAMPLE_COUNT = 15
SEED_COUNT = 20
SEARCHED_EXAMPLE_COUNT = 50
"""Of a seed, where a guard is removed."""


# A failure is shrunk before it is reported, which takes longer than a run.
@pytest.mark.timeout(24 * 3600)
def test_the_manifest_over_three_drives_is_what_the_list_says() -> None:
    wanted = int(os.environ.get("BOTTOMLESS_MODEL_STEPS", "600"))
    first = int(os.environ.get("BOTTOMLESS_MODEL_SEED", FIRST_SEED))
    run_steps(ManifestOverDrives, wanted, first, WAYS, EXAMPLE_COUNT)


def run_seeds(first: int) -> None:
    """One after the other, and the one that is named before all others."""
    for number in (first, *(other for other in range(SEED_COUNT) if other != first)):
        run_seed(ManifestOverDrives, number, [Phase.generate], SEARCHED_EXAMPLE_COUNT)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("guard", GUARDS)
def test_without_a_guard_of_drives_the_list_says_otherwise(
    guard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run is the test above with one guard removed; it has to fail, by the seed that it names or by
    another one: any change of the model makes other stories of the same seeds."""
    GUARDS[guard].remove(monkeypatch)

    with pytest.raises((AssertionError, StoreError)):
        run_seeds(GUARDS[guard].seed)
