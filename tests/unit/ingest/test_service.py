"""The service of ingest as a whole: made without a touch of the disk, and started once."""

from pathlib import Path

import pytest

from bottomless_server.ingest.app import create_service
from bottomless_server.ingest.settings import IngestSettings
from bottomless_server.runtime.base.cannot_start import CannotStart
from bottomless_server.stores.ingest_nodes import live_nodes
from unit.ingest.house import INTERNAL, ROUTE, STREAM, House, problem


async def test_a_service_that_is_made_and_not_started_has_touched_nothing(tmp_path: Path) -> None:
    house = await House(tmp_path / "node").declare()

    refused = await house.client.post(ROUTE, json={"records": [{"value": "x"}]})
    assert problem(refused) == (503, "draining")
    early = await house.internal.get(f"{INTERNAL}/chunks", params={"first_offset": 0})
    assert early.status_code == 503
    assert await house.service.report() == {}
    gauges = {metric.name: metric.samples[0].value for metric in house.service.metrics()}
    assert gauges["bottomless_ingest_in_flight_bytes"] == 0
    assert gauges["bottomless_ingest_open_streams"] == 0
    await house.service.drain()
    await house.aclose()
    assert not house.data_dir.exists()
    assert not house.files.calls
    assert (await house.record()).home is None
    assert await live_nodes(house.coordination) == []


async def test_a_directory_that_another_process_has_is_left_to_it(tmp_path: Path) -> None:
    house = await (await House(tmp_path / "node").declare()).start()
    await house.append("x")
    second = House(tmp_path / "node", before=house)
    with pytest.raises(CannotStart):
        await second.start()
    await second.aclose()

    assert house.lease.is_live()
    assert (await house.append("y")).json()["first_offset"] == 1
    assert house.service.streams.in_use(STREAM)
    await house.aclose()
    after = await House(tmp_path / "node", before=house).start()
    assert await after.values() == [b"x", b"y"]
    await after.aclose()


def test_a_service_without_an_address_or_a_manifest_is_not_made(tmp_path: Path) -> None:
    house = House(tmp_path / "node")
    here, there = "unix:///here.sock", "unix:///there.sock"
    for ingest_url, manifest_url in ((here, None), (None, there)):
        settings = IngestSettings(
            data_dir=tmp_path / "node", ingest_url=ingest_url, manifest_url=manifest_url
        )
        with pytest.raises(CannotStart):
            create_service(settings, house.coordination)
