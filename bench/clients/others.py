"""The Python clients of NATS, Valkey and Kafka, as their users call them; says what ours.py says.

    python bench/clients/others.py nats|valkey|kafka PORT SECONDS

Each sends records of 100 bytes, and waits until all are acknowledged.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable
from typing import Any

import nats
from aiokafka import AIOKafkaProducer
from redis.asyncio import Redis

VALUE = b"x" * 100
MANY = 1_000
TOPIC = "bench"


async def to_nats(port: int, seconds: float) -> tuple[int, float]:
    connection = await nats.connect(f"nats://127.0.0.1:{port}")
    stream = connection.jetstream(publish_async_max_pending=4 * MANY)
    count = 0
    started = time.perf_counter()
    while time.perf_counter() < started + seconds:
        waiting = [await stream.publish_async(TOPIC, VALUE) for _ in range(MANY)]
        await asyncio.gather(*waiting)
        count += MANY
    spent = time.perf_counter() - started
    await connection.close()
    return count, spent


async def to_valkey(port: int, seconds: float) -> tuple[int, float]:
    count = 0
    async with Redis(port=port) as client:
        started = time.perf_counter()
        while time.perf_counter() < started + seconds:
            async with client.pipeline(transaction=False) as pipe:
                for _ in range(MANY):
                    pipe.xadd(TOPIC, {"v": VALUE})
                await pipe.execute()
            count += MANY
        return count, time.perf_counter() - started


async def to_kafka(port: int, seconds: float) -> tuple[int, float]:
    count = 0
    producer = AIOKafkaProducer(
        bootstrap_servers=f"127.0.0.1:{port}", linger_ms=5, max_batch_size=1 << 20
    )
    await producer.start()
    try:
        started = time.perf_counter()
        while time.perf_counter() < started + seconds:
            waiting: list[Awaitable[Any]] = [
                await producer.send(TOPIC, VALUE) for _ in range(10 * MANY)
            ]
            await asyncio.gather(*waiting)
            count += 10 * MANY
        return count, time.perf_counter() - started
    finally:
        await producer.stop()


def main() -> None:
    peer, port, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    send = {"nats": to_nats, "valkey": to_valkey, "kafka": to_kafka}[peer]
    count, spent = asyncio.run(send(port, seconds))
    print(json.dumps({"units": count, "seconds": spent, "cpu": time.process_time()}))


if __name__ == "__main__":
    main()
