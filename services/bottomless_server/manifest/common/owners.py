"""Ask and tell the ingest node that owns a stream's tail.

The owner alone knows how far its log is durable; the manifest alone knows what is
published. Neither question is ever answered by a guess: no answer is None.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

from bottomless.errors import StoreError
from bottomless.model.names import NodeId, StreamId
from bottomless_server.protocol.held import HELD, HeldThere, decode_held
from bottomless_server.protocol.members import MEMBERS, MemberChange, encode_members_asked
from bottomless_server.protocol.parts import LAYOUT, encode_layout
from bottomless_server.protocol.paths import of_stream
from bottomless_server.protocol.peer import PeersPort
from bottomless_server.protocol.places import (
    PLACES,
    TailPlace,
    decode_places,
    encode_places_asked,
)
from bottomless_server.protocol.replica import NODE_HEADER
from bottomless_server.protocol.tail import (
    CLOSE,
    LOCATE,
    PUBLISHED,
    Bounds,
    LocateAsked,
    Published,
    decode_located,
    encode_published,
)
from bottomless_server.protocol.transfer import TRANSFER, encode_transfer_asked

_LOCATE_SECONDS: Final = 5.0
_TELL_SECONDS: Final = 5.0


class NodeAt(NamedTuple):
    """A node and its internal address. Another one that answers there by now refuses what is for this one."""

    node: NodeId
    url: str


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

    async def places(
        self, url: str, stream_id: StreamId, offsets: Sequence[int], timeout_seconds: float
    ) -> list[TailPlace | None] | None:
        """Where these offsets lie in the owner's log, None of one that does not; None if the owner
        does not say."""
        ...

    async def close(self, at: NodeAt, stream_id: StreamId, timeout_seconds: float) -> bool:
        """Ask the owner to stop the stream; whether it said that it stopped."""
        ...

    async def transfer(
        self, at: NodeAt, stream_id: StreamId, node: NodeId, timeout_seconds: float
    ) -> None:
        """Have the owner give the stream to another node that holds it; returns once it has.

        Raises:
            Fenced: `not-in-sync`.
            StoreError: it is not given, or nobody knows.
        """
        ...

    async def change_members(
        self,
        at: NodeAt,
        stream_id: StreamId,
        change: MemberChange,
        node: NodeId,
        timeout_seconds: float,
    ) -> None:
        """Have the owner take a node in, or let one go; returns once the record says so.

        Raises:
            Fenced: `home-live`, `not-in-sync`.
            StoreError: it is not done, or nobody knows.
        """
        ...

    async def held(
        self, at: NodeAt, stream_id: StreamId, timeout_seconds: float
    ) -> HeldThere | None:
        """What a node has of the stream's log, be it the owner or not; None if it does not say."""
        ...

    async def fence_layouts(
        self, at: NodeAt, stream_id: StreamId, layout: int, timeout_seconds: float
    ) -> bool:
        """Ask the owner of a partition to take no part of an older layout; whether it said so."""
        ...

    async def aclose(self) -> None: ...


class PeerOwners:
    """Owners that are asked over HTTP, at their internal addresses."""

    def __init__(self, peers: PeersPort) -> None:
        self._peers = peers

    async def committed_next(
        self, url: str, stream_id: StreamId, timeout_seconds: float = _LOCATE_SECONDS
    ) -> int | None:
        bounds = await self._bounds(url, stream_id, timeout_seconds)
        return None if bounds is None else bounds.committed_next

    async def first_offset(
        self, url: str, stream_id: StreamId, timeout_seconds: float = _LOCATE_SECONDS
    ) -> int | None:
        bounds = await self._bounds(url, stream_id, timeout_seconds)
        return None if bounds is None else bounds.local_first_offset

    async def _bounds(self, url: str, stream_id: StreamId, timeout_seconds: float) -> Bounds | None:
        # Which time is asked for does not matter: the bounds stand beside every answer.
        params = LocateAsked(timestamp=0).params()
        try:
            answer = await self._peers.at(url).call(
                "GET", of_stream(LOCATE, stream_id), params=params, timeout_seconds=timeout_seconds
            )
            return decode_located(answer.body).bounds
        except StoreError:
            return None

    async def places(
        self, url: str, stream_id: StreamId, offsets: Sequence[int], timeout_seconds: float
    ) -> list[TailPlace | None] | None:
        path, body = of_stream(PLACES, stream_id), encode_places_asked(offsets)
        try:
            answer = await self._peers.at(url).call(
                "POST", path, body=body, timeout_seconds=timeout_seconds
            )
            return decode_places(answer.body)
        except StoreError:
            return None

    async def published(
        self, url: str, stream_id: StreamId, next_offset: int, version: int
    ) -> bool:
        path = of_stream(PUBLISHED, stream_id)
        body = encode_published(Published(next_offset, version))
        try:
            await self._peers.at(url).call("PUT", path, body=body, timeout_seconds=_TELL_SECONDS)
        except StoreError:
            return False
        return True

    async def close(self, at: NodeAt, stream_id: StreamId, timeout_seconds: float) -> bool:
        try:
            await self._ask(at, of_stream(CLOSE, stream_id), None, timeout_seconds)
        except StoreError:
            return False
        return True

    async def transfer(
        self, at: NodeAt, stream_id: StreamId, node: NodeId, timeout_seconds: float
    ) -> None:
        path, body = of_stream(TRANSFER, stream_id), encode_transfer_asked(node)
        await self._ask(at, path, body, timeout_seconds)

    async def change_members(
        self,
        at: NodeAt,
        stream_id: StreamId,
        change: MemberChange,
        node: NodeId,
        timeout_seconds: float,
    ) -> None:
        path, body = of_stream(MEMBERS, stream_id), encode_members_asked(change, node)
        await self._ask(at, path, body, timeout_seconds)

    async def held(
        self, at: NodeAt, stream_id: StreamId, timeout_seconds: float
    ) -> HeldThere | None:
        path = of_stream(HELD, stream_id)
        try:
            answer = await self._peers.at(at.url).call(
                "GET", path, headers={NODE_HEADER: at.node}, timeout_seconds=timeout_seconds
            )
            return decode_held(answer.body)
        except StoreError:
            return None

    async def _ask(
        self, at: NodeAt, path: str, body: Any, timeout_seconds: float, method: str = "POST"
    ) -> None:
        await self._peers.at(at.url).call(
            method,
            path,
            body=body,
            headers={NODE_HEADER: at.node},
            timeout_seconds=timeout_seconds,
        )

    async def fence_layouts(
        self, at: NodeAt, stream_id: StreamId, layout: int, timeout_seconds: float
    ) -> bool:
        path, body = of_stream(LAYOUT, stream_id), encode_layout(layout)
        try:
            await self._ask(at, path, body, timeout_seconds, "PUT")
        except StoreError:
            return False
        return True

    async def aclose(self) -> None:
        await self._peers.aclose()
