"""The bounds of all partitions of a super stream, as `GET /v1/super-streams/{s}/offsets` shows them.

Each partition is asked as any stream is. Their bounds are of moments of their own: a super stream has
no order between its partitions, and so no moment that is that of all.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from bottomless.model.names import FullName
from bottomless.model.super_stream import Partition
from bottomless_server.protocol.peer import PeerPort
from bottomless_server.protocol.registry import ByNameAsked
from bottomless_server.protocol.supers import SuperSaid, decode_super_stream, super_by_name
from bottomless_server.reader.bounds import StreamBounds
from bottomless_server.runtime.base.end import end_tasks

_AT_ONCE: Final = 16
"""Partitions of one request that are asked side by side."""


class SuperOffsets:
    """Asks for the bounds of many streams; it keeps nothing of them."""

    def __init__(self, manifest: PeerPort, bounds: StreamBounds) -> None:
        self._manifest = manifest
        self._bounds = bounds

    async def show(self, name: FullName) -> dict[str, Any]:
        """Show the bounds of all partitions, in the order of their indexes.

        Raises:
            NotFound: there is no such super stream.
            Unavailable, Overloaded: those of one partition cannot be told now, so none are.
        """
        params = ByNameAsked(name.tenant).params()
        answer = await self._manifest.call("GET", super_by_name(name), params=params)
        said = decode_super_stream(answer.body)
        room = asyncio.Semaphore(_AT_ONCE)

        async def bounds_of(one: Partition) -> dict[str, Any]:
            async with room:
                bounds = await self._bounds.show(FullName(name.tenant, one.name), one.stream_id)
            return {"index": one.index, "stream": one.name, **bounds}

        return _told(said, await _all(*(bounds_of(one) for one in said.partitions)))


async def _all(*asked: Coroutine[Any, Any, dict[str, Any]]) -> list[dict[str, Any]]:
    """Wait for all of them; where one fails the others are ended, and what it raised is raised."""
    tasks = [asyncio.create_task(one) for one in asked]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await end_tasks(*tasks)


def _told(said: SuperSaid, partitions: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "name": said.name.name,
        "super_id": said.super_id,
        "state": said.state.value,
        "layout": said.layout.version,
        "partitions": partitions,
    }
