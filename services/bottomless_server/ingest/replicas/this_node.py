"""What a node that follows the log of a stream has to know of what it owns itself."""

from bottomless.errors import Overloaded
from bottomless.guards import guard
from bottomless.model.names import StreamId
from bottomless_server.ingest.local.streams import OwnedStreams
from bottomless_server.node.owner import Owner


class ThisNode:
    """The streams that this node owns, for those that it follows: one task has the files of a stream."""

    def __init__(self, streams: OwnedStreams, owner: Owner) -> None:
        self._streams = streams
        self._owner = owner

    def owned_epoch(self, stream_id: StreamId) -> int | None:
        """The epoch under which this node owns a stream now; None if it does not.

        Raises:
            Overloaded: it is just being opened here, and nobody knows yet who will own it.
        """
        require_not_opening(self._streams, stream_id)
        appender = self._streams.find(stream_id)
        return None if appender is None else appender.claim.epoch

    async def stop(self, stream_id: StreamId) -> tuple[int, int] | None:
        """Return when this node owns a stream no more, and has none of its files open.

        Returns the place from which on nothing in its log is believed; None if all of it is.
        """
        return await self._streams.give_files(stream_id)

    async def is_in_sync(self, stream_id: StreamId) -> bool:
        """Whether its record counts this node among those that have everything, read just now.

        Raises:
            StoreError: nobody can tell.
        """
        record = await self._owner.load(stream_id)
        return self._owner.node_id in record.in_sync


@guard("one task for the files of a stream")
def require_not_opening(streams: OwnedStreams, stream_id: StreamId) -> None:
    """Refuse to follow a stream while it is opened here for this node: that reads its files, and may
    cut them. Nobody waits for that here, since it may wait for its follower to let go.

    Raises:
        Overloaded: it is being opened.
    """
    if streams.is_opening(stream_id):
        raise Overloaded("this node looks whether the stream is its own", retry_after_seconds=1)
