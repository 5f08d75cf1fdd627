"""`update --prefix`: all streams with a prefix are changed, no other, and a dry run changes none."""

from typing import Any

import pytest
from support.command_line import CommandLine


@pytest.fixture
def streams(cli: CommandLine) -> CommandLine:
    cli.stream("policy-a")
    cli.stream("policy-b", options=("--max-age", "1d"))
    cli.stream("policy-c", options=("--max-age", "7d", "--label", "team=shop"))
    cli.stream("other")
    return cli


def ages(cli: CommandLine) -> dict[str, Any]:
    return {one["name"]: one["retention"]["max_age"] for one in cli.json("ls")}


def test_a_dry_run_shows_what_would_change_and_changes_nothing(streams: CommandLine) -> None:
    before = streams.json("ls")
    words = ("update", "--prefix", "policy-", "--max-age", "7d", "--dry-run")
    assert streams.json(*words, "--label", "team=shop") == [
        {
            "name": "policy-a",
            "changes": [
                {"member": "retention.max_age", "before": None, "after": "7D"},
                {"member": "labels.team", "before": None, "after": "shop"},
            ],
        },
        {
            "name": "policy-b",
            "changes": [
                {"member": "retention.max_age", "before": "1D", "after": "7D"},
                {"member": "labels.team", "before": None, "after": "shop"},
            ],
        },
    ]
    assert streams.ok(*words).splitlines()[1:] == [
        "policy-a  retention.max_age: - → 7D",
        "policy-b  retention.max_age: 1D → 7D",
    ]
    assert streams.json("ls") == before


def test_all_with_the_prefix_are_changed_once_and_no_other(streams: CommandLine) -> None:
    words = ("update", "--prefix", "policy-", "--max-age", "7d", "--yes", "-o", "name")
    assert streams.ok(*words) == "policy-a\npolicy-b\n"
    found = ages(streams)
    assert {found[f"policy-{name}"] for name in "abc"} == {"7D"}
    assert found["other"] is None
    assert streams.ok(*words) == ""
    assert streams.json("describe", "policy-c")["labels"] == {"team": "shop"}


def test_what_keeps_less_is_asked_for_and_labels_are_not(streams: CommandLine) -> None:
    refused = streams.run("update", "--prefix", "policy-", "--max-age", "1h")
    assert refused.exit_code == 2
    assert "--yes" in refused.stderr
    assert ages(streams)["policy-b"] == "1D"
    labelled = ("update", "--prefix", "policy-", "--label", "team=", "-o", "name")
    assert streams.ok(*labelled) == "policy-c\n"
    assert streams.json("describe", "policy-c")["labels"] == {}


@pytest.mark.parametrize(
    "words",
    [
        ("--max-age", "7d"),
        ("policy-a", "--prefix", "policy-", "--max-age", "7d"),
        ("policy-a", "--dry-run", "--max-age", "7d"),
        ("--prefix", "policy-", "--if-match", '"x"', "--max-age", "7d"),
        ("--prefix", "policy-"),
        ("--prefix", "policy-", "--max-age", "soon", "--yes"),
    ],
)
def test_words_that_do_not_go_together_are_refused(
    streams: CommandLine, words: tuple[str, ...]
) -> None:
    before = streams.json("ls")
    assert streams.run("update", *words).exit_code == 2
    assert streams.json("ls") == before


def test_default_takes_a_limit_back_from_all(streams: CommandLine) -> None:
    streams.ok("update", "--prefix", "policy-", "--max-age", "default", "--yes")
    assert set(ages(streams).values()) == {None}


def test_all_with_the_prefix_get_an_index_of_filters(streams: CommandLine) -> None:
    words = ("update", "--prefix", "policy-", "--filter-index", "values-and-keys", "-o", "name")
    assert streams.ok(*words) == "policy-a\npolicy-b\npolicy-c\n"
    assert streams.ok(*words) == "", "they have it already"
    assert streams.json("describe", "policy-b")["filter"]["index"] == "values-and-keys"
    assert "filter" not in streams.json("describe", "other")
    refused = streams.run("update", "--prefix", "policy-", "--filter-index", "some")
    assert refused.exit_code == 2
