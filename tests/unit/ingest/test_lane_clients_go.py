"""Clients that go, and a listener that closes, at any time of any conversation: what was held for
their appends is given back, by both ways."""

import asyncio
import random
from pathlib import Path

import pytest
from support.lane import Served, served
from support.waiting import eventually

from bottomless_server.runtime.listener.protocol import BoundedProtocol
from unit.ingest.test_lane_differences import Sent, conversation, pieces, request, typed
from unit.runtime.test_runtime_protocol import as_served

CLIENTS = 40
FIRST = Sent(request(b'{"records": [{"value": "x"}]}', typed("application/json")))


async def goes(side: Served, rng: random.Random) -> None:
    """Send a part of a conversation, and go without a word, or by closing one's own side."""
    sent = conversation(rng)
    parts = pieces(rng, sent)
    whole = parts[: rng.randrange(1, len(parts) + 1)]
    whole[-1] = whole[-1][: rng.randrange(1, len(whole[-1]) + 1)]
    _, writer = await asyncio.open_connection("127.0.0.1", side.listener.port)
    for part in whole:
        writer.write(part)
        for _ in range(rng.choice([0, 1, 5, 40])):
            await asyncio.sleep(0)
    if rng.random() < 0.3:
        writer.close()
    else:
        writer.transport.abort()


async def first(side: Served) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", side.listener.port)
    writer.write(FIRST.message)
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    writer.transport.abort()


def held(side: Served) -> tuple[int, int, int, int, bytes]:
    service = side.harness.service
    shown = side.front.metrics.render().splitlines()
    [in_flight] = [x for x in shown if x.startswith(b"bottomless_http_requests_in_flight ")]
    return (
        len(side.listener.connections),
        service.under_way.count,
        service.room.admission.total,
        side.listener.connections.body_bytes,
        in_flight.split()[1],
    )


@pytest.mark.parametrize("by_lane", [False, True])
@pytest.mark.parametrize("closes", [False, True])
@as_served
async def test_nothing_is_held_for_clients_that_went(
    tmp_path: Path, by_lane: bool, closes: bool
) -> None:
    rng = random.Random(7)
    async with served(tmp_path / "i", by_lane=by_lane) as side:
        await first(side)
        together = [goes(side, rng) for _ in range(CLIENTS)]
        await asyncio.gather(*together)
        if closes:
            for connection in side.listener.connections:
                assert isinstance(connection, BoundedProtocol)
                connection.shutdown()
        await eventually(lambda: held(side) == (0, 0, 0, 0, b"0.0"))
        assert side.lane is None or side.lane.taken > 0
