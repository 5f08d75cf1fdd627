"""What a node that follows the log of a stream has to know of what it owns itself."""

from bottomless.errors import Overloaded
from bottomless.guards import guard
from bottomless.model.names import StreamId
from bottomless.model.stream import StreamRecord
from bottomless_server.ingest.local.streams import OwnedStreams
from bottomless_server.node.core.following import LastOwned
from bottomless_server.node.owner import Owner
from bottomless_server.stores.streams import Streams


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

    def note_followed(self, stream_id: StreamId) -> None:
        """Note that another node opens the log here for its stream: damage is not for ever."""
        self._streams.note_followed(stream_id)

    def last_owned(self, stream_id: StreamId) -> LastOwned:
        """What this node knows of when it owned a stream last since its process began."""
        return self._streams.last_owned(stream_id)

    async def stop(self, stream_id: StreamId) -> tuple[int, int] | None:
        """Return when this node owns a stream no more, and has none of its files open.

        Returns the place from which on nothing in its log is believed; None if all of it is.
        """
        return await self._streams.give_files(stream_id)

    async def is_in_sync(self, stream_id: StreamId) -> bool:
        """Whether its record counts this node among those that have everything, and still will when
        what was asked for before has landed: the record is written as it is.

        Raises:
            StoreError: nobody can tell.
        """
        record = await as_it_is(self._owner.streams, stream_id)
        return self._owner.node_id in record.in_sync


@guard("a write before a log is thrown away")
async def as_it_is(streams: Streams, stream_id: StreamId) -> StreamRecord:
    """Write a record as it is. An admission whose reply was lost may still be on its way: it watches
    an older record, so it fails from now on, and nobody is counted on whose log is gone by then.

    Raises:
        NotFound, Unavailable
    """
    return await streams.update(stream_id, lambda record: record)


@guard("one task for the files of a stream")
def require_not_opening(streams: OwnedStreams, stream_id: StreamId) -> None:
    """Refuse to follow a stream while it is opened here for this node: that reads its files, and may
    cut them. Nobody waits for that here, since it may wait for its follower to let go.

    Raises:
        Overloaded: it is being opened.
    """
    if streams.is_opening(stream_id):
        raise Overloaded("this node looks whether the stream is its own", retry_after_seconds=1)
