"""Every stream from its first record to its end, as a user reads it."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import httpx

from bench.loadtest.histogram import Histogram
from bench.loadtest.ledger import ProducerLedger, StreamReading

AT_ONCE: Final = 8
"""Streams that are read at a time."""
PAGE_RECORDS: Final = 1_000
AGAIN_SECONDS: Final = 0.5
PATIENCE_SECONDS: Final = 300.0
"""An answer has to come by then: nothing disturbs any more."""


async def read_all(
    url: str,
    ledgers: Mapping[str, Sequence[ProducerLedger]],
    latency: Histogram,
    transport: httpx.AsyncBaseTransport | None = None,
) -> list[StreamReading]:
    """Read each stream once; a stream that cannot be read has that as its fault. `transport` stands
    for the network in tests."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(client: httpx.AsyncClient, stream: str) -> StreamReading:
        reading = StreamReading(stream, ledgers[stream])
        async with room:
            await _read(client, reading, latency)
        return reading

    async with httpx.AsyncClient(base_url=url, timeout=60, transport=transport) as client:
        return list(await asyncio.gather(*(one(client, stream) for stream in ledgers)))


async def _read(client: httpx.AsyncClient, reading: StreamReading, latency: Histogram) -> None:
    loop = asyncio.get_running_loop()
    deadline, said = loop.time() + PATIENCE_SECONDS, ""
    while loop.time() < deadline:
        begun = loop.time()
        try:
            answer = await client.get(
                f"/v1/streams/{reading.stream}/records",
                params={
                    "offset": reading.next_offset,
                    "limit": PAGE_RECORDS,
                    "on_out_of_range": "error",
                },
            )
        except httpx.TransportError as error:
            said = repr(error)
        else:
            if answer.is_success:
                latency.add((loop.time() - begun) * 1000)
                page: dict[str, Any] = answer.json()
                for record in page["records"]:
                    reading.take(record["offset"], record.get("value", ""))
                if page["up_to_date"]:
                    reading.finish()
                    return
                deadline = loop.time() + PATIENCE_SECONDS
                continue
            said = f"{answer.status_code} {answer.text[:200]}"
        await asyncio.sleep(AGAIN_SECONDS)
    reading.faults.append(f"{reading.stream}: cannot be read from {reading.next_offset}: {said}")
    reading.fault_count += 1
