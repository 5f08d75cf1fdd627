"""What the command line talks to: one server for each module of tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.command_line import CommandLine
from support.server import AllInOne

SETTINGS = {"BOTTOMLESS_MANIFEST_FANOUT": "4"}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AllInOne]:
    with AllInOne(tmp_path_factory.mktemp("cli") / "data", SETTINGS) as server:
        yield server


@pytest.fixture
def cli(running: AllInOne, tmp_path: Path) -> CommandLine:
    return CommandLine(running.url, tmp_path)
