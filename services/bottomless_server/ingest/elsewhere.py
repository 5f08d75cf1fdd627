"""The port of ingest for streams of the local profile, on a node that serves none of them.

Such a node has no disk, owns nothing and claims nothing: whoever asks it for a local stream is passed
on to the stream's owner, or, where it has none, to a node that may claim it.
"""

from typing import Final, NoReturn

from cachetools import TTLCache

from bottomless.model.names import StreamId
from bottomless.model.stream import StreamRecord, StreamState
from bottomless_server.coordination.base import Coordination
from bottomless_server.core.not_found import stream_not_found
from bottomless_server.node.core.ownership import OwnedElsewhere, not_owner
from bottomless_server.node.lease import Clocks
from bottomless_server.stores.ingest_nodes import live_nodes
from bottomless_server.stores.streams import Streams, node_key

_COUNT_MAX: Final = 100_000
_SECONDS: Final = 1.0
"""How long it is remembered where a stream is, as nodes with a disk remember it."""


class ElsewhereAppenders:
    """The `Appenders` of the local profile where no stream of it can be appended to."""

    def __init__(self, coordination: Coordination, clocks: Clocks) -> None:
        self._coordination = coordination
        self._streams = Streams(coordination)
        self._urls: TTLCache[StreamId, str] = TTLCache(_COUNT_MAX, _SECONDS, clocks.monotonic)

    async def get(self, stream_id: StreamId) -> NoReturn:
        """Tell which node has to be asked.

        Raises:
            NotFound: there is no such stream.
            OwnedElsewhere: another node has to be asked.
            Unavailable: no node can be asked now; outcome none.
        """
        url = self._urls.get(stream_id)
        if url is None:
            url = await self._url_of(await self._streams.load(stream_id))
            self._urls[stream_id] = url
        raise OwnedElsewhere(url)

    def at_once(self, stream_id: StreamId) -> None:
        """Say None: nothing is appended here without another node."""

    def forget_owner(self, owner_url: str) -> None:
        """Look again where the streams of a node are that may own none any more."""
        for stream_id, url in list(self._urls.items()):
            if url == owner_url:
                self._urls.pop(stream_id, None)

    async def _url_of(self, record: StreamRecord) -> str:
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
        nodes = await live_nodes(self._coordination)
        if not nodes:
            raise not_owner()
        # The same one for each who asks, so that they do not take it from one another.
        return nodes[int(record.stream_id.replace("-", ""), 16) % len(nodes)].url
