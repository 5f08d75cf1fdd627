"""Sizes and ages as people read them."""

import pytest

from bottomless.cli.human import age_of, size_of


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (104_700_000, "104.7 MB"),
        (2**63, "9.2 EB"),
        (10**22, "10000.0 EB"),
    ],
)
def test_a_size_has_the_unit_of_which_there_is_one_at_least(count: int, told: str) -> None:
    assert size_of(count) == told


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (-5, "0s"),
        (59, "59s"),
        (60, "1m"),
        (3_599, "59m"),
        (86_399, "23h"),
        (86_400, "1d"),
        (10**8, "3y"),
    ],
)
def test_an_age_has_the_unit_of_which_there_is_one_at_least(seconds: int, told: str) -> None:
    assert age_of(seconds * 1000) == told
