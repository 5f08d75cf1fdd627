"""Two nodes that write leaderless streams, beside everything that may happen to them.

The writers are those of ingest, over stores on a wire on which requests and replies are lost, or
late. Nodes are killed at any step, and others begin in their place; machines sleep for longer than
their lease, and a vacuum takes them for dead; compaction takes entries out and releases objects. After each change of coordination what must hold is
looked at; in the end each stream is compared with what its clients sent and were told.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

from simulation.clockwork import MachineClock
from simulation.loop import Process
from support.wire import Mishap, Passage
from unit.ingest.leaderless.harness import BOUNDS, Stores, WriterProcess
from unit.ingest.leaderless.making import IDS, an_append, of_producer

from bottomless.errors import Code, Outcome, StoreError, Unavailable
from bottomless.formats.batch import decode_frames
from bottomless.formats.chunk import batches_of
from bottomless.formats.keys import parse_wal_key, wal_key
from bottomless.formats.placing import unplaced_chunks
from bottomless.formats.wal import WalDirectory, decode_directory
from bottomless.model.names import Uid
from bottomless.model.stream import StreamRecord
from bottomless_server.ingest.producers.producers import Appended
from bottomless_server.ingest.records.conditions import NO_CONDITIONS
from bottomless_server.leaderless.tail import SHARD_COUNT, TailEntry
from bottomless_server.leaderless.tail_format import decode_entry
from bottomless_server.stores import releases, tails, wal
from bottomless_server.stores.notes_of_dead import note_for_dead
from bottomless_server.stores.tail_keys import tail_index_key

STREAMS: Final = 3
GENERATION: Final = 0
_GIVES_UP_SECONDS: Final = 90.0
"""A client waits for longer than a writer may take to answer."""


class Violation(AssertionError):
    """Something that must hold does not."""


class Storm:
    """What befalls requests: drawn for each of them, until it is calm."""

    def __init__(self, random: Random, share: float) -> None:
        self._random = random
        self.share = share

    def passage(self, route: str) -> Passage:
        random = self._random
        slow = 0.3 if route == "drive.put" else 0.01
        there, back = random.random() ** 3 * slow, random.random() ** 3 * slow
        if random.random() >= self.share:
            return Passage(there_seconds=there, back_seconds=back)
        mishap = random.choice([*Mishap])
        if mishap is Mishap.NONE:
            # It is late, and nothing is lost.
            return Passage(there_seconds=there + 10 * random.random() ** 4)
        return Passage(mishap, there, back, silence_seconds=3 * random.random())


@dataclass(eq=False)
class Sent:
    """One append of a client, and what it was told; None where it never heard."""

    stream: int
    client: str
    node: str
    values: list[bytes]
    said: Appended | StoreError | None = None


class World:
    def __init__(self, seed: int, *, sync: bool = False) -> None:
        self.stores = Stores(seed)
        self.random = Random(seed + 1)
        # In every second world one EXEC commits one stream of an object.
        count = 1 if seed % 2 else BOUNDS.commit_stream_count_max
        self.bounds = BOUNDS._replace(
            notes_sync=sync, check_seconds=0.5, commit_stream_count_max=count
        )
        self.stores.do(self.stores.create(STREAMS))
        self.history: dict[int, dict[int, Any]] = {one: {} for one in range(STREAMS)}
        """The record at each offset, as the first entry that held it said."""
        self._entries: dict[tuple[int, int], TailEntry] = {}
        self._noted_below: dict[Uid, int] = {}
        """The highest that a durable object of each instance says."""
        self._directories: dict[tuple[Uid, int], WalDirectory] = {}
        """Of all objects that there ever were."""
        self.notes = set[tuple[Uid, int, str, int]]()
        """Instance, sequence, stream and first offset of each note that was ever durable."""
        self.sent: list[Sent] = []
        self.events: Counter[str] = Counter()
        self.nodes: list[WriterProcess] = []
        self._started = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        for _ in range(2):
            self.nodes.append(self._node())
        self.stores.coordination.on_write = self._look
        storm = Storm(self.random, 0.06)
        self.stores.trouble.always_by = storm.passage
        self.stores.do(self._all(storm))
        if self.failure is not None:
            raise self.failure
        self._compare()

    def _node(self) -> WriterProcess:
        self._started += 1
        node = WriterProcess(self.stores, f"ingest-{self._started}", self.bounds)
        return node.start()

    async def _all(self, storm: Storm) -> None:
        loop = asyncio.get_running_loop()
        others = Process(self.stores.loop, "others", MachineClock())
        self.stores.processes.append(others)
        beside: list[Coroutine[Any, Any, None]] = [self._vacuum(), self._vacuum(), self._compact()]
        running = [others.spawn(one) for one in beside]
        meddlers = (self._kill(), self._sleep(), self._start_store_anew())
        meddling = [loop.create_task(one) for one in meddlers]
        await asyncio.gather(*self.clients())
        for one in meddling:
            one.cancel()
        storm.share = 0.0
        # Who was about to be killed lives on.
        self.nodes = [node for node in self.nodes if node.process.alive]
        for node in self.nodes:
            node.process.steps_left = None
        for node in self.nodes:
            if node.machine.asleep_since is not None:
                node.process.wake()
            work: Any = node.process.spawn(node.writer.drain())
            await asyncio.wait_for(work, 200)
        for task in running:
            if task.done() and not task.cancelled():
                task.result()

    # Clients.

    def clients(self) -> list[Coroutine[Any, Any, None]]:
        """Everybody who writes."""
        return [
            *(
                self._plain(stream, f"plain-{number}")
                for stream in range(STREAMS)
                for number in (0, 1)
            ),
            *(self._strict(stream, "strict") for stream in range(STREAMS)),
        ]

    async def _plain(self, stream: int, client: str) -> None:
        """Sends one append after the other, some before the last one is answered; never again."""
        waiting: list[asyncio.Task[None]] = []
        for number in range(12):
            values = [b"%s/%d/%d" % (client.encode(), number, one) for one in range(1 + number % 2)]
            waiting.append(self.send(stream, client, values, NO_CONDITIONS)[1])
            if self.random.random() < 0.5:
                await asyncio.sleep(6 * self.random.random())
            if len(waiting) >= 3:
                await waiting.pop(0)
        await asyncio.gather(*waiting)

    async def _strict(self, stream: int, client: str) -> None:
        """Repeats what it does not know of, at any node, until it knows."""
        for number in range(8):
            values = [b"%s/%d" % (client.encode(), number)]
            for _ in range(200):
                sent, heard = self.send(stream, client, values, of_producer(client, number))
                await heard
                if isinstance(sent.said, Appended):
                    break
                await asyncio.sleep(0.3)
            else:
                raise Violation(f"it never got through: {sent.said!r}")

    def send(
        self, stream: int, client: str, values: list[bytes], conditions: Any
    ) -> tuple[Sent, "asyncio.Task[None]"]:
        node = self.random.choice(self.nodes)
        sent = Sent(stream, client, node.name, values)
        self.sent.append(sent)
        future = node.put(stream, an_append(*values, conditions=conditions))
        return sent, asyncio.get_running_loop().create_task(self._hear(sent, future))

    async def _hear(self, sent: Sent, future: "asyncio.Future[Appended | StoreError]") -> None:
        done, _ = await asyncio.wait([future], timeout=_GIVES_UP_SECONDS)
        sent.said = future.result() if done else None
        if self.bounds.notes_sync and isinstance(sent.said, Appended):
            try:
                self._look_at_answer(sent, sent.said)
            except AssertionError as error:
                self.failure = self.failure or error
        name = type(sent.said).__name__ if not isinstance(sent.said, StoreError) else sent.said.code
        self.events[f"told {name}"] += 1

    # Whatever else goes on.

    async def _kill(self) -> None:
        while True:
            await asyncio.sleep(3 + 12 * self.random.random())
            number = self.random.randrange(len(self.nodes))
            # In the middle of whatever it does then.
            self.nodes[number].process.steps_left = self.random.randrange(200)
            self.events["killed"] += 1
            await asyncio.sleep(self.random.random())
            self.nodes[number].process.kill()
            self.nodes[number] = await self._begun()

    async def _sleep(self) -> None:
        """Machines stand still for longer than any lease, and go on where they were."""
        while True:
            await asyncio.sleep(12 * self.random.random())
            process = self.random.choice(self.nodes).process
            process.sleep()
            self.events["slept"] += 1
            await asyncio.sleep(10 + 15 * self.random.random())
            process.wake()

    async def _start_store_anew(self) -> None:
        """Coordination ends and begins again, with all that it answered."""
        while True:
            await asyncio.sleep(15 + 60 * self.random.random())
            self.stores.coordination.start_anew()
            self.events["store begun anew"] += 1

    async def _begun(self) -> WriterProcess:
        self._started += 1
        node = WriterProcess(self.stores, f"ingest-{self._started}", self.bounds)
        starting: Any = node.process.spawn(node.writer.start())
        await starting
        return node

    async def _vacuum(self) -> None:
        coordination, drive = self.stores.coordination, self.stores.drive
        while True:
            await asyncio.sleep(2 * self.random.random())
            try:
                instances = await wal.load_instances(coordination)
                for instance in sorted(instances):
                    record = await wal.settle(coordination, instance, GENERATION)
                    if record is not None and record.settled == record.reserved:
                        clock = self.stores.clock()
                        count = await note_for_dead(drive, coordination, instance, record, clock)
                        self.events["noted for the dead"] += count
                    found = await wal.deletable(drive, coordination, instance, GENERATION)
                    there = [
                        one
                        for one in found.sequences
                        if self.stores.objects.has(wal_key(instance, one))
                    ]
                    await wal.delete_objects(drive, instance, there)
                    self.events["deleted"] += len(there)
                    if found.sequences:
                        end = found.sequences.stop
                        await wal.note_deleted(coordination, instance, GENERATION, end)
            except StoreError as error:
                self._expect(error)

    async def _compact(self) -> None:
        coordination = self.stores.coordination
        while True:
            await asyncio.sleep(self.random.random())
            stream_id = IDS[self.random.randrange(STREAMS)]
            target = self.stores.tail(IDS.index(stream_id)).next_offset

            def publish(record: StreamRecord, target: int = target) -> StreamRecord:
                published = max(record.published_next, target)
                return replace(record, published_next=published, version=record.version + 1)

            try:
                await self.stores.streams.update(stream_id, publish)
                await tails.prune(coordination, stream_id, GENERATION, limit=3)
                for instance in sorted(await wal.load_instances(coordination)):
                    directory = {
                        sequence: set(IDS[:STREAMS]) for sequence in range(self._end_of(instance))
                    }
                    done = await releases.release(
                        coordination, instance, GENERATION, directory, set(range(SHARD_COUNT))
                    )
                    self.events["released"] += len(done.gone)
            except StoreError as error:
                self._expect(error)

    def _end_of(self, instance: Uid) -> int:
        """After the last object that there is of an instance."""
        found = map(parse_wal_key, self.stores.objects.object_keys)
        return max(
            (one.sequence + 1 for one in found if one and one.instance == instance), default=0
        )

    def _expect(self, error: StoreError) -> None:
        if not isinstance(error, Unavailable) or error.code is Code.COORDINATION_REGRESSED:
            self.failure = self.failure or Violation(f"nobody expects it: {error!r}")

    # What must hold.

    def _look(self) -> None:
        try:
            self._look_at_objects()
            for stream in range(STREAMS):
                self._look_at_stream(stream)
        except AssertionError as error:
            self.failure = self.failure or error

    def _look_at_objects(self) -> None:
        for object_key in self.stores.objects.object_keys:
            key = parse_wal_key(object_key)
            if key is None or (key.instance, key.sequence) in self._directories:
                continue
            directory = decode_directory(self.stores.objects.peek(object_key) or b"")
            self._directories[key.instance, key.sequence] = directory
            below = self._noted_below.get(key.instance, 0)
            self._noted_below[key.instance] = max(below, directory.header.noted_below)
            for number in range(directory.header.note_count):
                note = directory.note(number)
                told_of = self._directories[key.instance, note.sequence].line(note.first_piece)
                place = note.sequence, told_of.stream_id, note.first_offset
                self.notes.add((key.instance, *place))

    def _look_at_stream(self, stream: int) -> None:
        for member in self.stores.coordination.peek_members(tail_index_key(IDS[stream])):
            entry = decode_entry(member)
            known = self._entries.setdefault((stream, entry.next_offset), entry)
            if known is not entry:
                assert known == entry, "an entry changed"
                continue
            noted = self._noted_below.get(entry.instance, 0)
            assert entry.sequence >= noted, "it is committed after it counted as settled"
            data = self.stores.objects.peek(wal_key(entry.instance, entry.sequence))
            assert data is not None, "an entry names an object that is not there"
            self._take(stream, entry, data)

    def _take(self, stream: int, entry: TailEntry, data: bytes) -> None:
        offset = entry.first_offset
        piece = memoryview(data)[entry.position : entry.position + entry.size]
        for header, chunk in unplaced_chunks(piece):
            for batch in decode_frames(batches_of(header, chunk)):
                for value in batch.column("value").to_pylist():
                    assert offset not in self.history[stream], "an offset is given twice"
                    self.history[stream][offset] = value
                    offset += 1
        assert offset == entry.next_offset

    def _compare(self) -> None:
        for stream, history in self.history.items():
            assert sorted(history) == list(range(len(history))), "there is a hole"
            self.compare_stream(stream, [history[offset] for offset in range(len(history))])
        self._compare_notes()

    def compare_stream(self, stream: int, values: list[bytes]) -> None:
        count = Counter(values)
        assert all(number == 1 for number in count.values()), "a record is there twice"
        at = {value: offset for offset, value in enumerate(values)}
        last: defaultdict[tuple[str, str], int] = defaultdict(lambda: -1)
        for sent in self.sent:
            if sent.stream != stream:
                continue
            there = [at[value] for value in sent.values if value in at]
            assert len(there) in (0, len(sent.values)), "half of an append is there"
            said = sent.said
            if isinstance(said, Appended):
                assert there, "what was acknowledged is not there"
                assert there[0] == said.first_offset
                self.events["acknowledged"] += 1
            if isinstance(said, StoreError) and said.code is Code.COORDINATION_REGRESSED:
                raise Violation("nothing was lost")
            if isinstance(said, StoreError) and said.outcome is Outcome.NONE:
                assert not there or sent.client == "strict", "what was refused is there"
            if there and sent.client != "strict":
                name = (sent.client, sent.node)
                assert there[0] > last[name], "what a client sent first comes later"
                last[name] = there[0]
        strict = [one for one in values if one.startswith(b"strict/")]
        assert strict == [b"strict/%d" % number for number in range(8)]

    def _compare_notes(self) -> None:
        """Whatever counts as settled is noted if it was committed."""
        for (stream, _), entry in self._entries.items():
            if entry.sequence < self._noted_below.get(entry.instance, 0):
                assert self._is_noted(stream, entry), "what counts as noted is not"

    def _is_noted(self, stream: int, entry: TailEntry) -> bool:
        place = entry.sequence, IDS[stream], entry.first_offset
        return (entry.instance, *place) in self.notes

    def _look_at_answer(self, sent: Sent, said: Appended) -> None:
        """What `sync` acknowledges is noted in the bucket by then, or in a fragment."""
        if said.first_offset is None:
            # It is so old that nobody knows where it lies.
            return
        self._look_at_objects()
        published = self.stores.tail(sent.stream).pruned_next
        for (stream, _), entry in self._entries.items():
            if stream != sent.stream or entry.next_offset <= published:
                continue
            if entry.first_offset < said.next_offset and said.first_offset < entry.next_offset:
                assert self._is_noted(stream, entry), "it is acknowledged, and not noted"
