"""Names of many streams at an ingest node, with a coordination and a manifest of a few lines."""

from dataclasses import replace

from support.harness import StandingClocks
from support.waiting import eventually

from bottomless.formats.stream_record import decode_record, encode_record
from bottomless.model.config import StreamConfig
from bottomless.model.names import FullName, StreamId, StreamName
from bottomless.model.stream import StreamRecord, StreamState
from bottomless_server.coordination.base import Changes
from bottomless_server.coordination.memory import MemoryCoordination
from bottomless_server.ingest.front.names import NamedStream, StreamNames
from bottomless_server.stores.freed_names import shown_names
from bottomless_server.stores.streams import GENERATION_KEY, Streams, stream_key
from unit.ingest.harness import SmallManifest

KEEP_MS = 8_000
RENEW_MS = 3_000
COUNT = 20
PAGES_COUNT = 1_500
"""More names than one question may have."""


def names_of(count: int) -> list[FullName]:
    return [FullName("default", StreamName(f"orders-{number}")) for number in range(count)]


NAMES = names_of(COUNT)


class Asking:
    """Names of some streams, `NAMES` among them, of which every answer is there."""

    def __init__(self, count: int = COUNT) -> None:
        self.all_names = names_of(count)
        self.time = StandingClocks()
        self.coordination = MemoryCoordination(lambda: self.time.wall)
        self.coordination.write(Changes({GENERATION_KEY: b'{"generation":0,"bucket":true}'}))
        self.streams = Streams(self.coordination)
        self.manifest = SmallManifest(self.streams)
        self.names = StreamNames(self.manifest, self.streams, self.time.clocks(), KEEP_MS)

    async def set_up(self) -> None:
        for number, name in enumerate(self.all_names):
            await self.create(name, number)
        await self.find_all()
        self.manifest.questions = 0

    async def find_all(self) -> None:
        for name in self.all_names:
            await self.names.find(name)

    async def end(self, name: FullName) -> None:
        """Begin to delete the stream, as its record says it."""
        key = stream_key(await self.streams.find(name))
        value = await self.coordination.get(key)
        assert value is not None
        record = replace(decode_record(value), state=StreamState.DELETING)
        self.coordination.write(Changes({key: encode_record(record)}))

    async def delete(self, name: FullName) -> None:
        """Write the tombstone, as manifest does, and tell nobody."""
        await self.streams.bury(
            await self.streams.find(name),
            name,
            lambda record: replace(record, state=StreamState.DELETING, epoch=record.epoch + 1),
            Changes(),
        )

    async def create(self, name: FullName, number: int) -> NamedStream:
        stream_id = StreamId(f"0198d2a4-5b1e-7c3a-9a51-{number:012x}")
        await self.streams.create(
            StreamRecord(stream_id, name.name, name.tenant, StreamState.ACTIVE, 0, StreamConfig())
        )
        return NamedStream(stream_id, "local")

    async def renew(self) -> None:
        """What a renewal of the lease tells, with all that follows from it."""
        since = self.time.clocks().beginning()
        shown = await shown_names(self.coordination)
        self.names.hear(shown, self.coordination.connected_count, since)
        await eventually(self.looked_up)

    async def pass_time(self, ms: int) -> None:
        """With the lease renewed as often as it would be."""
        for _ in range(ms // RENEW_MS):
            self.time.advance(RENEW_MS)
            await self.renew()
        self.time.advance(ms % RENEW_MS)

    def refreshed(self) -> bool:
        return self.names._refreshing is None or self.names._refreshing.done()

    def looked_up(self) -> bool:
        return self.names._looking is None or self.names._looking.done()
