"""What this node knows of the owners of streams that it does not own, for a moment."""

from collections.abc import Callable
from typing import Final

import structlog
from cachetools import TTLCache

from bottomless.errors import StoreError
from bottomless.model.names import StreamId
from bottomless_server.node.core.ownership import OwnedElsewhere
from bottomless_server.node.owner import Owner

log = structlog.get_logger(__name__)

_COUNT_MAX: Final = 100_000
_SECONDS: Final = 1.0
"""How long it is remembered that another node owns a stream: a shorter time costs coordination a
question with each request that is passed on, a longer one lets a stream wait that was released."""


class OtherOwners:
    """The nodes that own streams which were asked for here, each remembered for a second."""

    def __init__(self, owner: Owner, monotonic: Callable[[], float]) -> None:
        self._owner = owner
        self._urls: TTLCache[StreamId, str] = TTLCache(_COUNT_MAX, _SECONDS, monotonic)
        """Their internal addresses."""

    def require_none(self, stream_id: StreamId) -> None:
        """Pass on what is asked of a stream that is known to be another node's.

        Raises:
            OwnedElsewhere
        """
        owner_url = self._urls.get(stream_id)
        if owner_url is not None:
            raise OwnedElsewhere(owner_url)

    async def require_claimable(self, stream_id: StreamId) -> None:
        """Ask coordination whether this node may claim a stream.

        Raises:
            OwnedElsewhere: its owner lives, and is remembered.
            StoreError: as `Owner.require_claimable`.
        """
        try:
            await self._owner.require_claimable(stream_id)
        except OwnedElsewhere as error:
            self.note(stream_id, error.owner_url)
            raise

    async def look_for(self, stream_id: StreamId) -> None:
        """Pass on what is asked of a stream that cannot be opened here, if another node owns it.

        Raises:
            OwnedElsewhere
        """
        self.require_none(stream_id)
        try:
            await self.require_claimable(stream_id)
        except OwnedElsewhere:
            raise
        except StoreError as error:
            log.warning("nobody says who owns it", stream_id=stream_id, error=str(error))

    def note(self, stream_id: StreamId, owner_url: str) -> None:
        """Remember which node owns a stream."""
        self._urls[stream_id] = owner_url

    def forget(self, stream_id: StreamId) -> None:
        """Ask coordination again who owns a stream, since somebody says that it was given to this node."""
        self._urls.pop(stream_id, None)

    def forget_owner(self, owner_url: str) -> None:
        """Ask coordination again about the streams of a node that may own none any more."""
        for stream_id, url in list(self._urls.items()):
            if url == owner_url:
                self._urls.pop(stream_id, None)
