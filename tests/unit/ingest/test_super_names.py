"""Super streams by their names: asked once, remembered for a moment, asked anew when told so."""

import pytest
from support.harness import StandingClocks

from bottomless.errors import NotFound, Unavailable
from bottomless.model.names import FullName, StreamName
from bottomless.model.super_stream import SuperState
from bottomless_server.ingest.front.super_names import FRESH_SECONDS, SuperNames
from unit.ingest.harness import IngestHarness
from unit.ingest.super_streams import SUPER_ID, declare_super

EVENTS = FullName("default", StreamName("events"))


async def asking(harness: IngestHarness, time: StandingClocks) -> SuperNames:
    await declare_super(harness)
    return SuperNames(harness.manifest, time.clocks().monotonic)


async def test_a_name_is_asked_for_once_within_seconds(harness: IngestHarness) -> None:
    names = await asking(harness, harness.time)
    before = harness.manifest.questions
    for _ in range(3):
        assert (await names.find(EVENTS)).super_id == SUPER_ID
    assert harness.manifest.questions == before + 1
    harness.time.advance(int(FRESH_SECONDS * 1_000))
    assert (await names.find(EVENTS)).state is SuperState.ACTIVE
    assert harness.manifest.questions == before + 2
    names.forget(EVENTS)
    await names.find(EVENTS)
    assert harness.manifest.questions == before + 3


async def test_what_is_remembered_serves_while_manifest_is_away(harness: IngestHarness) -> None:
    names = await asking(harness, harness.time)
    await names.find(EVENTS)
    harness.manifest.is_away = True
    harness.time.advance(int(FRESH_SECONDS * 1_000))
    assert (await names.find(EVENTS)).super_id == SUPER_ID
    names.forget(EVENTS)
    with pytest.raises(Unavailable):
        await names.find(EVENTS)


async def test_a_name_of_nothing_is_not_remembered(harness: IngestHarness) -> None:
    names = SuperNames(harness.manifest, harness.time.clocks().monotonic)
    with pytest.raises(NotFound):
        await names.find(EVENTS)
    await declare_super(harness)
    assert (await names.find(EVENTS)).super_id == SUPER_ID
