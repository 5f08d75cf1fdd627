"""Completion in the shell: commands, options, and names of streams as the server has them."""

import os
import subprocess
from pathlib import Path

import pytest
from support.command_line import PROGRAM, CommandLine


def program(**environment: str) -> str:
    """What the program prints to the shell; it must have nothing to complain of."""
    ran = subprocess.run(
        [PROGRAM],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.stderr == ""
    return ran.stdout


def completed(line: str, **environment: str) -> list[str]:
    """What bash is offered for the last word of a line."""
    count = str(len(line.split(" ")) - 1)
    words = {"COMP_WORDS": line, "COMP_CWORD": count, "_BOTTOMLESS_COMPLETE": "complete_bash"}
    return program(**words, **environment).split()


@pytest.mark.parametrize(
    ("shell", "marks"),
    [
        ("bash", "complete -o default -F"),
        ("zsh", "#compdef bottomless"),
        ("fish", "complete --command bottomless"),
    ],
)
def test_each_shell_is_given_a_script_that_asks_the_program(shell: str, marks: str) -> None:
    script = program(_BOTTOMLESS_COMPLETE=f"source_{shell}")
    assert marks in script
    assert f"complete_{shell}" in script


def test_commands_and_options_are_completed_without_a_server() -> None:
    nowhere = "http://127.0.0.1:1"
    assert completed("bottomless descr", BOTTOMLESS_URL=nowhere) == ["describe"]
    assert completed("bottomless keys ro", BOTTOMLESS_URL=nowhere) == ["rotate"]
    assert completed("bottomless create x --max-a", BOTTOMLESS_URL=nowhere) == ["--max-age"]
    assert completed("bottomless ls -o n", BOTTOMLESS_URL=nowhere) == ["name"]


def test_names_of_streams_are_completed_by_the_server_that_is_named(cli: CommandLine) -> None:
    for name in ("fruit-apple", "fruit-pear", "stone"):
        cli.stream(name)
    assert completed("bottomless describe fru", BOTTOMLESS_URL=cli.url) == [
        "fruit-apple",
        "fruit-pear",
    ]
    assert completed(f"bottomless --url {cli.url} tail sto") == ["stone"]


def test_profiles_are_completed(tmp_path: Path) -> None:
    file = tmp_path / "config/bottomless/config.toml"
    file.parent.mkdir(parents=True)
    file.write_text('[live]\nurl = "http://h"\n[local]\nurl = "http://h"\n[staging]\n')
    assert completed("bottomless --profile l") == ["live", "local"]
    file.write_text("[live")
    assert completed("bottomless --profile l") == []


def test_a_server_that_is_away_completes_nothing_and_says_nothing() -> None:
    assert completed("bottomless describe fru", BOTTOMLESS_URL="http://127.0.0.1:1") == []
    assert completed("bottomless --url nonsense describe fru") == []
    assert completed("bottomless --profile nobody describe fru") == []
