"""Readers of leaderless streams, while writers, manifests, uploaders and vacuums go on.

Before each question of a reader anything may happen: what it was told a moment ago is pruned, its
objects are released and deleted, its stream is fenced or deleted. It never gets a record of another
offset, and nothing that was committed is ever missing.
"""

import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from random import Random
from typing import Any

import pytest
from support.guards import remove
from support.leaderless import at_once
from support.peers import SilentPeer

from bottomless.errors import NotFound
from bottomless.formats.batch import decode_frames
from bottomless.formats.checks import crc32c
from bottomless.formats.chunk import batches_of, split_chunks
from bottomless.formats.keys import GENERATION_KEY
from bottomless.model.names import FullName, StreamId, StreamName
from bottomless.model.object_facts import ObjectFacts
from bottomless_server.core.not_found import stream_not_found
from bottomless_server.leaderless.tail import first_epoch
from bottomless_server.reader.blocks import Blocks
from bottomless_server.reader.cache import SharedCache
from bottomless_server.reader.leaderless.entry_chunks import EntryChunks
from bottomless_server.reader.leaderless.tail_poll import TailPoll
from bottomless_server.reader.leaderless.tail_records import TailRecords
from bottomless_server.reader.leaderless.wal_nodes import WalNodes
from bottomless_server.reader.leaderless.wal_tail import WalTail
from bottomless_server.reader.streams import StreamFacts
from bottomless_server.reader.tail import TailAnswer
from bottomless_server.stores.generation import encode_generation
from model.leaderless import GENERATION, World, value_of

EPOCH = first_epoch(GENERATION)


class Busy:
    """A world that goes on before each answer to a reader; of stores it has what a reader asks."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.random = Random(world.random.random())

    def goes_on(self) -> None:
        # What lists keys in that world is no work of the loop, which would end it in its own way.
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(None, None)
        try:
            self.world.run(self.random.randrange(4, 60))
        finally:
            sys.set_asyncgen_hooks(*hooks)


class BusyCoordination(Busy):
    async def get_many(self, redis_keys: Sequence[str]) -> list[bytes | None]:
        self.goes_on()
        return [self.world.coordination.peek(key) for key in redis_keys]

    async def members(self, redis_key: str, after: bytes, limit: int) -> list[bytes]:
        self.goes_on()
        members = self.world.coordination.peek_members(redis_key)
        return sorted(one for one in members if one > after)[:limit]


class BusyDrive(Busy):
    async def get(self, object_key: str, start: int = 0, size: int | None = None) -> bytes:
        self.goes_on()
        return await self.world.drive.get(object_key, start, size)

    async def list(self, prefix: str = "", after: str = "") -> AsyncIterator[ObjectFacts]:
        async for facts in self.world.drive.list(prefix, after):
            yield facts


class Manifest(Busy):
    """What manifest says of roots, as far as it matters here: whether there is such a stream."""

    async def refreshed(self, stream_id: StreamId) -> None:
        if stream_id not in self.world.active:
            raise stream_not_found()


class Reading:
    """A reader in a busy world, and what it has got."""

    def __init__(self, world: World) -> None:
        self.world = world
        coordination: Any = BusyCoordination(world)
        drive: Any = BusyDrive(world)
        manifest: Any = Manifest(world)
        peers: Any = SilentPeer()
        data = encode_generation(GENERATION)
        at_once(world.drive.put(GENERATION_KEY, [data], crc32c(data)))
        records = TailRecords(coordination, drive)
        # Nothing is kept, so that what is deleted is missed.
        blocks = Blocks(drive, SharedCache(0), 4096, 16)
        chunks = EntryChunks(blocks, WalNodes(coordination, peers, 0))
        self.tail = WalTail(coordination, records, TailPoll(records, 1), chunks, manifest)
        self.random = Random(world.random.random())
        self.got: Counter[str] = Counter()
        self.begins = manifest.goes_on

    async def read(self) -> None:
        """Read from somewhere in some stream, and compare."""
        stream_id = self.random.choice(self.world.active)
        facts = StreamFacts(stream_id, FullName("t", StreamName("s")), EPOCH, None, "leaderless")
        try:
            bounds = await self.tail.bounds(facts)
            low, high = max(bounds.local_first_offset - 2, 0), bounds.committed_next + 2
            offset = self.random.randrange(low, high)
            size = self.random.choice([1, 1_000])
            self.check(stream_id, offset, await self.tail.chunks(facts, offset, size))
        except NotFound:
            assert stream_id not in self.world.active, "it was never deleted"
            self.got["gone"] += 1

    def check(self, stream_id: StreamId, offset: int, answer: TailAnswer) -> None:
        bounds = answer.bounds
        if answer.moved:
            assert offset < bounds.local_first_offset <= bounds.published_next
            self.got["moved"] += 1
        elif not answer.data:
            assert offset >= bounds.committed_next
            self.got["end"] += 1
        else:
            assert answer.first_offset <= offset < answer.next_offset <= bounds.committed_next
            position = answer.first_offset
            for header, chunk in split_chunks(answer.data):
                assert (header.first_offset, header.epoch) == (position, EPOCH)
                [batch] = decode_frames(batches_of(header, chunk))
                number = self.world.invariants.append_at(stream_id, position)
                assert batch.column("value")[0].as_py() == value_of(number)
                position = header.next_offset
            assert position == answer.next_offset
            self.got["records"] += 1


async def read(seed: int, count: int) -> Counter[str]:
    world = World(seed)
    reading = Reading(world)
    try:
        reading.begins()
        for _ in range(count):
            await reading.read()
    finally:
        world.close()
    return reading.got


async def test_whatever_happens_between_two_questions_a_reader_gets_what_is_there() -> None:
    got: Counter[str] = Counter()
    for seed in range(4):
        got += await read(seed, 100)
    assert all(got[name] > 5 for name in ("records", "moved", "end")), got


async def test_a_reader_that_looks_once_is_told_of_what_is_only_pruned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the world would go on too slowly to show anything."""

    async def one_look(_: Any, __: Any, tail: Any, look: Any, ___: int) -> Any:
        answer = await look(tail)
        assert answer is not None, "what it wants is gone"
        return answer

    remove(monkeypatch, "another look at the tail where an entry or its object is gone", one_look)
    with pytest.raises((AssertionError, NotFound)):
        await test_whatever_happens_between_two_questions_a_reader_gets_what_is_there()
