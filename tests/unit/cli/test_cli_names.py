"""A name from the command line is that name or an error; never the path of another operation."""

from pathlib import Path

import pytest
from support.command_line import CommandLine
from support.server import AllInOne

COMMANDS = [
    ("create", "{}"),
    ("describe", "{}"),
    ("update", "{}", "--max-age", "7D"),
    ("fence", "{}"),
    ("unfence", "{}"),
    ("rm", "{}", "--yes"),
    ("read", "{}"),
    ("tail", "{}"),
    ("tail", "orders", "--consumer", "{}"),
    ("produce", "{}", "/dev/null"),
    ("produce", "orders", "/dev/null", "--producer", "{}"),
    ("offsets", "{}"),
    ("trim", "{}", "5", "--yes"),
    ("retention", "preview", "{}"),
    ("retention", "apply", "{}", "--yes"),
    ("consumers", "ls", "{}"),
    ("consumers", "get", "orders", "{}"),
    ("consumers", "set", "orders", "{}", "5"),
    ("consumers", "rm", "orders", "{}", "--yes"),
    ("tail", "orders", "--group", "{}"),
    ("groups", "ls", "{}"),
    ("groups", "describe", "orders", "{}"),
    ("groups", "activate", "orders", "billing", "{}"),
    ("groups", "rm", "orders", "{}", "--yes"),
    ("fragments", "ls", "{}"),
    ("fragments", "cat", "orders", "{}"),
    ("manifest", "tree", "{}"),
    ("operations", "show", "{}"),
    ("keys", "show", "{}"),
    ("admin", "takeover", "{}", "--expect-home", "0" * 32, "--yes"),
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_name_that_is_none_ends_with_1_before_a_server_is_asked(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    # Nobody listens there: a request would end with 5.
    cli = CommandLine("http://127.0.0.1:1", tmp_path)
    for name in ("orders/consumers/billing/offset", "orders%2Foffsets", "..", ""):
        ran = cli.run(*(word.format(name) for word in words))
        assert (ran.exit_code, ran.stdout) == (1, ""), (name, ran.stderr)
        assert "(bad-name); nothing was changed" in ran.stderr
        assert ran.stderr.count("\n") == 1


def test_removing_a_stream_by_such_a_name_leaves_the_consumer_that_it_would_have_reached(
    cli: CommandLine, running: AllInOne
) -> None:
    cli.stream("reached", "one", "two")
    cli.ok("consumers", "set", "reached", "billing", "2")
    assert cli.run("rm", "reached/consumers/billing/offset", "--yes").exit_code == 1
    assert cli.json("consumers", "get", "reached", "billing")["next_offset"] == 2
