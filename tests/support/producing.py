"""A producer against a stream that a test scripts."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from bottomless.client import AsyncClient
from bottomless.client.producer import AsyncProducer
from support.raw_server import Asked, RawServer, raw_server
from support.strict_ingest import StrictIngest


@asynccontextmanager
async def producing(
    ingest: StrictIngest, **options: object
) -> AsyncIterator[tuple[AsyncProducer, RawServer]]:
    """A producer of small batches, which is not closed in good order unless a test does it."""
    given = {"batch_bytes": 100, "linger_seconds": 0.001, **options}
    async with raw_server(ingest) as server, AsyncClient(server.url) as client:
        producer = client.producer("orders", **given)  # type: ignore[arg-type]
        await producer.start()
        try:
            yield producer, server
        finally:
            await producer.abort()


def values(count: int) -> list[bytes]:
    return [b"%06d" % number for number in range(count)]


async def never(_: Asked, __: Callable[[], bytes]) -> bytes:
    await asyncio.Event().wait()
    raise AssertionError
