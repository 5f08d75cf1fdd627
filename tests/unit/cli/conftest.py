"""What the command line talks to: one server for all these tests, and nobody's own settings."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.command_line import CommandLine
from support.served import PATIENT
from support.server import AllInOne

from bottomless.cli import outages

SETTINGS = {**PATIENT, "BOTTOMLESS_MANIFEST_FANOUT": "4"}

OWN = ("URL", "TOKEN", "TOKEN_FILE", "PROFILE", "CA_FILE")


@pytest.fixture(autouse=True)
def _no_settings_of_the_tester(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in OWN:
        monkeypatch.delenv(f"BOTTOMLESS_{name}", raising=False)


@pytest.fixture(autouse=True)
def _nothing_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command says of a wait depends on the machine, and is asked for where it matters."""
    monkeypatch.setattr(outages, "LONG_SECONDS", 3_600.0)


@pytest.fixture(scope="package")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AllInOne]:
    with AllInOne(tmp_path_factory.mktemp("cli") / "data", SETTINGS) as server:
        yield server


@pytest.fixture
def cli(running: AllInOne, tmp_path: Path) -> Iterator[CommandLine]:
    """The names of the streams that a test makes are free again after it: which other tests ran
    on this server is nothing that a verdict may depend on."""
    with httpx.Client(base_url=running.url) as client:
        before = _names(client)
        yield CommandLine(running.url, tmp_path)
        for name in _names(client) - before:
            client.delete(f"/v1/streams/{name}").raise_for_status()


def _names(client: httpx.Client) -> set[str]:
    listed = client.get("/v1/streams", params={"limit": 1000}).raise_for_status().json()
    assert listed["next_page_token"] is None, "more streams than one page has"
    return {item["name"] for item in listed["items"]}
