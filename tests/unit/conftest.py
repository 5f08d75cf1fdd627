"""Properties are checked without a deadline, however long it takes to draw examples: how busy the machine
is says nothing of the code.

Every run looks at the same examples, so that no verdict is a matter of luck, or of what else its
process has loaded. With BOTTOMLESS_TEST_PROPERTIES it is that many others for each property, drawn
anew, and also from what stands in the source: `./dev soak`.
"""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from support.limits import UNIT_SECONDS
from support.same_examples import read_nothing_in_sources

COUNT = os.environ.get("BOTTOMLESS_TEST_PROPERTIES", "")

_HOWEVER_SLOW = settings(deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("everyday", _HOWEVER_SLOW, derandomize=True, max_examples=50)
settings.register_profile("soak", _HOWEVER_SLOW, print_blob=True, max_examples=int(COUNT or 100))
settings.load_profile("soak" if COUNT else "everyday")
if not COUNT:
    read_nothing_in_sources()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give each of these tests its limit, unless it has one of its own, or the run has another one: what
    `./dev soak` does has none."""
    if config.getoption("timeout") is not None:
        return
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(UNIT_SECONDS))
