"""The service of ingest as a whole: made without a touch of the disk, and started once."""

from pathlib import Path

import pytest

from bottomless_server.ingest.app import create_service
from bottomless_server.ingest.settings import IngestSettings
from bottomless_server.runtime.base.cannot_start import CannotStart
from bottomless_server.stores.ingest_nodes import live_nodes
from unit.ingest.harness import INTERNAL, ROUTE, STREAM, IngestHarness, problem


async def test_a_service_that_is_made_and_not_started_has_touched_nothing(tmp_path: Path) -> None:
    harness = await IngestHarness(tmp_path / "node").declare()

    refused = await harness.client.post(ROUTE, json={"records": [{"value": "x"}]})
    assert problem(refused) == (503, "draining")
    early = await harness.internal.get(f"{INTERNAL}/chunks", params={"first_offset": 0})
    assert early.status_code == 503
    assert await harness.service.report() == {}
    gauges = {
        metric.name: metric.samples[0].value
        for metric in harness.service.metrics()
        if metric.samples
    }
    assert gauges["bottomless_ingest_in_flight_bytes"] == 0
    assert gauges["bottomless_ingest_open_streams"] == 0
    await harness.service.drain()
    await harness.aclose()
    assert not harness.data_dir.exists()
    assert not harness.files.calls
    assert (await harness.record()).home is None
    assert await live_nodes(harness.coordination) == []


async def test_a_directory_that_another_process_has_is_left_to_it(tmp_path: Path) -> None:
    harness = await (await IngestHarness(tmp_path / "node").declare()).start()
    await harness.append("x")
    second = IngestHarness(tmp_path / "node", before=harness)
    with pytest.raises(CannotStart):
        await second.start()
    await second.aclose()

    assert harness.lease.is_live()
    assert (await harness.append("y")).json()["first_offset"] == 1
    assert harness.service.streams.in_use(STREAM)
    await harness.aclose()
    after = await IngestHarness(tmp_path / "node", before=harness).start()
    assert await after.values() == [b"x", b"y"]
    await after.aclose()


def test_a_service_without_an_address_or_a_manifest_is_not_made(tmp_path: Path) -> None:
    harness = IngestHarness(tmp_path / "node")
    here, there = "unix:///here.sock", "unix:///there.sock"
    for ingest_url, manifest_url in ((here, None), (None, there)):
        settings = IngestSettings(
            data_dir=tmp_path / "node", ingest_url=ingest_url, manifest_url=manifest_url
        )
        with pytest.raises(CannotStart):
            create_service(settings, harness.coordination)
