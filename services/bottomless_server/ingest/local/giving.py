"""Streams that other nodes are to have: stopped here, given, and parted with.

Each of these runs in the place of an opening, of which there is one for each stream: so the stream is
not opened here meanwhile, and whoever asks for it waits, and hears what became of it.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress

from bottomless.errors import StoreError
from bottomless.model.names import StreamId
from bottomless_server.ingest.local.appender import LocalAppender
from bottomless_server.ingest.local.opening import Opener
from bottomless_server.ingest.local.streams import NotOpened, OwnedStreams
from bottomless_server.node.core.ownership import OwnedElsewhere, not_owner


class Giving:
    """Gives streams of this node to other nodes, and removes the logs of those that other nodes have."""

    def __init__(self, streams: OwnedStreams, opener: Opener) -> None:
        self._streams = streams
        self._opener = opener

    async def hand_over(
        self, stream_id: StreamId, give: Callable[[LocalAppender], Awaitable[str]]
    ) -> None:
        """Stop a stream that is open, and return when `give` has made another node its owner.

        `give` gets the appender, which has stopped, and returns the internal address of that node.
        Where `give` fails the stream is opened here again.

        Raises:
            Unavailable: `not-owner`: it is not open here.
            StoreError: what `give` raised.
        """
        refused: list[StoreError] = []

        async def hand_over() -> LocalAppender:
            appender = self._streams.find(stream_id)
            assert appender is not None, "it was open when this began"
            await appender.close(not_owner(), leave=False)
            self._streams.note_closed(appender)
            try:
                owner_url = await give(appender)
            except StoreError as error:
                refused.append(error)
                return await self._streams.open_in_turn(stream_id)
            self._streams.note_given(stream_id, owner_url)
            raise OwnedElsewhere(owner_url)

        await self._streams.opening_ended(stream_id)
        if not self._streams.owns(stream_id) or self._streams.is_opening(stream_id):
            raise not_owner()
        try:
            await self._streams.instead_of_opening(stream_id, hand_over)
        except OwnedElsewhere:
            # Also where `give` did not hear that it was done.
            return
        raise refused[0]

    async def give_unopened(self, stream_id: StreamId, give: Callable[[], Awaitable[str]]) -> None:
        """Return when `give` has made another node the owner of a stream that is not open here.

        `give` returns the internal address of that node.

        Raises:
            Unavailable: `not-owner`: it is open here, or is just being opened.
            StoreError: what `give` raised.
        """

        async def give_it() -> LocalAppender:
            before = self._streams.find(stream_id)
            if before is not None:
                await before.close(not_owner(), leave=False)
            owner_url = await give()
            self._streams.note_given(stream_id, owner_url)
            raise OwnedElsewhere(owner_url)

        if self._streams.owns(stream_id) or self._streams.is_opening(stream_id):
            raise not_owner()
        with suppress(OwnedElsewhere):
            await self._streams.instead_of_opening(stream_id, give_it)

    async def part_with(self, stream_id: StreamId) -> bool:
        """Remove what lies here of a stream that other nodes hold now, if object storage has all of it; returns
        whether it is gone. Meanwhile it is neither opened nor followed.

        Raises:
            StoreError: that cannot be told now; the same again is right.
        """
        gone: list[StreamId] = []

        async def part() -> LocalAppender:
            is_free = not self._streams.has_open_files(stream_id)
            if is_free and await self._opener.part_with(stream_id):
                self._streams.forget(stream_id)
                gone.append(stream_id)
            raise NotOpened

        if self._streams.is_stopping or self._streams.is_opening(stream_id):
            return False
        try:
            await self._streams.instead_of_opening(stream_id, part)
        except NotOpened:
            return bool(gone)
        raise AssertionError("it opens nothing")
