"""Requests about what other nodes own: sent on to the owner, and counted."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from starlette.types import Receive, Scope

from bottomless.errors import Unavailable
from bottomless_server.node.core.ownership import OwnedElsewhere
from bottomless_server.node.forwarding import Answer, Forwarding
from bottomless_server.node.under_way import RequestsUnderWay


class ForwardCounts(Protocol):
    """What is counted of requests that are sent on."""

    forwarded: int
    forwarded_unanswered: int


class ForwardedRequests:
    """Sends requests on, and forgets owners that turn out to be none."""

    def __init__(
        self,
        forwarding: Forwarding,
        under_way: RequestsUnderWay,
        counts: ForwardCounts,
        forget_owner: Callable[[str], None],
    ) -> None:
        """`forget_owner` is told the address of a node that may own nothing any more."""
        self._forwarding = forwarding
        self._under_way = under_way
        self._counts = counts
        self._forget_owner = forget_owner

    async def ask(
        self,
        owner: OwnedElsewhere,
        scope: Scope,
        receive: Receive,
        hold: Callable[[int], Awaitable[None]] | None = None,
    ) -> Answer:
        """What the owner answers to a request. `hold` is awaited with the bytes of the answer before
        they are read.

        Raises:
            ClientGone: the client left before its whole body was here.
            Unavailable: the owner does not answer, as `Forwarding.ask` tells it.
        """
        with self._under_way.counted():
            self._counts.forwarded += 1
            try:
                answer = await self._forwarding.ask(owner.owner_url, scope, receive, hold)
            except Unavailable:
                self._counts.forwarded_unanswered += 1
                self._forget_owner(owner.owner_url)
                raise
            if answer.disowned:
                self._forget_owner(owner.owner_url)
            return answer

    async def tell(
        self,
        owner: OwnedElsewhere,
        method: str,
        target: str,
        body: bytes,
        headers: Mapping[str, str],
    ) -> None:
        """Send the owner a request of our own about one that was sent on; nobody hears of its answer.

        Raises:
            Unavailable: the owner does not answer.
        """
        with self._under_way.counted():
            await self._forwarding.send(owner.owner_url, method, target, body, headers)

    async def aclose(self) -> None:
        """Close the connections to other nodes."""
        await self._forwarding.aclose()
