"""rstream as its users call it; runs under the Python of `.bench`, and says what ours.py says.

    python bench/clients/rabbit.py PORT STREAM SECONDS send_batch|send|sub_entry|consume

The clock stops when the last message is confirmed; `consume` reads SECONDS messages, rather than
for so long.
"""

import asyncio
import json
import sys
import time
from typing import Any

from rstream import (
    Consumer,
    ConsumerOffsetSpecification,
    OffsetType,
    Producer,
)

VALUE = b"x" * 100
MANY = 1_000
LOGIN = {"host": "127.0.0.1", "username": "guest", "password": "guest"}
BEHIND_MAX = 100_000
"""Messages that may wait for their confirms."""


async def produce(port: int, stream: str, seconds: float, way: str) -> tuple[int, float]:
    count = confirmed = 0
    moved = asyncio.Event()

    async def on_confirm(_: Any) -> None:
        nonlocal confirmed
        confirmed += MANY if way == "sub_entry" else 1
        moved.set()

    async def until_behind_by(limit: int) -> None:
        while count - confirmed > limit:
            moved.clear()
            await moved.wait()

    async with Producer(port=port, **LOGIN) as producer:
        started = time.perf_counter()
        deadline = started + seconds
        while time.perf_counter() < deadline:
            if way == "send_batch":
                await producer.send_batch(stream, [VALUE] * MANY, on_publish_confirm=on_confirm)
            elif way == "sub_entry":
                await producer.send_sub_entry(stream, [VALUE] * MANY, on_publish_confirm=on_confirm)
            else:
                for _ in range(MANY):
                    await producer.send(stream, VALUE, on_publish_confirm=on_confirm)
            count += MANY
            await until_behind_by(BEHIND_MAX)
        await until_behind_by(0)
        return count, time.perf_counter() - started


async def consume(port: int, stream: str, wanted: int) -> tuple[int, float]:
    count = 0
    ended = 0.0
    consumer = Consumer(port=port, **LOGIN)

    async def on_message(*_: Any) -> None:
        nonlocal count, ended
        count += 1
        if count == wanted:
            ended = time.perf_counter()
            await consumer.close()

    started = time.perf_counter()
    await consumer.start()
    first = ConsumerOffsetSpecification(OffsetType.FIRST, None)
    await consumer.subscribe(
        stream, on_message, decoder=bytes, offset_specification=first, initial_credit=50
    )
    await consumer.run()
    return count, ended - started


def main() -> None:
    port, stream, amount, way = int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), sys.argv[4]
    if way == "consume":
        done = consume(port, stream, int(amount))
    else:
        done = produce(port, stream, amount, way)
    count, seconds = asyncio.run(done)
    print(json.dumps({"units": count, "seconds": seconds, "cpu": time.process_time()}))


if __name__ == "__main__":
    main()
