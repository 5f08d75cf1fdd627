"""The ingest node that has to be asked for a stream, for processes that own none: its owner, or one that
may claim it.
"""

from collections.abc import Callable
from typing import Final

from cachetools import TTLCache

from bottomless.model.names import StreamId
from bottomless.model.stream import StreamRecord, StreamState
from bottomless_server.coordination.base import Coordination
from bottomless_server.core.not_found import stream_not_found
from bottomless_server.node.core.ownership import not_owner
from bottomless_server.stores.ingest_nodes import claiming_nodes
from bottomless_server.stores.streams import Streams, node_key

_COUNT_MAX: Final = 100_000
_SECONDS: Final = 1.0
"""How long it is remembered where a stream is, as nodes with a disk remember it."""


class StreamNodes:
    """The addresses of ingest nodes, by the streams that they are asked for."""

    def __init__(self, coordination: Coordination, monotonic: Callable[[], float]) -> None:
        self._coordination = coordination
        self._streams = Streams(coordination)
        self._urls: TTLCache[StreamId, str] = TTLCache(_COUNT_MAX, _SECONDS, monotonic)

    async def url_of(self, stream_id: StreamId) -> str:
        """The address of the node that has to be asked.

        Raises:
            NotFound: there is no such stream.
            Unavailable: no node can be asked now; outcome none.
        """
        url = self._urls.get(stream_id)
        if url is None:
            url = await self._look_up(await self._streams.load(stream_id))
            self._urls[stream_id] = url
        return url

    def forget(self, url: str) -> None:
        """Look again where the streams of a node are that may own none any more."""
        for stream_id, known in list(self._urls.items()):
            if known == url:
                self._urls.pop(stream_id, None)

    def forget_stream(self, stream_id: StreamId) -> None:
        """Look again where a stream is."""
        self._urls.pop(stream_id, None)

    async def _look_up(self, record: StreamRecord) -> str:
        if record.state is not StreamState.ACTIVE:
            raise stream_not_found()
        home = record.home
        if home is not None and record.owner_url is not None:
            [held] = await self._coordination.get_many([node_key(home)])
            if held is not None:
                return record.owner_url
            if record.dirty:
                # Its records may be on that disk alone, so nobody else may claim it.
                raise not_owner()
        nodes = await claiming_nodes(self._coordination)
        if not nodes:
            raise not_owner()
        # The same one for each who asks, so that they do not take it from one another.
        return nodes[int(record.stream_id.replace("-", ""), 16) % len(nodes)].url
