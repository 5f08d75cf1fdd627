"""The port of ingest for streams of the local profile, on a node that serves none of them.

Such a node has no disk, owns nothing and claims nothing: whoever asks it for a local stream is passed
on to the stream's owner, or, where it has none, to a node that may claim it.
"""

from typing import NoReturn

from bottomless.model.names import StreamId
from bottomless_server.coordination.base import Coordination
from bottomless_server.node.core.ownership import OwnedElsewhere
from bottomless_server.node.lease import Clocks
from bottomless_server.node.stream_nodes import StreamNodes


class ElsewhereAppenders:
    """The `Appenders` of the local profile where no stream of it can be appended to."""

    def __init__(self, coordination: Coordination, clocks: Clocks) -> None:
        self._nodes = StreamNodes(coordination, clocks.monotonic)

    async def get(self, stream_id: StreamId) -> NoReturn:
        """Tell which node has to be asked.

        Raises:
            NotFound: there is no such stream.
            OwnedElsewhere: another node has to be asked.
            Unavailable: no node can be asked now; outcome none.
        """
        raise OwnedElsewhere(await self._nodes.url_of(stream_id))

    def forget_elsewhere(self, stream_id: StreamId) -> None:
        """Ask anew who owns a stream."""
        self._nodes.forget_stream(stream_id)

    def at_once(self, stream_id: StreamId) -> None:
        """Say None: nothing is appended here without another node."""

    def forget_owner(self, owner_url: str) -> None:
        """Look again where the streams of a node are that may own none any more."""
        self._nodes.forget(owner_url)
