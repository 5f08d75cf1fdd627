"""Producers of all modes at two nodes that write leaderless streams, in the world of leaderless_writers.py.

Each producer sends what it does not know to be stored again, at any node, sometimes at two of them at
once, and several appends after each other where its mode allows that. In the end every record is in
its stream exactly once, in the order of its producer, where its answer said.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
from unit.ingest.leaderless.harness import WriterProcess
from unit.ingest.leaderless.making import IDS, an_append, of_producer

from bottomless.errors import Code, StoreError
from bottomless.model.chunk import AppendMode
from bottomless_server.core.short_hash import hash_of
from bottomless_server.ingest.producers.producers import Appended
from bottomless_server.ingest.records.conditions import Conditions, FromProducer, WithKey
from bottomless_server.ingest.records.intake import Append
from bottomless_server.leaderless.decided import KnownName, parse_known_name
from bottomless_server.leaderless.tail_format import decode_known
from bottomless_server.stores.tail_keys import known_index_key, known_key
from model.leaderless_writers import STREAMS, Violation, World

COUNT: Final = 9
"""Appends of each producer."""
_TRIES: Final = 300
_WAITS_SECONDS: Final = 90.0
"""A client waits for longer than a writer may take to answer."""


class Heard(NamedTuple):
    """What a producer was told is stored."""

    stream: int
    values: Sequence[bytes]
    said: Appended


class ProducerWorld(World):
    """The same nodes, stores and mishaps, with producers alone."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.heard: list[Heard] = []

    def clients(self) -> list[Coroutine[Any, Any, None]]:
        kinds = (
            self._in_bursts,
            self._by_ids,
            self._by_transactions,
            self._by_keys,
            self._by_staging,
        )
        return [kind(stream) for stream in range(STREAMS) for kind in kinds]

    async def _in_bursts(self, stream: int) -> None:
        """Strict numbers: up to four appends under way at one node, and on from the first that is
        not known to be stored."""
        done = 0
        for _ in range(_TRIES):
            if done == COUNT:
                return
            node = self.random.choice(self.nodes)
            burst = range(done, min(done + self.random.randint(1, 4), COUNT))
            appends = [
                an_append(b"strict/%d" % number, conditions=of_producer("strict", number))
                for number in burst
            ]
            told = await asyncio.gather(*(self._ask(node, stream, one) for one in appends))
            for number, said in zip(burst, told, strict=True):
                if not isinstance(said, Appended):
                    await self._pause()
                    break
                self._note(stream, [b"strict/%d" % number], said)
                done = number + 1
        self._require(done)

    async def _by_ids(self, stream: int) -> None:
        """Records with numbers: each append begins with some that the one before it had."""
        ids = list(range(1, 3 * COUNT + 1))
        for start in range(0, len(ids), 3):
            some = ids[max(0, start - self.random.randint(0, 2)) : start + 3]
            append = an_append(
                *(b"ids/%d" % number for number in some),
                conditions=Conditions(FromProducer("ids", 0, AppendMode.HIGHWATER)),
            )
            numbered = replace(append, ids=np.array(some, np.int64))
            said = await self._until_known(stream, numbered)
            if said.first_offset is not None and said.record_count:
                stored = some[len(some) - said.record_count :]
                self._note(stream, [b"ids/%d" % number for number in stored], said)

    async def _by_transactions(self, stream: int) -> None:
        for number in range(COUNT):
            values = [b"txn/%d/%d" % (number, one) for one in range(1 + number % 3)]
            identity = FromProducer("txn", 0, AppendMode.TRANSACTION, 2 * number)
            append = an_append(*values, conditions=Conditions(identity))
            self._note(stream, values, await self._until_known(stream, append))

    async def _by_keys(self, stream: int) -> None:
        for number in range(COUNT):
            value = b"key/%d" % number
            append = an_append(value, conditions=Conditions(WithKey(hash_of(value))))
            keyed = replace(append, body_hash=hash_of(value))
            self._note(stream, [value], await self._until_known(stream, keyed))

    async def _by_staging(self, stream: int) -> None:
        """Commits of several objects, whose parts are visible together."""
        for number in range(0, COUNT, 3):
            values = [b"job/%d/%d" % (number, one) for one in range(4)]
            for _ in range(_TRIES):
                said = await self._commit(self.random.choice(self.nodes), stream, number, values)
                if isinstance(said, Appended):
                    self._note(stream, values, said)
                    break
                await self._pause()
            else:
                raise Violation("it never got through")

    async def _commit(
        self, node: WriterProcess, stream: int, number: int, values: Sequence[bytes]
    ) -> Appended | StoreError | None:
        conditions = Conditions(FromProducer("job", 0, AppendMode.TRANSACTION, number))

        async def parts() -> AsyncIterator[Append]:
            for half in (values[:2], values[2:]):
                yield an_append(*half, conditions=conditions)

        work: Any = node.process.spawn(node.writer.commit_staged(IDS[stream], parts()))
        done, _ = await asyncio.wait([work], timeout=2 * _WAITS_SECONDS)
        if not done:
            return self._heard(None)
        error = work.exception()
        if error is not None and not isinstance(error, StoreError):
            raise error
        return self._heard(error or work.result())

    async def _until_known(self, stream: int, append: Append) -> Appended:
        """Send an append until it is answered, now and then at both nodes at once."""
        for _ in range(_TRIES):
            nodes = [self.random.choice(self.nodes)]
            if self.random.random() < 0.3:
                nodes = list(self.nodes)
            told = await asyncio.gather(*(self._ask(node, stream, append) for node in nodes))
            found = [said for said in told if isinstance(said, Appended)]
            if found:
                return max(found, key=lambda said: said.record_count)
            await self._pause()
        raise Violation("it never got through")

    async def _ask(
        self, node: WriterProcess, stream: int, append: Append
    ) -> Appended | StoreError | None:
        future = node.put(stream, append)
        done, _ = await asyncio.wait([future], timeout=_WAITS_SECONDS)
        return self._heard(future.result() if done else None)

    def _heard(self, said: Appended | StoreError | None) -> Appended | StoreError | None:
        if isinstance(said, StoreError):
            self.events[f"told {said.code}"] += 1
            assert said.code in EXPECTED, said
        else:
            self.events["acknowledged" if said is not None else "told nothing"] += 1
        return said

    async def _pause(self) -> None:
        await asyncio.sleep(0.5 * self.random.random())

    def _note(self, stream: int, values: Sequence[bytes], said: Appended) -> None:
        self.heard.append(Heard(stream, values, said))

    def compare_stream(self, stream: int, values: list[bytes]) -> None:
        for client, expected in EACH.items():
            own = [value for value in values if value.startswith(client)]
            in_order = own if client != b"key/" else sorted(own)
            assert in_order == expected, f"{client!r}: {own}"
        assert len(values) == sum(map(len, EACH.values()))
        at = {value: offset for offset, value in enumerate(values)}
        for heard in self.heard:
            if heard.stream == stream and heard.said.first_offset is not None:
                assert at[heard.values[0]] == heard.said.first_offset
                places = [at[value] for value in heard.values]
                assert places == list(range(places[0], places[0] + len(places)))
        self._compare_known(stream)

    def _compare_known(self, stream: int) -> None:
        """What coordination knows is what was stored, and the tail counts it."""
        stream_id, coordination = IDS[stream], self.stores.coordination
        names = [
            parse_known_name(one) for one in coordination.peek_members(known_index_key(stream_id))
        ]
        tail = self.stores.tail(stream)
        producers = [name for name in names if name.is_producer]
        assert {name.name for name in producers} == {"strict", "ids", "txn", "job"}
        assert (tail.producer_count, tail.key_count) == (4, COUNT)
        assert len(names) == 4 + COUNT
        for name, last in (("strict", COUNT - 1), ("ids", 3 * COUNT), ("txn", 2 * COUNT - 2)):
            key = known_key(stream_id, KnownName(name, is_producer=True))
            entry = decode_known(coordination.peek(key) or b"").entries[0]
            assert entry.sequence == last

    def _require(self, done: int) -> None:
        if done < COUNT:
            raise Violation("it never got through")


EXPECTED: Final = {
    Code.COMMIT_TIMEOUT,
    Code.COORDINATION_UNAVAILABLE,
    Code.DRAINING,
    Code.OBJECT_STORE_UNAVAILABLE,
    Code.OVERLOADED,
    Code.PRODUCER_SEQUENCE_GAP,
    Code.PRODUCER_UNKNOWN,
    Code.CLOCK_SKEW,
    Code.STORAGE_FAILED,
}
"""Codes that a producer is told which does nothing wrong: an earlier append may have been refused."""

EACH: Final = {
    b"strict/": [b"strict/%d" % number for number in range(COUNT)],
    b"ids/": [b"ids/%d" % number for number in range(1, 3 * COUNT + 1)],
    b"txn/": [b"txn/%d/%d" % (n, one) for n in range(COUNT) for one in range(1 + n % 3)],
    b"job/": [b"job/%d/%d" % (n, one) for n in range(0, COUNT, 3) for one in range(4)],
    b"key/": [b"key/%d" % number for number in range(COUNT)],
}
"""The records of each producer, in their order."""
