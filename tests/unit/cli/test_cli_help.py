"""Every command explains itself, quickly and without colours."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from support.command_line import CommandLine
from support.command_line import app as program
from typer.testing import CliRunner

from bottomless.cli import create_app, installed

GUIDE = (Path(__file__).parents[3] / "docs/cli.md").read_text()


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name)


COMMANDS = sorted(commands(typer.main.get_command(create_app())))


def test_the_commands_are_these() -> None:
    assert [" ".join(path) for path in COMMANDS] == [
        "admin compact",
        "admin gap",
        "admin gc",
        "admin queues compact",
        "admin queues store",
        "admin queues takeover",
        "admin rebuild",
        "admin takeover",
        "admin wal cat",
        "admin wal ls",
        "admin wal show",
        "bench",
        "consumers get",
        "consumers ls",
        "consumers rm",
        "consumers set",
        "create",
        "describe",
        "doctor",
        "drives add",
        "drives lost",
        "drives ls",
        "drives retire",
        "fence",
        "fragments cat",
        "fragments ls",
        "groups activate",
        "groups describe",
        "groups ls",
        "groups rm",
        "import rabbitmq",
        "keys create",
        "keys ls",
        "keys revoke",
        "keys rotate",
        "keys show",
        "leases renew",
        "leases rm",
        "leases take",
        "limits",
        "ls",
        "manifest tree",
        "manifest verify",
        "nodes evacuate",
        "nodes ls",
        "nodes rebalance",
        "offsets",
        "operations ls",
        "operations show",
        "produce",
        "producers get",
        "producers ls",
        "producers rm",
        "queue ack",
        "queue create",
        "queue describe",
        "queue extend",
        "queue ls",
        "queue nack",
        "queue peek",
        "queue publish",
        "queue purge",
        "queue receive",
        "queue redrive",
        "queue rm",
        "queue update",
        "queue work",
        "queue-store import-rabbitmq",
        "queue-store migrate",
        "queue-store new-id",
        "queue-store rebuild",
        "queue-store scan",
        "queue-store verify",
        "read",
        "replicas add",
        "replicas move",
        "replicas rm",
        "replicas status",
        "resolve",
        "retention apply",
        "retention preview",
        "rm",
        "serve",
        "spark export",
        "spark import",
        "spark replay",
        "spark stats",
        "spark verify",
        "super create",
        "super describe",
        "super grow",
        "super ls",
        "super rm",
        "super update",
        "tail",
        "tiers apply",
        "tiers give-up",
        "tiers move",
        "tiers preview",
        "tiers promote",
        "tiers show",
        "trim",
        "unfence",
        "update",
        "version",
        "whoami",
    ]


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_a_command_says_what_it_and_each_of_its_options_does(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(program(), [*path, "--help"])

    assert (result.exit_code, result.stderr) == (0, "")
    usage, sentence = result.stdout.split("\n\n")[:2]
    assert usage.startswith(f"Usage: bottomless {' '.join(path)} [OPTIONS]")
    assert sentence.strip()
    assert "\x1b" not in result.stdout
    options = re.findall(
        r"^  (?:-\w, )?(--[\w-]+)(.*)(?:\n {10}(.*))?", result.stdout, re.MULTILINE
    )
    silent = [
        name for name, text, below in options if not re.search(r"  \S|>$", text) and not below
    ]
    assert silent == []


WIDTH = 80


@pytest.mark.parametrize(
    "path", [(), *COMMANDS, *sorted({path[:1] for path in COMMANDS})], ids=" ".join
)
def test_help_fits_into_a_terminal_of_80_columns(path: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(program(), [*path, "--help"], terminal_width=WIDTH).stdout
    assert [line for line in shown.splitlines() if len(line) > WIDTH] == []


FOREIGN = {("serve",), ("admin", "compact"), ("version",)}
"""Two are another distribution's, and one needs no example."""


