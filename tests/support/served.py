"""One all-in-one for a module of scenarios, and what was promised to all who asked it.

A module says its settings as `SETTINGS`. When its last scenario is over, everything is read
again and compared with what was acknowledged (support.promises).
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import httpx
import pytest

from support.contract import Stream, new_stream
from support.ports import lasting_ports
from support.promises import Promises
from support.server import AllInOne

PATIENT: Final = {
    "BOTTOMLESS_INGEST_LEASE_MS": "60000",
    "BOTTOMLESS_INGEST_FORWARD_MS": "60000",
    "BOTTOMLESS_QUEUES_LEASE_MS": "50000",
    "BOTTOMLESS_QUEUES_FORWARD_MS": "60000",
    "BOTTOMLESS_READER_FILTER_SCAN_MS": "30000",
}
"""A machine that does other things too may be late with renewals, and slow with a page that has a
filter; that is not what scenarios show."""


class Served(AllInOne):
    """It remembers what its clients were told, over all its deaths."""

    def __init__(self, data_dir: Path, settings: Mapping[str, str], port: int) -> None:
        super().__init__(data_dir, {**PATIENT, **settings}, port)
        self.promises = Promises()

    def client(self) -> httpx.Client:
        connected = super().client()
        connected.event_hooks["response"].append(self.promises.note)
        return connected

    def holds(self, settings: Mapping[str, str]) -> bool:
        return settings.items() <= self._settings.items()

    def restart(self, settings: Mapping[str, str] | None = None) -> None:
        """Power off, power on, with further settings if there are any: caches are empty."""
        self.kill()
        self._settings |= settings or {}
        self.start()


@pytest.fixture(scope="module")
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """With the settings of its module; the url stays when a scenario restarts it."""
    settings = getattr(request.module, "SETTINGS", {})
    data_dir = tmp_path_factory.mktemp("served") / "data"
    with Served(data_dir, settings, *lasting_ports(1)) as server:
        yield server
        with server.client() as connected:
            server.promises.check(connected, server.stored)


@pytest.fixture(scope="module")
def client(running: Served) -> Iterator[httpx.Client]:
    with running.client() as connected:
        yield connected


@pytest.fixture
def stream(client: httpx.Client) -> Stream:
    """A stream of its own, with defaults, so that scenarios can share a server."""
    return new_stream(client)
