"""Super streams by their names: asked once, remembered for a moment, asked anew when told so."""

from dataclasses import replace
from functools import partial

import pytest
from support.guards import remove
from support.harness import StandingClocks

from bottomless.errors import NotFound, Unavailable
from bottomless.model.names import FullName, StreamId, StreamName, SuperId
from bottomless.model.stream import PartitionOf, StreamState
from bottomless.model.super_stream import SuperState
from bottomless_server.coordination.base import Changes
from bottomless_server.ingest.front.super_names import FRESH_SECONDS, SuperNames
from bottomless_server.stores.supers import room_for_partitions, super_named
from unit.ingest.harness import IngestHarness
from unit.ingest.super_streams import (
    SUPER_ID,
    TEN,
    a_partition,
    all_values,
    an_id,
    declare_super,
    send,
)

EVENTS = FullName("default", StreamName("events"))


async def asking(harness: IngestHarness, time: StandingClocks) -> SuperNames:
    await declare_super(harness)
    return SuperNames(
        harness.manifest, time.clocks().monotonic, partial(super_named, harness.coordination)
    )


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
    names = SuperNames(
        harness.manifest,
        harness.time.clocks().monotonic,
        partial(super_named, harness.coordination),
    )
    with pytest.raises(NotFound):
        await names.find(EVENTS)
    await declare_super(harness)
    assert (await names.find(EVENTS)).super_id == SUPER_ID


async def made_anew(harness: IngestHarness) -> None:
    """The super stream is deleted, and another one gets its name and those of its partitions."""
    record = await harness.supers.load(SUPER_ID)
    await harness.supers.bury(
        SUPER_ID, lambda one: replace(one, state=SuperState.DELETING), Changes()
    )
    for place in record.partitions:
        await harness.streams.bury(
            place.stream_id,
            FullName(record.tenant, place.name),
            lambda one: replace(one, state=StreamState.DELETING, epoch=one.epoch + 1),
            Changes(),
        )
    anew = replace(
        record,
        super_id=SuperId(SUPER_ID[:-2] + "aa"),
        partitions=tuple(
            replace(place, stream_id=StreamId(place.stream_id[:-4] + f"ff{place.index:02x}"))
            for place in record.partitions
        ),
    )
    partitions = [
        replace(a_partition(place), partition_of=PartitionOf(anew.super_id, place.index))
        for place in anew.partitions
    ]
    await harness.supers.create(anew, partitions, room_for_partitions(partitions, 1_000))


@pytest.mark.parametrize("guarded", [True, False])
async def test_nothing_is_taken_for_a_super_stream_whose_name_is_anothers(
    guarded: bool, harness: IngestHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that manifest does not reach acknowledged records to partitions of one that was deleted, for as
    long as that lasted; whoever sent them had created another one of the name."""

    async def yes(*_: object) -> bool:
        return True

    if not guarded:
        remove(monkeypatch, "the name of a super stream while manifest does not answer", yes)
    await declare_super(harness)
    assert (await send(harness, TEN)).status_code == 200
    before = await all_values(harness)
    harness.manifest.is_away = True
    await made_anew(harness)
    harness.time.advance(int(FRESH_SECONDS * 1_000))

    answer = await send(harness, TEN)

    if not guarded:
        assert answer.status_code == 200
        return
    assert (answer.status_code, answer.json()["outcome"]) == (503, "none")
    assert await all_values(harness) == before


@pytest.mark.parametrize("numbered", [True, False])
async def test_who_is_late_to_hear_of_another_one_says_send_it_again(
    numbered: bool, harness: IngestHarness
) -> None:
    """It said that there is no super stream of the name, which had just been created."""
    await declare_super(harness)
    assert (await send(harness, TEN)).status_code == 200
    for index in range(3):
        await harness.service.streams.close(an_id(index))
    await made_anew(harness)
    headers = {"producer_id": "p", "producer_seq": 0} if numbered else {}

    first, second = [await send(harness, TEN, **headers) for _ in range(2)]

    assert (first.status_code, first.json()["outcome"]) == (503, "none")
    assert second.status_code == 200
