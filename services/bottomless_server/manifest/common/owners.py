"""Ask and tell the ingest node that owns a stream's tail.

The owner alone knows how far its log is durable; the manifest alone knows what is
published. Neither question is ever answered by a guess: no answer is None.
"""

from typing import Final, Protocol

from bottomless.errors import StoreError
from bottomless.model.names import StreamId
from bottomless_server.runtime.peers.peers import Peers

_LOCATE_SECONDS: Final = 5.0
_TELL_SECONDS: Final = 5.0


class Owners(Protocol):
    async def committed_next(
        self, url: str, stream_id: StreamId, timeout_seconds: float
    ) -> int | None:
        """The offset after the last durable record; None if the owner does not say."""
        ...

    async def published(
        self, url: str, stream_id: StreamId, next_offset: int, version: int
    ) -> bool:
        """Tell what may be freed; whether it was heard."""
        ...

    async def first_offset(
        self, url: str, stream_id: StreamId, timeout_seconds: float
    ) -> int | None:
        """Where the owner's log begins; None if the owner does not say."""
        ...

    async def close(self, url: str, stream_id: StreamId, timeout_seconds: float) -> bool:
        """Ask the owner to stop the stream; whether it said that it stopped."""
        ...

    async def aclose(self) -> None: ...


class PeerOwners:
    """Owners that are asked over HTTP, at their internal addresses."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def committed_next(
        self, url: str, stream_id: StreamId, timeout_seconds: float = _LOCATE_SECONDS
    ) -> int | None:
        return await self._bound("committed_next", url, stream_id, timeout_seconds)

    async def first_offset(
        self, url: str, stream_id: StreamId, timeout_seconds: float = _LOCATE_SECONDS
    ) -> int | None:
        return await self._bound("local_first_offset", url, stream_id, timeout_seconds)

    async def _bound(
        self, name: str, url: str, stream_id: StreamId, timeout_seconds: float
    ) -> int | None:
        path = f"/internal/v1/streams/{stream_id}/locate"
        try:
            answer = await self._peers.at(url).call(
                "GET", path, params={"timestamp": "0"}, timeout_seconds=timeout_seconds
            )
        except StoreError:
            return None
        found = answer.body.get(name) if isinstance(answer.body, dict) else None
        return found if isinstance(found, int) else None

    async def published(
        self, url: str, stream_id: StreamId, next_offset: int, version: int
    ) -> bool:
        path = f"/internal/v1/streams/{stream_id}/published"
        body = {"next_offset": next_offset, "version": version}
        try:
            await self._peers.at(url).call("PUT", path, body=body, timeout_seconds=_TELL_SECONDS)
        except StoreError:
            return False
        return True

    async def close(self, url: str, stream_id: StreamId, timeout_seconds: float) -> bool:
        path = f"/internal/v1/streams/{stream_id}/close"
        try:
            await self._peers.at(url).call("POST", path, timeout_seconds=timeout_seconds)
        except StoreError:
            return False
        return True

    async def aclose(self) -> None:
        await self._peers.aclose()
