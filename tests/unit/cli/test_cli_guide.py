"""docs/cli.md: its blocks are run as they stand there."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from support.command_line import PROGRAM, CommandLine

GUIDE = (Path(__file__).parents[3] / "docs/cli.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


def run(cli: CommandLine, line: str) -> str:
    """What a line prints that must succeed silently; lines of more than one program take a shell."""
    if line.startswith("bottomless ") and not re.search(r"[|<>]", line):
        return cli.ok(*shlex.split(line)[1:])
    path = f"{Path(PROGRAM).parent}:{os.environ['PATH']}"
    ran = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", line],
        env={**os.environ, "BOTTOMLESS_URL": cli.url, "PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, ""), line
    return ran.stdout


def test_the_blocks_of_the_guide_do_what_it_says(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(BLOCKS) == 8
    monkeypatch.chdir(tmp_path)
    shown = {line: run(cli, line) for block in BLOCKS for line in block.splitlines()}

    produced = [text for line, text in shown.items() if "produce orders" in line]
    assert produced == [
        "stored 2 records, the next offset is 2\n",
        "stored 1 record, the next offset is 3\n",
        "stored 1 record, the next offset is 4\n",
        "stored 10000 records, the next offset is 10004\n",
        "stored 0 records; 10000 were stored before\n",
    ]
    assert shown["bottomless read orders --limit 2"] == "one\ntwo\n"
    assert shown["bottomless tail orders -n 3"] == "9998\n9999\n10000\n"
