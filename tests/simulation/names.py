"""Names that are freed and given away again, while an ingest node and a reader ask what they mean.

Nothing else is here than what knows names: questions and answers of manifest and of coordination
take any time, some never come, and many ask at once. Each answer is held against what the name meant
in coordination, and when.

In all other runs one thing at a time is late, and each caller asks alone. So nobody saw what is told
to a caller who joins the question of another, or to whom an answer comes when it is too old.
"""

import asyncio
import random
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from support.peers import SilentPeer
from unit.ingest.harness import SmallManifest

from bottomless.errors import Code, NotFound, Unavailable
from bottomless.formats.stream_record import LEADERLESS
from bottomless.model.config import Profile, StreamConfig
from bottomless.model.names import FullName, StreamId, StreamName
from bottomless.model.stream import StreamRecord, StreamState
from bottomless_server.coordination.base import Changes
from bottomless_server.coordination.memory import MemoryCoordination
from bottomless_server.ingest.front.names import NamedStream, StreamNames
from bottomless_server.node.lease import Clocks
from bottomless_server.protocol.peer import PeerAnswer
from bottomless_server.protocol.registry import NAMES, encode_names_shown
from bottomless_server.reader.manifest_calls import ManifestCalls
from bottomless_server.reader.streams import Streams as ReaderStreams
from bottomless_server.stores.freed_names import shown_names
from bottomless_server.stores.streams import GENERATION_KEY, Loaded, Streams
from simulation.expected import Broken
from simulation.loop import VirtualLoop

RUN_SECONDS: Final = 90.0
READER_KEEP_MS: Final = 2_000
_NAMES: Final = [FullName("default", StreamName(name)) for name in ("orders", "clicks", "rare")]
_DELAYS: Final = (0.001, 0.005, 0.005, 0.005, 0.05, 0.4, 2.5, 5.0, 9.0)
"""In seconds; never 0, so that no two things happen at one moment."""
_SERVED: Final = frozenset({LEADERLESS})
_PAUSES: Final = (0.001, 0.01, 0.1, 0.5, 1.0, 4.0, 9.0)


class _Life(NamedTuple):
    """What a name meant from some moment on."""

    since: float
    meaning: NamedStream | None


class _SlowStreams(Streams):
    """Coordination, whose answers take their time."""

    def __init__(self, world: "NamesWorld") -> None:
        super().__init__(world.coordination, _SERVED)
        self._world = world

    async def find_many(self, names: Sequence[FullName]) -> dict[FullName, StreamId]:
        await self._world.delay()
        try:
            return await super().find_many(names)
        finally:
            await self._world.delay()

    async def load_many(self, stream_ids: Sequence[StreamId]) -> Loaded:
        await self._world.delay()
        try:
            return await super().load_many(stream_ids)
        finally:
            await self._world.delay()


class _SlowManifest(SilentPeer):
    """Says what coordination has, at any moment between question and answer."""

    def __init__(self, world: "NamesWorld") -> None:
        self._world = world
        self._small = SmallManifest(world.streams)

    async def call(self, method: str, path: str, /, **rest: Any) -> PeerAnswer:
        await self._world.delay()
        if self._world.chance.random() < 0.05:
            raise Unavailable("manifest does not answer", code=Code.PEER_UNAVAILABLE)
        try:
            if (method, path) == ("GET", NAMES):
                shown = await shown_names(self._world.coordination)
                return PeerAnswer(200, {}, encode_names_shown(shown.generation, shown.mark))
            return await self._small.call(method, path, **rest)
        finally:
            await self._world.delay()


