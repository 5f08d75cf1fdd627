"""The manifest beside a plain list, through lost replies, crashes, two processes, removals.

After every step the whole committed manifest is loaded from the drive, every checksum
verified, and compared (architecture.md, section 7):

2. offsets are dense: every one is data, a gap or removed
3. a fenced owner changes nothing
4. everything that the committed root names exists and matches; nothing reachable is deleted
5. durable first, visible second, reclaimed last: a record never names what is not there
6. floor ≤ published ≤ reserved, condemned ≤ floor, and nothing goes back
7. sizes sum up; rebalancing neither loses nor reorders entries

BOTTOMLESS_MODEL_STEPS (2,400 where it is not set) says how many steps, and
BOTTOMLESS_MODEL_SEED with which seed they begin; the seeds that were used are printed. A few more
are taken where a way was not come to yet: any change of the model makes other stories of a seed.
"""

import os

import pytest
from hypothesis import Phase

from bottomless.errors import StoreError
from model.guards import GUARDS
from model.manifest_runs import run_seed, run_steps
from model.takeovers import ManifestBesideAList

WAYS = {
    "a process crashed",
    "the deleter crashed",
    "the floor moved",
    "a gap was read over",
    "a late EXEC arrived in vain",
    "a condemned range was asked for",
    "objects were deleted",
    "a group was cut in part",
    "a lease held what was removed",
    "garbage was collected",
    "a publish came between the looks",
    "the clock was ahead",
    "a takeover happened",
    "a takeover adopted",
    "a takeover was cut off after its fence",
    "a takeover did not happen",
    "a slow put landed",
    "coordination was rebuilt",
    "a fragment was lost before a rebuild",
    "a fragment was lost where a deposed owner had put another",
    "a delete was under way in a rebuild",
}
"""A model that never comes there proves nothing."""
SEARCHED_EXAMPLE_COUNT = 50
"""Of a seed, where a guard is removed."""


def run_seeds(count: int, first: int) -> None:
    """One after the other, and the one that is named before all others."""
    for number in [first, *(other for other in range(count) if other != first)]:
        run_seed(ManifestBesideAList, number, [Phase.generate], SEARCHED_EXAMPLE_COUNT)


# A failure is shrunk before it is reported, which takes longer than a run.
@pytest.mark.timeout(24 * 3600)
def test_the_manifest_is_what_the_list_says() -> None:
    wanted = int(os.environ.get("BOTTOMLESS_MODEL_STEPS", "2400"))
    first = int(os.environ.get("BOTTOMLESS_MODEL_SEED", "0"))
    run_steps(ManifestBesideAList, wanted, first, WAYS)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("guard", GUARDS)
def test_without_a_guard_the_list_says_otherwise(
    guard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run is the test above with one guard removed; it has to fail. Other stories of the same
    seeds, which any change of the model makes, are noticed by others of them."""
    GUARDS[guard].remove(monkeypatch)

    with pytest.raises((AssertionError, StoreError)):
        run_seeds(20, GUARDS[guard].seed)
