"""A rebuild meets WAL objects, or a manifest, that nobody can read: no offset is used twice."""

from dataclasses import replace

import pytest
from support.guards import remove
from support.leaderless import OTHER_INSTANCE, tail_of
from support.manifest import STREAM, ManifestHarness
from support.object_keys import fragment_key
from support.rebuilding import a_step, rebuild
from unit.manifest.test_rebuild_wal import (
    a_writer,
    found,
    publish_first,
    with_two_flushes,
)

from bottomless.errors import Corrupt
from bottomless.formats.keys import root_prefix, wal_key
from bottomless.model.stream import StreamRecord
from bottomless_server.leaderless.noted import UNDECIDED_COUNT
from bottomless_server.leaderless.tail import TailState
from bottomless_server.manifest.recovery.rebuilt_wal import RebuiltWal
from bottomless_server.manifest.tree.resolver import load_root
from bottomless_server.stores import tails


async def offset_after_damage(sequence: int) -> int:
    """Records 0 to 19 were acknowledged; the first offset after a rebuild that cannot read an object."""
    harness, writer = await with_two_flushes()
    harness.drive.flip(wal_key(writer.instance, sequence), 140)
    harness.coordination.lose()
    await rebuild(harness)
    return (await tail_of(harness)).next_offset


@pytest.mark.parametrize("sequence", [0, 1, 2])
async def test_whatever_cannot_be_read_no_offset_is_used_twice(sequence: int) -> None:
    assert await offset_after_damage(sequence) >= 20


async def test_without_its_guard_an_object_that_cannot_be_read_costs_offsets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guard = "an object that cannot be read, taken for one of every stream"
    remove(monkeypatch, guard, lambda found, stream_id: stream_id in found.undecided)
    assert await offset_after_damage(1) < 20


@pytest.mark.parametrize("of_a_piece", [False, True])
async def test_what_is_damaged_on_its_way_is_read_once_more(
    of_a_piece: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness, writer = await with_two_flushes()
    get, key = harness.drive.get, wal_key(writer.instance, 1)
    damaged: list[str] = []

    async def flipping(object_key: str, start: int = 0, size: int | None = None) -> memoryview:
        data = bytearray(await get(object_key, start, size))
        if object_key == key and bool(start) is of_a_piece and not damaged:
            damaged.append(object_key)
            data[-9] ^= 1
        return memoryview(bytes(data))

    monkeypatch.setattr(harness.drive, "get", flipping)
    harness.coordination.lose()
    result = await rebuild(harness)

    assert damaged == [key]
    assert (result["damaged_streams"], await found(harness)) == (0, [("leaf", 0, 20)])


async def without_its_manifest() -> ManifestHarness:
    """A stream of 20 records, of which the manifest and a fragment are gone, after a rebuild."""
    harness, _ = await with_two_flushes()
    await publish_first(harness)
    (leaf,) = await harness.leaves()
    async for facts in harness.drive.list(root_prefix(STREAM, "default")):
        harness.drive.damage(facts.object_key, b"damaged")
    await harness.drive.delete([fragment_key(STREAM, 0, leaf.uid)])
    harness.coordination.lose()
    result = await rebuild(harness)
    assert result["unreadable"] == ["orders"]
    return harness


async def test_a_stream_whose_manifest_is_lost_takes_no_appends() -> None:
    """Nobody knows which of its offsets are used."""
    harness = await without_its_manifest()

    tail = await tail_of(harness)
    assert tail.state is TailState.FENCED
    with pytest.raises(Corrupt):
        await load_root(harness.context, await harness.record())
    # So readers ask the manifest, and nobody takes the stream for empty.
    assert tail.next_offset == tail.pruned_next == 20 + UNDECIDED_COUNT


async def first_offset_once_unfenced() -> int:
    harness = await without_its_manifest()

    def unfenced(record: StreamRecord) -> StreamRecord:
        return replace(record, config=record.config.model_copy(update={"fenced": False}))

    await tails.configure(harness.coordination, STREAM, 1, unfenced)
    writer = await a_writer(harness, OTHER_INSTANCE)
    await writer.flush(STREAM, count=5)
    return (await tail_of(harness)).next_offset - 10


async def test_who_lifts_its_fence_uses_no_offset_twice() -> None:
    assert await first_offset_once_unfenced() >= 20


async def test_without_its_guard_it_begins_at_the_first_offset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guard = "the end of a leaderless stream whose manifest is lost"
    remove(monkeypatch, guard, lambda record, _: record)
    assert await first_offset_once_unfenced() == 0


async def test_an_attempt_after_one_that_failed_looks_at_the_objects_anew() -> None:
    harness, writer = await with_two_flushes()
    await writer.flush(STREAM)
    step, found_by = await a_step(harness.coordination, 1), RebuiltWal(harness.context)
    await found_by.look(step)
    assert (await found_by.found(step)).noted_next(STREAM) == 20

    # A note that took its time.
    await writer.put()
    await found_by.look(step)
    assert (await found_by.found(step)).noted_next(STREAM) == 22
