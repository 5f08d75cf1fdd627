"""A rebuild brings back what leaderless streams knew of producers and keys."""

import pytest
from support.guards import remove
from support.leaderless import (
    OTHER_INSTANCE,
    a_leaderless_harness,
    a_leaderless_record,
    tail_of,
)
from support.manifest import STREAM, ManifestHarness
from support.object_keys import fragment_key
from support.rebuilding import rebuild
from unit.formats.examples import a_chunk, a_frame
from unit.manifest.test_rebuild_wal import WEEK_MS, a_stream, a_writer
from unit.stores.test_tails import TRACKED

from bottomless.formats.fragment import pack_fragment
from bottomless.formats.tracking import seal_tracking
from bottomless.model.chunk import AppendEntry, AppendMode, TrackedEntry
from bottomless.model.wal import Piece
from bottomless_server.leaderless.decided import KnownName
from bottomless_server.leaderless.tail import first_epoch
from bottomless_server.leaderless.tail_format import decode_known
from bottomless_server.manifest.mutators.mutator import Mutators
from bottomless_server.manifest.recovery import wal_producers
from bottomless_server.stores.tail_keys import SILENT_KEY, known_key


def from_a_producer(number: int, key: bytes | None = None) -> Piece:
    """A strict append of two records, or one with a key."""
    entry = AppendEntry(AppendMode.KEY, 0, 2, 7, idempotency_hash=key, body_hash=b"h" * 16)
    if key is None:
        entry = AppendEntry(AppendMode.STRICT, 0, 2, 7, number, 1, producer_id="loader-7")
    return Piece(STREAM, [a_chunk(0, entries=[entry], timestamp=0, epoch=0)], 2, 1, 1)


async def known_of(harness: ManifestHarness, name: KnownName) -> list[TrackedEntry]:
    value = harness.coordination.peek(known_key(STREAM, name))
    return [] if value is None else decode_known(value).entries


async def test_producers_and_keys_come_back_from_fragments_and_from_wal_objects() -> None:
    """L32: a repeat is recognised, and the next number goes on."""
    harness = await a_leaderless_harness()
    await a_stream(harness)
    writer = await a_writer(harness)
    for number in (0, 2):
        await writer.commit(await writer.put_pieces([from_a_producer(number)]))
    await writer.put()
    harness.coordination.lose()
    await rebuild(harness)
    # In a fragment now, which the second rebuild finds in the manifest.
    other = await a_writer(harness, OTHER_INSTANCE)
    await other.commit(await other.put_pieces([from_a_producer(4), from_a_producer(0, b"k" * 16)]))
    await other.put()
    harness.coordination.lose()
    await rebuild(harness)

    producer, *appends = await known_of(harness, KnownName("loader-7", is_producer=True))
    assert (producer.sequence, producer.producer_epoch) == (5, 1)
    assert [(one.sequence, one.first_offset) for one in appends] == [(0, 0), (2, 2), (4, 4)]
    (use,) = await known_of(harness, KnownName((b"k" * 16).hex(), is_producer=False))
    assert use.first_offset == 6
    tail = await tail_of(harness)
    assert (tail.producer_count, tail.key_count) == (1, 1)
    dues = await harness.coordination.due(SILENT_KEY, 2**52, 10)
    assert [due.due_at - tail.last_timestamp for due in dues] == [3_600_000, WEEK_MS]


async def test_the_newest_fragments_are_read_up_to_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = await a_leaderless_harness()
    config = a_leaderless_record().config
    small = config.fragment.model_copy(update={"target_bytes": 65_536})
    await a_stream(harness, config=config.model_copy(update={"fragment": small}))
    writer = await a_writer(harness)
    values = (b"x" * 40_000, b"y" * 40_000)
    for number in range(4):
        entry = AppendEntry(AppendMode.STRICT, 0, 2, 7, 0, 1, producer_id=f"loader-{number}")
        chunk = a_chunk(0, frames=[a_frame(values)], entries=[entry], timestamp=0, epoch=0)
        await writer.commit(await writer.put_pieces([Piece(STREAM, [chunk], 2, 1, 1)]))
    await writer.put()
    monkeypatch.setattr(wal_producers, "READ_BYTES_MAX", 100_000)
    harness.coordination.lose()

    await rebuild(harness)

    known = [await known_of(harness, KnownName(f"loader-{n}", is_producer=True)) for n in range(4)]
    assert [bool(one) for one in known] == [False, False, True, True]


async def producer_after_a_rebuild() -> TrackedEntry:
    """A tracking chunk at offset 2 knows of epoch 5; an append of epoch 1 follows it."""
    harness = await a_leaderless_harness()
    await a_stream(harness)
    writer = await a_writer(harness)
    for number in (0, 2):
        await writer.commit(await writer.put_pieces([from_a_producer(number)]))
    await writer.put()
    mutators = Mutators(harness.context)
    mutator = mutators.of(STREAM)
    await mutator.begin("s1")
    (uid,) = (await mutator.intend("s1", [0])).uids
    said = TRACKED._replace(producer_epoch=5, producer_id="loader-7")
    epoch = first_epoch(0)
    chunks = [
        a_chunk(0, timestamp=1_000_000, epoch=epoch),
        *seal_tracking([said], first_offset=2, timestamp=1_000_000, epoch=epoch),
    ]
    packed = pack_fragment(STREAM, uid, [b"".join(chunks)])
    data = b"".join(packed.parts)
    await harness.drive.put(fragment_key(STREAM, 0, uid), [data], packed.info.crc)
    await mutator.register("s1", [packed.info])
    await mutator.flush()
    await mutators.aclose()
    harness.coordination.lose()
    await rebuild(harness)
    producer, *_ = await known_of(harness, KnownName("loader-7", is_producer=True))
    return producer


async def test_a_tracking_chunk_says_everything_and_no_epoch_goes_back() -> None:
    producer = await producer_after_a_rebuild()
    # The append that follows it counts: its numbers are not stored once more.
    assert (producer.producer_epoch, producer.sequence, producer.epoch_sequence) == (5, 3, 4)


async def test_without_its_guard_an_epoch_is_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    guard = "the epoch of a producer, which nothing that is restored lowers"
    remove(monkeypatch, guard, lambda producer, _: producer)
    assert (await producer_after_a_rebuild()).producer_epoch == 1
