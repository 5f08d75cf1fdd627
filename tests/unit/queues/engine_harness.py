"""An engine of queues in a directory, with a clock that the test moves."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bottomless.model.queue import parse_queue_config
from bottomless_server.node.file_calls import FileCalls
from bottomless_server.queues.calls import (
    OutMessage,
    PublishAnswer,
    PublishRequest,
    ReceivedMessage,
)
from bottomless_server.queues.engine import QueueEngine
from bottomless_server.queues.outgoing.memory_streams import MemoryStreams
from bottomless_server.queues.settings import EngineSettings

TENANT = "default"
SETTINGS = EngineSettings(
    free_bytes_min=0,
    compact_quiet_ms=0,
    compact_bytes_per_second=0,
    ledger_cache_bytes=2**20,
    read_thread_count=2,
    housekeeping_ms=1,
)


class Engine:
    """One life after the other of an engine, and short words for what is asked of it."""

    def __init__(
        self,
        directory: Path,
        settings: EngineSettings = SETTINGS,
        files: FileCalls | None = None,
    ) -> None:
        self.directory = directory
        self.settings = settings
        self.files = files
        self.streams = MemoryStreams()
        self.now = 1_700_000_000_000
        self._engine: QueueEngine | None = None

    @property
    def engine(self) -> QueueEngine:
        assert self._engine is not None
        return self._engine

    async def open(self) -> None:
        self._engine = await QueueEngine.open(
            self.directory,
            self.settings,
            lambda: self.now,
            files=self.files,
            streams=self.streams,
        )

    async def close(self) -> None:
        await self.engine.close()

    async def restart(self) -> None:
        await self.close()
        await self.open()

    async def pass_time(self, ms: int) -> None:
        """Move the clock, and let happen what is due then."""
        self.now += ms
        await self.engine.upkeep()

    async def create(self, name: str, **config: Any) -> None:
        await self.engine.create_queue(TENANT, name, parse_queue_config(config))

    async def publish(
        self, *names: str, values: Sequence[bytes] = (b"hello",), **of_request: Any
    ) -> PublishAnswer:
        return await self.send(*names, messages=[OutMessage(each) for each in values], **of_request)

    async def send(
        self, *names: str, messages: Sequence[OutMessage], **of_request: Any
    ) -> PublishAnswer:
        return await self.engine.publish(PublishRequest(TENANT, names, messages, **of_request))

    async def receive(self, name: str, **how: Any) -> Sequence[ReceivedMessage]:
        return await self.engine.receive(TENANT, name, **how)

    async def values(self, name: str, **how: Any) -> list[bytes]:
        """Values of messages that are taken, in order."""
        return [bytes(each.value) for each in await self.receive(name, **how)]

    async def ack(self, name: str, messages: Sequence[ReceivedMessage]) -> int:
        settled = await self.engine.ack(TENANT, name, [each.receipt for each in messages])
        return settled.done

    async def drain(self, name: str) -> list[bytes]:
        """Values of all messages that are ready, which are acknowledged."""
        found: list[bytes] = []
        while there := await self.receive(name, limit=100):
            found += [bytes(each.value) for each in there]
            await self.ack(name, there)
        return found

    async def peek(self, name: str, **how: Any) -> list[tuple[int, str, bytes | None]]:
        """Sequence, state and value of what lies in a queue."""
        answer = await self.engine.peek(TENANT, name, **how)
        return [
            (each.sequence, each.state, None if each.value is None else bytes(each.value))
            for each in answer.messages
        ]

    async def describe(self, name: str) -> Any:
        return await self.engine.describe_queue(TENANT, name)

    async def arrived(self, but: int = 0) -> None:
        """Return when nothing is on its way any more, but for so many messages."""
        while sum(each.count for each in (await self.engine.storage()).outgoing) > but:
            pass


@asynccontextmanager
async def an_engine(directory: Path, **settings: Any) -> AsyncIterator[Engine]:
    engine = Engine(directory, SETTINGS._replace(**settings))
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()
