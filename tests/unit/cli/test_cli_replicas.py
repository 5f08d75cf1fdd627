"""The options `--replicas` and `--min-in-sync`, and the list of nodes."""

from pathlib import Path

import orjson
import pytest
import typer
from support.command_line import CommandLine
from support.stand_in import OURS, standing_in

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


def test_nodes_are_listed_with_their_addresses_and_what_is_left(tmp_path: Path) -> None:
    node = {"url": "http://10.0.0.5:9081", "zone": None, "release": "0.1.0"}
    items = [
        {**node, "node": "a" * 32, "state": "live", "left": None},
        {**node, "node": "b" * 32, "state": "emptying", "left": 3},
    ]
    with standing_in(lambda _: (200, orjson.dumps({"items": items}), OURS)) as server:
        shown = CommandLine(server.url, tmp_path).ok("nodes", "ls").splitlines()
    assert shown[0].split() == ["NODE", "STATE", "LEFT", "URL", "ZONE", "RELEASE"]
    assert shown[1].split() == ["a" * 32, "live", "http://10.0.0.5:9081", "0.1.0"]
    assert shown[2].split() == ["b" * 32, "emptying", "3", "http://10.0.0.5:9081", "0.1.0"]


@pytest.mark.parametrize(("held", "is_told"), [(2, True), (3, False)])
def test_a_stream_that_lacks_nodes_says_how_many(
    tmp_path: Path, held: int, *, is_told: bool
) -> None:
    node = {"role": "in-sync", "in_sync": True, "epoch": 1, "next_offset": 30, "lag": 0}
    nodes = [{**node, "node": digit * 32, "failing": False, "zone": ""} for digit in "abc"[:held]]
    body = orjson.dumps({"replicas": 3, "min_in_sync": 2, "epoch": 1, "nodes": nodes})
    with standing_in(lambda _: (200, body, OURS)) as server:
        result = CommandLine(server.url, tmp_path).run("replicas", "status", "s")
        listed = CommandLine(server.url, tmp_path).ok("replicas", "status", "s", "-o", "name")
    assert len(result.stdout.splitlines()) == 1 + held
    assert len(listed.splitlines()) == held
    assert ("2 of 3 nodes hold it" in result.stderr) is is_told


@pytest.mark.parametrize("command", ["add", "rm", "move"])
@pytest.mark.parametrize("node", ["two", "a" * 31, "A" * 32])
def test_what_is_no_id_of_a_node_is_refused_before_anything_is_sent(
    tmp_path: Path, command: str, node: str
) -> None:
    with standing_in(lambda _: (202, b"{}", OURS)) as server:
        result = CommandLine(server.url, tmp_path).run("replicas", command, "s", node)
    assert (result.exit_code, server.asked) == (1, [])
    assert "(bad-name)" in result.stderr
    assert "`bottomless nodes ls`" in result.stderr


def test_who_does_not_catch_up_is_told_beside_the_list(tmp_path: Path) -> None:
    node = {"in_sync": False, "epoch": 1, "next_offset": 9, "lag": 3, "failing": False, "zone": ""}
    nodes = [
        {**node, "node": "a" * 32, "role": "owner"},
        {**node, "node": "b" * 32, "role": "catching-up", "stalled": True},
        {**node, "node": "c" * 32, "role": "catching-up", "stalled": False},
    ]
    body = orjson.dumps({"replicas": 3, "min_in_sync": 2, "epoch": 1, "nodes": nodes})
    with standing_in(lambda _: (200, body, OURS)) as server:
        result = CommandLine(server.url, tmp_path).run("replicas", "status", "s")
        listed = CommandLine(server.url, tmp_path).run("replicas", "status", "s", "-o", "json")
    (line,) = result.stderr.splitlines()
    assert f"{'b' * 32} lives and does not catch up" in line
    assert listed.stderr == ""
