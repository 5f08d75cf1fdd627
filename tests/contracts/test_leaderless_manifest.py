"""What the manifest does for leaderless streams, on a Valkey and in a directory of objects.

The stores of its unit tests are dicts in memory, whose lists and queues could be kinder than real ones.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.leaderless import SERVED, WalWriter, a_leaderless_stream, publish_all, tail_of
from support.manifest import STREAM, ManifestHarness, from_the_first_start
from support.rebuilding import put, put_registry, rebuild
from unit.manifest.test_garbage import collect
from unit.stores.test_tails import KEY, LOADER, TRACKED

from bottomless.formats.keys import generation_key, wal_key
from bottomless.model.stream import StreamRecord, StreamState
from bottomless_server.coordination.base import Changes, Coordination
from bottomless_server.drives.local import LocalDrive
from bottomless_server.leaderless.decided import NewKnown
from bottomless_server.manifest.common.context import Context, now_ms
from bottomless_server.manifest.leaderless.upkeep import LeaderlessUpkeep
from bottomless_server.manifest.leaderless.wal_report import describe_wal
from bottomless_server.manifest.settings import ManifestSettings
from bottomless_server.stores import tails, wal
from bottomless_server.stores.generation import check_generation
from bottomless_server.stores.streams import GENERATION_KEY, Streams
from contracts.conftest import Shared

pytestmark = pytest.mark.parametrize("shared", ["redis"], indirect=True)


def _deleting(record: StreamRecord) -> StreamRecord:
    return replace(record, state=StreamState.DELETING, version=record.version + 1)


class OtherStores(ManifestHarness):
    """A manifest in memory, on stores that are not."""

    def __init__(self, coordination: Coordination, directory: Path) -> None:
        super().__init__(SERVED)
        drive = LocalDrive(directory)
        stores: Any = {"coordination": coordination, "drive": drive}
        self.__dict__.update(stores)
        self.clock.now = now_ms()
        self.streams = Streams(coordination, SERVED)
        self.context = from_the_first_start(
            Context(
                settings=ManifestSettings(manifest_rebuild_wal_wait_ms=0),
                drive=drive,
                coordination=coordination,
                streams=self.streams,
                owners=self.owners,
                clock=now_ms,
            )
        )


@pytest.fixture
async def harness(shared: Shared, tmp_path: Path) -> OtherStores:
    made = OtherStores(shared.coordination, tmp_path / "store")
    made.streams.generation = await check_generation(made.drive, made.coordination)
    return made


async def test_objects_and_names_go_when_their_time_has_come(harness: OtherStores) -> None:
    record = await a_leaderless_stream(harness)
    writer = WalWriter(harness)
    await writer.begin()
    known = {LOADER: NewKnown([TRACKED], 1_000), KEY: NewKnown([TRACKED], 900)}
    for _ in range(5):
        await writer.commit(await writer.put(STREAM), known)
    first = bytes(await harness.drive.get(wal_key(writer.instance, 0)))
    await publish_all(harness)
    await writer.release()
    await writer.flush(STREAM)

    assert await LeaderlessUpkeep(harness.context).make_pass()

    assert await writer.objects() == [5]
    tail = await tail_of(harness)
    assert (tail.producer_count, tail.key_count, tail.entry_count) == (0, 0, 1)
    (instance,) = (await describe_wal(harness.context))["instances"]
    assert (instance["deleted"], instance["held"]["sequence"]) == (5, 5)

    await put(harness, wal_key(writer.instance, 0), first)
    assert (await collect(harness))["orphans"]["wal"]["objects"] == 1
    assert await writer.objects() == [5]

    name = record.full_name
    streams = harness.streams
    await tails.close(streams, STREAM, name, 0, _deleting, Changes())
    while await tails.clear_page(harness.coordination, STREAM, 0, 2):
        pass
    await writer.release()
    await writer.lapse()
    await LeaderlessUpkeep(harness.context).make_pass()
    assert await writer.objects() == []
    assert await wal.load_instances(harness.coordination) == {}


async def test_a_rebuild_over_what_is_left_brings_back_what_was_noted(
    harness: OtherStores,
) -> None:
    await put_registry(harness, await a_leaderless_stream(harness))
    writer = WalWriter(harness)
    await writer.begin()
    for _ in range(3):
        await writer.flush(STREAM)
    await writer.put()
    # The bucket is of a later generation than the store: an old backup was restored.
    await put(harness, generation_key(1), b'{"generation":1}')
    assert await harness.coordination.get(GENERATION_KEY) is not None

    await rebuild(harness)

    # Nothing of generation 1 had been written; what was of generation 0 is decided.
    assert (await tail_of(harness)).generation == 2
    assert (await tail_of(harness)).entry_count == 0
    assert await LeaderlessUpkeep(harness.context).make_pass()
    assert await writer.objects() == []