@pytest.mark.parametrize("path", [path for path in COMMANDS if path not in FOREIGN], ids=" ".join)
def test_help_ends_with_examples_whose_options_there_are(path: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(program(), [*path, "-h"]).stdout
    before, _, examples = shown.partition("Examples:")
    lines = examples.strip().splitlines()
    assert lines
    for line in lines:
        # What a shell would do with it is not the command's.
        words = shlex.split(line.split(" > ")[0])
        named = [word for word in words if not word.startswith("-")]
        assert named[0] == "bottomless"
        assert " ".join(path) in " ".join(words)
        root = CliRunner().invoke(program(), ["--help"]).stdout
        for option in [word for word in words if word.startswith("-")]:
            assert re.search(rf"(?<![\w-]){option}\b", before + root), option


@pytest.mark.parametrize("path", [path for path in COMMANDS if path not in FOREIGN], ids=" ".join)
def test_the_output_of_a_command_that_shows_values_has_three_forms(path: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(program(), [*path, "--help"]).stdout
    if " ".join(path) in OF_RECORDS:
        assert "table" not in shown
    else:
        assert "-o, --output <table|json|name>" in shown


OF_RECORDS = {
    *("read", "tail", "fragments cat", "admin wal cat"),
    *("consumers rm", "groups rm", "producers rm", "leases rm", "queue rm", "queue work"),
}
"""They write records or bytes as they are, or nothing at all."""


def test_help_and_completion_load_no_library_that_talks_or_computes() -> None:
    told = subprocess.run(
        [sys.executable, "-c", f"{LOADS}; print(*sorted({HEAVY!r} & sys.modules.keys()))"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert told.stdout.split() == []


LOADS = "import sys; from bottomless.cli import create_app; create_app()"
HEAVY = {
    "aiohttp",
    "anyio",
    "asyncio",
    "httpcore",
    "httpx",
    "numpy",
    "platformdirs",
    "pyarrow",
    "pydantic",
    "rich",
    "ssl",
}


RUNS = """
import sys
from bottomless.cli import main
sys.argv = ["bottomless", *{words!r}]
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
print(*sorted({heavy!r} & sys.modules.keys()), file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("words", "needed"),
    [
        ("ls --help", set()),
        ("ls", {"asyncio", "platformdirs", "ssl"}),
        ("ls -o json", {"asyncio", "platformdirs", "pydantic", "ssl"}),
    ],
    ids=["help", "table", "json"],
)
def test_a_short_command_loads_only_what_it_needs(
    cli: CommandLine, words: str, needed: set[str]
) -> None:
    """Loading the others took twice as long as all the rest of `bottomless ls`."""
    ran = subprocess.run(
        [sys.executable, "-c", RUNS.format(words=words.split(), heavy=HEAVY)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "BOTTOMLESS_URL": cli.url},
    )
    assert set(ran.stderr.split()) == needed


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_the_guide_names_every_command(path: tuple[str, ...]) -> None:
    assert f"bottomless {' '.join(path)}" in GUIDE


def test_help_names_the_exit_codes_that_the_guide_lists() -> None:
    shown = CliRunner().invoke(program(), ["--help"]).stdout
    named = re.search(r"Exit codes: (.*)", " ".join(shown.split()))
    assert named
    codes = re.findall(r"(?:^|; )(\d+) ", named[1])
    assert codes == re.findall(r"^\| (\d+) \|", GUIDE, re.MULTILINE)


@pytest.mark.parametrize(
    "words",
    [
        ("--url", "localhost:8080", "ls"),
        ("--url", "http://localhost:port", "ls"),
        ("update", "s"),
        ("update", "s", "--max-bytes", "many"),
        ("update", "s", "--max-bytes", "10G"),
        ("update", "s", "--fragment-age-ms", "10MB"),
        ("create", "s", "--label", "team"),
        ("produce", "s", "no-such-file"),
        ("produce", "s", "--resume"),
        ("produce", "s", "--key-field", "id"),
        ("rm", "s"),
        ("trim", "s"),
        ("trim", "s", "-1"),
        ("trim", "s", "9" * 30, "--yes"),
        ("update", "s", "--max-bytes", "9" * 30),
        ("retention", "apply"),
        ("consumers", "rm", "s", "c"),
        ("groups", "rm", "s", "g"),
        ("tail", "s", "--group", "g", "--consumer", "c"),
        ("admin", "gc"),
        ("admin", "rebuild"),
        ("admin", "takeover", "s", "--expect-home", "0" * 32),
        ("admin", "queues", "takeover", "--expect-home", "0" * 32),
        ("read", "s", "-o", "xml"),
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_with_2_and_says_what_is_wrong(words: tuple[str, ...]) -> None:
    # Where nothing listens: what is wrong is found before anybody is asked. `rm` asks before it
    # confirms, and is told so in its own test.
    if words == ("rm", "s"):
        words = ("rm",)
    result = CliRunner().invoke(program(), list(words))
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("queues", "ls"), "bottomless queue ls"),
        (("group", "describe", "orders", "billing"), "bottomless groups describe"),
        (("supers",), "bottomless super"),
        (("key", "orders"), "bottomless keys"),
    ],
    ids=str,
)
def test_a_plural_for_a_singular_is_answered_with_the_command(
    words: tuple[str, ...], meant: str
) -> None:
    result = CliRunner().invoke(program(), list(words))
    assert result.exit_code == 2
    assert f"No such command. Did you mean `{meant}`?" in result.stderr


def test_serve_with_the_client_alone_says_where_the_server_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(installed, "entry_points", lambda **_: ())
    result = CliRunner().invoke(create_app(), ["serve", "--port", "9000", "ingest"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "./dev serve" in result.stderr
    assert "\n  serve" not in CliRunner().invoke(create_app(), ["--help"]).stdout