class NamesWorld:
    """Streams that come and go, and who asks for them."""

    def __init__(self, loop: VirtualLoop, chance: random.Random) -> None:
        self.chance = chance
        self._loop = loop
        self._count = 0
        self._lives: dict[FullName, list[_Life]] = {name: [_Life(0, None)] for name in _NAMES}
        self.coordination = MemoryCoordination(lambda: int(loop.now * 1000))
        self.coordination.write(Changes({GENERATION_KEY: b'{"generation":0,"bucket":true}'}))
        self.streams = Streams(self.coordination, _SERVED)
        clocks = Clocks(lambda: int(loop.now * 1000), loop.time, loop.time)
        # Leases may be short.
        self._keep_ms = chance.choice((2_000, 8_000))
        manifest = _SlowManifest(self)
        self._clocks = clocks
        self._ingest = StreamNames(manifest, _SlowStreams(self), clocks, self._keep_ms)
        self._reader = ReaderStreams(ManifestCalls(manifest), READER_KEEP_MS, clocks.since_boot)
        self.answer_count = 0

    async def delay(self) -> None:
        """The time that something is on its way."""
        await asyncio.sleep(self.chance.choice(_DELAYS) * self.chance.random())

    async def run(self) -> None:
        """Let them come, go and be asked for.

        Raises:
            Broken: somebody was told what was not so.
        """
        works: list[Awaitable[None]] = [self._renew()]
        works += [self._live(name) for name in _NAMES]
        works += [self._find() for _ in range(6)]
        works += [self._read() for _ in range(6)]
        tasks = [asyncio.ensure_future(work) for work in works]
        try:
            done, _ = await asyncio.wait(
                tasks, timeout=RUN_SECONDS, return_when=asyncio.FIRST_EXCEPTION
            )
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._ingest.aclose()

    async def _pause(self) -> None:
        await asyncio.sleep(self.chance.choice(_PAUSES) * self.chance.random())

    async def _live(self, name: FullName) -> None:
        while True:
            self._count += 1
            stream_id = StreamId(f"0198d2a4-5b1e-7c3a-9a51-{self._count:012x}")
            profile: Profile = "leaderless" if self._count % 2 else "local"
            await self.streams.create(
                StreamRecord(
                    stream_id,
                    name.name,
                    name.tenant,
                    StreamState.ACTIVE,
                    0,
                    StreamConfig(profile=profile),
                    epoch=1,
                )
            )
            self._lives[name].append(_Life(self._loop.now, NamedStream(stream_id, profile)))
            for _ in range(self.chance.randrange(4)):
                await self._pause()
                await self.streams.update(
                    stream_id, lambda record: replace(record, epoch=record.epoch + 1)
                )
            await self._pause()
            await self.streams.bury(
                stream_id,
                name,
                lambda record: replace(record, state=StreamState.DELETING, epoch=record.epoch + 1),
                Changes(),
            )
            self._lives[name].append(_Life(self._loop.now, None))
            await self._pause()

    async def _renew(self) -> None:
        """The lease of the node, whose renewals come late, or not at all."""
        while True:
            begun = self._clocks.beginning()
            await self.delay()
            shown = await shown_names(self.coordination)
            await self.delay()
            if self.chance.random() < 0.9:
                self._ingest.hear(shown, self.coordination.connected_count, begun)
            await asyncio.sleep(self._keep_ms * 0.375 / 1000)

    async def _find(self) -> None:
        while True:
            await self._pause()
            name = self.chance.choice(_NAMES)
            found = await self._told(name, self._keep_ms, self._ingest.find(name))
            if found is not None and not self._meant(name, found, self._loop.now):
                # As an append finds out whose stream is closed here already.
                await self._told(name, self._keep_ms, self._ingest.find_other(name, found))

    async def _told(
        self,
        name: FullName,
        keep_ms: int,
        asking: Awaitable[NamedStream],
        *,
        from_begin: bool = False,
    ) -> NamedStream | None:
        """Hold an answer against the truth: it may be as old as `keep_ms` when it is there, or when it
        was asked for."""
        begun = self._loop.now
        try:
            found = await asking
        except NotFound:
            self._require(name, None, begun)
            return None
        except Unavailable:
            return None
        self.answer_count += 1
        self._require(name, found, (begun if from_begin else self._loop.now) - keep_ms / 1000)
        return found

    async def _read(self) -> None:
        while True:
            await self._pause()
            name = self.chance.choice(_NAMES)
            await self._told(name, READER_KEEP_MS, self._read_of(name), from_begin=True)
            await self._look_for_the_owner(name)

    async def _read_of(self, name: FullName) -> NamedStream:
        stream = (await self._reader.find(name)).stream
        return NamedStream(stream.stream_id, stream.profile)

    async def _look_for_the_owner(self, name: FullName) -> None:
        try:
            stream = (await self._reader.find(name)).stream
            epoch = (await self.streams.load(stream.stream_id)).epoch
            later = await self._reader.under(stream, epoch)
        except (NotFound, Unavailable):
            return
        if later.epoch < epoch:
            raise Broken(
                f"asked for an owner of epoch {epoch}, the reader has that of {later.epoch}"
            )

    def _meant(self, name: FullName, meaning: NamedStream | None, since: float) -> bool:
        """Whether the name meant this at any moment from `since` until now."""
        lives = self._lives[name]
        ends = [life.since for life in lives[1:]] + [self._loop.now]
        return any(
            life.meaning == meaning and end >= since for life, end in zip(lives, ends, strict=True)
        )

    def _require(self, name: FullName, meaning: NamedStream | None, since: float) -> None:
        if not self._meant(name, meaning, since):
            now = self._loop.now
            raise Broken(
                f"at {now:.3f} {name.name} is told to mean {meaning}, which it did not since"
                f" {since:.3f}: {self._lives[name][-4:]}"
            )


def play_names(seed: int) -> int:
    """One run; returns how many answers were right.

    Raises:
        Broken
    """
    chance = random.Random(f"{seed} names")
    loop = VirtualLoop(chance)
    world = NamesWorld(loop, chance)
    try:
        loop.run_until_complete(world.run())
    finally:
        loop.close()
    if loop.bugs:
        raise Broken(loop.bugs[0])
    return world.answer_count
