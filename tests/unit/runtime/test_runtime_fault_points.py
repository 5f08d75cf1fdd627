"""Fault points: nothing unless armed, once at the n-th time, and only where a setting allows it."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.asgi import client_of
from support.manifest import ManifestHarness

from bottomless_server.manifest.app import ManifestService
from bottomless_server.runtime.base.fault_points import POINTS, FaultAction, arm, disarm_all, reach
from bottomless_server.runtime.http.app import wrap

SERVICES = Path(__file__).parents[3] / "services"
POINT = "manifest.publish.before-exec"
PATH = "/internal/v1/fault-points"


@pytest.fixture(autouse=True)
def calm() -> Iterator[None]:
    yield
    disarm_all()


def test_every_point_is_passed_somewhere_and_no_other() -> None:
    passed = re.compile(r'await reach\("([a-z.-]+)"\)')
    found = {name for file in SERVICES.rglob("*.py") for name in passed.findall(file.read_text())}
    assert found == POINTS


async def test_an_armed_point_acts_at_its_count_and_once() -> None:
    arm(POINT, FaultAction.STALL, 2)

    await reach("manifest.publish.after-exec")
    await reach(POINT)
    stalled = asyncio.create_task(reach(POINT))
    await asyncio.sleep(0)
    await reach(POINT)

    assert not stalled.done()
    stalled.cancel()


@pytest.mark.parametrize("enabled", [True, False])
async def test_arming_is_served_only_where_the_setting_says_so(enabled: bool) -> None:
    service = ManifestService(ManifestHarness(fault_points=enabled).context)
    async with client_of(wrap(service.internal)) as client:
        armed = await client.post(PATH, json={"name": POINT, "action": "stall"})
        unknown = await client.post(PATH, json={"name": "nowhere", "action": "exit"})

    assert (armed.status_code, unknown.status_code) == ((200, 422) if enabled else (404, 404))
    stalled = asyncio.create_task(reach(POINT))
    await asyncio.sleep(0)
    assert stalled.done() is not enabled
    stalled.cancel()
