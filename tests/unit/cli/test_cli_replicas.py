"""The options `--replicas` and `--min-in-sync`."""

import pytest
import typer

from bottomless.cli.replicas import with_replicas


def test_options_name_what_they_change_and_leave_the_rest() -> None:
    assert with_replicas({"labels": {}}, None, None) == {"labels": {}}
    assert with_replicas({}, 3, None) == {"replication": {"replicas": 3}}
    assert with_replicas({}, None, "2") == {"replication": {"min_in_sync": 2}}
    assert with_replicas({}, 5, "default") == {"replication": {"replicas": 5, "min_in_sync": None}}


@pytest.mark.parametrize("text", ["", "0", "10", "most", "-1", "1.5", "\u0662"])
def test_what_is_no_count_of_nodes_is_refused_as_wrong_usage(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        with_replicas({}, None, text)
