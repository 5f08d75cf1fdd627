"""A server that dies while it registers, retires or gives up a drive, between any two steps of it."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import httpx
import pytest
from support.server import AllInOne
from support.waiting import until

from bottomless.formats.drive_objects import DRIVE_MARKER_KEY
from bottomless_server.runtime.base.fault_points import POINTS

REGISTERING: Final = (
    "manifest.drives.after-number",
    "manifest.drives.after-marker",
    "manifest.drives.after-use",
)
RETIRING: Final = (
    "manifest.drives.after-closing",
    "manifest.drives.before-retired",
    "manifest.drives.after-retired",
)
LOSING: Final = ("manifest.drives.after-lost",)


def test_there_is_a_journey_for_every_point_of_these_steps() -> None:
    own = {point for point in POINTS if point.startswith("manifest.drives.")}
    assert own == {*REGISTERING, *RETIRING, *LOSING}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drive-kills")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[AllInOne]:
    """One whose settings name a drive for each point."""
    drives = {
        name_of(point): {"number": number, "url": (folder / name_of(point)).as_uri()}
        for number, point in enumerate((*REGISTERING, *RETIRING, *LOSING), 1)
    }
    settings = {
        "BOTTOMLESS_DRIVES": json.dumps(drives),
        "BOTTOMLESS_FAULT_POINTS": "1",
        "BOTTOMLESS_MANIFEST_OPERATION_INTERVAL_MS": "100",
        "BOTTOMLESS_MANIFEST_OPERATION_LEASE_MS": "500",
    }
    with AllInOne(folder / "data", settings) as running:
        yield running


@pytest.fixture(autouse=True)
def alive(server: AllInOne) -> None:
    """Also where the test before this one failed."""
    if server.is_dead:
        server.wait_dead()
    server.start()


def name_of(point: str) -> str:
    return point.rpartition(".")[2]


def state(server: AllInOne, name: str) -> str:
    with server.client() as client:
        told = client.get("/v1/drives").raise_for_status().json()["items"]
    return next(str(one["state"]) for one in told if one["name"] == name)


def add(server: AllInOne, name: str) -> None:
    ask(server, "POST", "/v1/admin/drives", {"name": name})


def ask(server: AllInOne, method: str, path: str, body: dict[str, str] | None = None) -> None:
    """Ask until it is answered otherwise than 503, which a busy machine may have for a while."""

    def asked() -> httpx.Response | None:
        with server.client() as client:
            answer = client.request(method, path, json=body)
        return None if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE else answer

    until(asked, what="an answer other than 503").raise_for_status()


@pytest.mark.parametrize("point", REGISTERING)
def test_a_registration_that_died_is_gone_on_with_by_the_same_request(
    server: AllInOne, point: str
) -> None:
    name = name_of(point)
    server.arm(point)
    with pytest.raises(httpx.TransportError):
        add(server, name)
    server.revive()

    assert state(server, name) == ("used" if point.endswith("after-use") else "retired")
    add(server, name)
    assert state(server, name) == "used"


@pytest.mark.parametrize("point", RETIRING)
def test_a_retirement_that_died_is_finished_after_the_restart(server: AllInOne, point: str) -> None:
    name = name_of(point)
    add(server, name)
    server.arm(point)
    # It may die before the answer, or after it.
    with suppress(httpx.TransportError):
        ask(server, "DELETE", f"/v1/admin/drives/{name}")
    server.revive()

    until(lambda: state(server, name) == "retired", what="the drive retired")
    add(server, name)
    assert state(server, name) == "used"


@pytest.mark.parametrize("point", LOSING)
def test_a_drive_stays_lost_whose_loss_died_and_the_loss_is_finished(
    server: AllInOne, point: str, folder: Path
) -> None:
    name = name_of(point)
    add(server, name)
    (folder / name / DRIVE_MARKER_KEY).unlink()
    server.arm(point)
    with suppress(httpx.TransportError):
        ask(server, "POST", f"/v1/admin/drives/{name}/lost", {"confirm": name})
    server.revive()

    assert state(server, name) == "lost"
    ask(server, "POST", f"/v1/admin/drives/{name}/lost", {"confirm": name})
    with server.client() as client:
        answer = client.post("/v1/admin/drives", json={"name": name})
    assert answer.status_code == httpx.codes.CONFLICT
