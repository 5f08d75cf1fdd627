"""A process that publishes, receives, acknowledges and dead-letters until it is killed, and says what it was answered.

Each line is a word and a value; it is written before a request (`asks`, `acks`) or after its answer
(`stored`, `acked`). Whoever reads the lines knows afterwards what has to be there, and what must not be.
A value is unique, and carries its own checksum.
"""

import asyncio
import os
import random
import sys
import time
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final

from bottomless.errors import StoreError
from bottomless.model.queue import parse_queue_config
from bottomless_server.queues.calls import OutMessage, PublishRequest, ReceivedMessage
from bottomless_server.queues.engine import QueueEngine
from bottomless_server.queues.settings import EngineSettings

TENANT: Final = "default"
SETTINGS: Final = EngineSettings(
    file_bytes_max=20_000,
    free_bytes_min=0,
    compact_quiet_ms=0,
    compact_bytes_per_second=0,
    ledger_cache_bytes=2**20,
    wal_bytes_max=100_000,
    read_thread_count=2,
    housekeeping_ms=1,
)
VISIBILITY_MS: Final = 30
CONFIG: Final = {
    "visibility_ms": VISIBILITY_MS,
    "max_deliveries": 2,
    "dead_letter": {"queue": "dead"},
}


def value_of(name: str) -> bytes:
    """A value with this name; the longer ones make files full."""
    filler = name * (1 + len(name) * 7 % 90)
    return f"{name} {sha256(filler.encode()).hexdigest()} {filler}".encode()


def name_of(value: bytes | memoryview) -> str:
    """The name of a value, which must be whole."""
    name = bytes(value).split(b" ", 1)[0].decode()
    assert bytes(value) == value_of(name), "a message was altered"
    return name


def now() -> int:
    return time.time_ns() // 1_000_000


async def opened(directory: Path) -> QueueEngine:
    """The engine with its two queues."""
    engine = await QueueEngine.open(directory, SETTINGS, now)
    await engine.create_queue(TENANT, "dead", parse_queue_config({"visibility_ms": VISIBILITY_MS}))
    await engine.create_queue(TENANT, "jobs", parse_queue_config(CONFIG))
    return engine


class Program:
    """What goes on in one life."""

    def __init__(self, engine: QueueEngine, life: int, answers: int) -> None:
        self.engine = engine
        self.life = life
        self.answers = answers
        self.chance = random.Random(life)

    def say(self, word: str, names: Sequence[str]) -> None:
        os.write(self.answers, "".join(f"{word} {name}\n" for name in names).encode())

    async def publish(self, publisher: int) -> None:
        for number in range(sys.maxsize):
            count = self.chance.choice([1, 1, 3, 20])
            names = [f"{self.life}-{publisher}-{number}-{each}" for each in range(count)]
            self.say("asks", names)
            messages = [OutMessage(value_of(name)) for name in names]
            await self.engine.publish(PublishRequest(TENANT, ["jobs"], messages))
            self.say("stored", names)

    async def work(self, queue: str, reject: float) -> None:
        while True:
            there = await self.engine.receive(TENANT, queue, limit=30, wait_ms=1_000)
            good = [each for each in there if self.chance.random() < 0.8]
            bad = [each for each in there if each not in good and self.chance.random() < reject]
            await self.ack(queue, good)
            if bad:
                await self.engine.nack(TENANT, queue, [each.receipt for each in bad])

    async def ack(self, queue: str, messages: Sequence[ReceivedMessage]) -> None:
        if messages:
            names = {each.receipt: name_of(each.value) for each in messages}
            self.say("acks", list(names.values()))
            settled = await self.engine.ack(TENANT, queue, list(names))
            late = {*settled.gone, *settled.stale}
            self.say("acked", [name for receipt, name in names.items() if receipt not in late])

    async def run(self) -> None:
        await asyncio.gather(
            self.publish(0),
            self.publish(1),
            self.work("jobs", 0.5),
            self.work("jobs", 0.9),
            self.work("dead", 0.0),
        )


def run_until_killed(directory: Path, life: int, answers: int) -> None:
    """Go on for ever."""

    async def run() -> None:
        await Program(await opened(directory), life, answers).run()

    asyncio.run(run())


async def left(directory: Path) -> dict[str, list[str]]:
    """Names of all that is in each queue after a start, once nothing is on its way any more."""
    engine = await opened(directory)
    assert engine.start_report.damaged_count == 0
    while (await engine.storage()).outgoing:
        await asyncio.sleep(0.001)
    found: dict[str, list[str]] = {"jobs": [], "dead": []}
    for queue, names in found.items():
        after = None
        while True:
            page = await engine.peek(TENANT, queue, after=after, limit=1_000, bytes_max=2**24)
            names += [name_of(each.value or b"") for each in page.messages]
            after = page.after
            if after is None:
                break
    assert await engine.check() == []
    try:
        await engine.close()
    except StoreError as error:
        raise AssertionError("it does not stop in order") from error
    return found
