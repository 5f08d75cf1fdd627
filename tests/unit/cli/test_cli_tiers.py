"""The option `--tiers`, and what stands below a description."""

import pytest
import typer

from bottomless.cli.tiers import show_bars
from bottomless.cli.tiers_option import tiers_in, with_tiers


def test_a_policy_is_one_word() -> None:
    assert tiers_in("default:age=7d:bytes=10GB,shelf:bytes=5,cold") == [
        {"drive": "default", "max_age": "7d", "max_bytes": 10_000_000_000},
        {"drive": "shelf", "max_bytes": 5},
        {"drive": "cold"},
    ]


def test_a_tier_may_promote_what_is_read() -> None:
    assert tiers_in("default:age=7d,cold:reads=3") == [
        {"drive": "default", "max_age": "7d"},
        {"drive": "cold", "promote_after_reads": 3},
    ]


def test_none_takes_the_tiers_away_and_nothing_said_changes_nothing() -> None:
    assert with_tiers({"labels": {}}, "none") == {"labels": {}, "tiers": []}
    assert with_tiers({"labels": {}}, None) == {"labels": {}}


@pytest.mark.parametrize(
    "text",
    ["", "a,", ":age=7d", "a:7d", "a:age=", "a:size=5", "a:bytes=many", "a:bytes=", "a:reads=3d"],
)
def test_what_is_of_another_form_is_refused_as_wrong_usage(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        tiers_in(text)


def test_each_drive_has_a_bar_of_its_part(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    drives = [
        {"drive": "default", "number": 0, "bytes": 3_000},
        {"drive": None, "number": 9, "bytes": 1_000},
    ]
    show_bars({"drives": drives, "several": {"bytes": 0}})

    assert capfdbinary.readouterr().out.decode().splitlines() == [
        "",
        "default  ##################......  3.0 kB",
        "drive 9  ######..................  1.0 kB",
    ]


def test_a_stream_without_a_fragment_has_empty_bars(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    show_bars({"drives": [{"drive": "a", "number": 0, "bytes": 0}], "several": {"bytes": 0}})

    assert b"#" not in capfdbinary.readouterr().out
