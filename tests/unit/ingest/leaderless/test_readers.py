"""What writers of leaderless streams commit, as readers apart from them get it, on a clock that jumps."""

import asyncio
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import pytest
from support.peers import SilentPeer

from bottomless.errors import Code, NotFound, Unavailable
from bottomless.formats.batch import decode_frames
from bottomless.formats.chunk import batches_of, split_chunks
from bottomless.model.limits import KIB, MIB
from bottomless.model.names import FullName, StreamName
from bottomless_server.ingest.producers.producers import Appended
from bottomless_server.protocol.peer import Params, PeerBytes
from bottomless_server.protocol.wal import (
    WAL_BYTES,
    decode_wal_bytes_asked,
    instance_in,
    sequence_in,
)
from bottomless_server.reader.blocks import Blocks
from bottomless_server.reader.cache import SharedCache
from bottomless_server.reader.leaderless.entry_chunks import EntryChunks
from bottomless_server.reader.leaderless.tail_poll import TailPoll
from bottomless_server.reader.leaderless.tail_records import TailRecords
from bottomless_server.reader.leaderless.wal_nodes import WalNodes
from bottomless_server.reader.leaderless.wal_tail import WalTail
from bottomless_server.reader.streams import StreamFacts
from bottomless_server.reader.tail import TailAnswer
from unit.ingest.leaderless.harness import Stores, WriterProcess, a_house
from unit.ingest.leaderless.making import IDS, an_append

WAKE_SECONDS: Final = 0.15
"""L13: within so long after an append was answered whoever waits has it."""
POLL_MS: Final = 50


@dataclass
class Nodes(SilentPeer):
    """Ingest nodes that give out what their writers still have."""

    writers: dict[str, WriterProcess]
    url: str = ""
    given: int = 0

    def at(self, url: str) -> "Nodes":
        self.url = url
        return self

    async def fetch(self, path: str, /, *, params: Params | None = None, **_: Any) -> PeerBytes:
        names, parts = WAL_BYTES.split("/"), path.split("/")
        found = {name.strip("{}"): part for name, part in zip(names, parts, strict=True)}
        asked = decode_wal_bytes_asked(params or {})
        writer = self.writers.get(self.url)
        if writer is None or not writer.process.alive:
            raise Unavailable("the node does not answer", code=Code.PEER_UNAVAILABLE)
        cache = writer.writer.cache
        data = cache.find(instance_in(found), sequence_in(found), asked.start, asked.size)
        if data is None:
            raise NotFound("it is not here", code=Code.NOT_FOUND)
        self.given += 1
        return PeerBytes({}, data)


class Reader:
    """A reader in a process of its own."""

    def __init__(self, stores: Stores, *writers: WriterProcess) -> None:
        self.stores = stores
        self.nodes = Nodes({f"http://{writer.name}": writer for writer in writers})
        peers: Any = self.nodes
        roots: Any = None
        records = TailRecords(stores.coordination, stores.drive)
        self.poll = TailPoll(records, POLL_MS)
        self.blocks = Blocks(stores.drive, SharedCache(MIB), 64 * KIB, 16)
        chunks = EntryChunks(self.blocks, WalNodes(stores.coordination, peers, 250))
        self.tail = WalTail(stores.coordination, records, self.poll, chunks, roots)

    def facts(self, stream: int) -> StreamFacts:
        return StreamFacts(IDS[stream], FullName("t", StreamName("s")), 1, None, "leaderless")

    async def read_all(self, stream: int) -> list[tuple[int, Any]]:
        found: list[tuple[int, Any]] = []
        position = 0
        while (answer := await self.tail.chunks(self.facts(stream), position, KIB)).data:
            assert answer.first_offset == position
            found += records_of(answer)
            position = answer.next_offset
        return found

    async def wait(self, stream: int, offset: int) -> tuple[float, TailAnswer]:
        """What comes at the end of a stream, and when."""
        answer = await self.tail.chunks(self.facts(stream), offset, KIB, 20_000)
        return self.stores.loop.now, answer


def records_of(answer: TailAnswer) -> list[tuple[int, Any]]:
    found: list[tuple[int, Any]] = []
    for header, chunk in split_chunks(answer.data):
        offset = header.first_offset
        for batch in decode_frames(batches_of(header, chunk)):
            for value in batch.column("value").to_pylist():
                found.append((offset, value))
                offset += 1
        assert offset == header.next_offset
    return found


@pytest.mark.parametrize("seed", range(5))
def test_a_reader_gets_every_record_of_two_writers_at_its_offset(seed: int) -> None:
    stores, first = a_house(seed=seed)
    second = WriterProcess(stores, "ingest-1").start()
    reader, random = Reader(stores, first, second), Random(seed)
    futures = []
    for number in range(80):
        writer, stream = random.choice([first, second]), random.randrange(3)
        values = [b"%d.%d" % (number, one) for one in range(random.randrange(1, 4))]
        size = 9_000 if random.random() < 0.05 else None
        futures.append(writer.put(stream, an_append(*values, size=size)))
        if random.random() < 0.2:
            stores.do(asyncio.sleep(random.random()))
    assert all(isinstance(said, Appended) for said in first.told(*futures))
    for stream in range(3):
        assert stores.do(reader.read_all(stream)) == stores.records(stream)
    stores.do(reader.poll.aclose())


@pytest.mark.parametrize("alive", [True, False])
def test_who_waits_has_it_soon_after_its_answer(*, alive: bool) -> None:
    """L13: from the node, or from the store where the node is gone."""
    stores, writer = a_house()
    reader = Reader(stores, *([writer] if alive else []))
    for number in range(5):
        waiting = [stores.loop.create_task(reader.wait(stream, number)) for stream in range(3)]
        stores.do(asyncio.sleep(1))
        futures = [writer.put(stream, an_append(b"%d" % number)) for stream in range(3)]
        writer.told(*futures)
        answered = stores.loop.now
        for task in waiting:
            at, answer = stores.do(asyncio.wait_for(task, 30))
            assert records_of(answer) == [(number, b"%d" % number)]
            assert at - answered <= WAKE_SECONDS
    assert bool(reader.nodes.given) is alive
    assert (reader.blocks.fetch_count == 0) is alive
    stores.do(reader.poll.aclose())


def test_what_was_answered_is_there_for_whoever_asks_next() -> None:
    """A producer reads its own writes, whatever another reader has seen."""
    stores, writer = a_house()
    readers = [Reader(stores, writer), Reader(stores)]
    for number in range(10):
        said = writer.append(0, an_append(b"%d" % number))
        assert isinstance(said, Appended)
        assert said.first_offset == number
        for reader in readers:
            answer = stores.do(reader.tail.chunks(reader.facts(0), number, KIB))
            assert records_of(answer) == [(number, b"%d" % number)]
