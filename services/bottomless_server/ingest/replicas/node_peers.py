"""The ways to other nodes, by what they say of themselves in coordination.

A node that was started again may have another address, and coordination says which. It is asked before
the first call and again after one that nobody answered; in between nothing is asked. So a node that is
away costs a question of coordination for each attempt, which its sender makes at most every two seconds.

Each call names the node that it is for. One whose disk is lost comes back as another node, mostly at the
address of the old one, and must not be taken for it.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from bottomless.errors import Code, Corrupt, Outcome, StoreError, Unavailable
from bottomless.model.names import NodeId
from bottomless_server.coordination.base import Coordination
from bottomless_server.protocol.replica import NODE_HEADER
from bottomless_server.runtime.peers.peers import Peer
from bottomless_server.stores.node_facts import facts_of


class NodePeer:
    """One other node."""

    def __init__(self, coordination: Coordination, node: NodeId, secret: str | None) -> None:
        self._coordination = coordination
        self._node = node
        self._secret = secret
        self._asking = asyncio.Lock()
        self._peer: Peer | None = None
        self._is_doubted = True
        """Whether its address is asked for before the next call."""

    async def post(
        self,
        path: str,
        parts: Sequence[bytes | memoryview],
        content_type: str,
        timeout_seconds: float,
    ) -> bytes:
        """Send bytes and read the answer.

        Raises:
            StoreError: what it answered; `peer-unavailable` if it does not, or says of itself nothing.
        """
        peer = await self._found()
        try:
            headers = {NODE_HEADER: self._node}
            return await peer.post(path, parts, content_type, timeout_seconds, headers)
        except StoreError as error:
            self._is_doubted |= error.code is Code.PEER_UNAVAILABLE
            raise

    async def get(self, path: str, timeout_seconds: float) -> Any:
        """Ask something and read the JSON of the answer.

        Raises:
            StoreError: as `post`.
        """
        peer = await self._found()
        headers = {NODE_HEADER: self._node}
        try:
            answer = await peer.call("GET", path, headers=headers, timeout_seconds=timeout_seconds)
        except StoreError as error:
            self._is_doubted |= error.code is Code.PEER_UNAVAILABLE
            raise
        return answer.body

    async def aclose(self) -> None:
        """End all connections."""
        if self._peer is not None:
            await self._peer.aclose()

    async def _found(self) -> Peer:
        async with self._asking:
            if self._peer is None or self._is_doubted:
                url = await self._url()
                if self._peer is None or self._peer.base_url != url:
                    await self.aclose()
                    self._peer = Peer(url, name="ingest", secret=self._secret)
                self._is_doubted = False
            return self._peer

    async def _url(self) -> str:
        try:
            facts = await facts_of(self._coordination, self._node)
        except (Corrupt, Unavailable) as error:
            raise _not_reached("nobody knows where it is") from error
        if facts is None:
            raise _not_reached("it has not said where it is")
        return facts.url


class NodePeers:
    """The ways to all other nodes."""

    def __init__(self, coordination: Coordination, secret: str | None) -> None:
        """`secret` is shown to other nodes over TCP."""
        self._coordination = coordination
        self._secret = secret
        self._peers: dict[NodeId, NodePeer] = {}

    def of(self, node: NodeId) -> NodePeer:
        """The way to a node; nothing is asked before its first call."""
        if node not in self._peers:
            self._peers[node] = NodePeer(self._coordination, node, self._secret)
        return self._peers[node]

    async def url_of(self, node: NodeId) -> str | None:
        """The internal address of a node; None if it has not said so.

        Raises:
            Unavailable: coordination does not answer.
        """
        try:
            facts = await facts_of(self._coordination, node)
        except Corrupt:
            return None
        return None if facts is None else facts.url

    async def forget(self, node: NodeId) -> None:
        """End the connections to a node; the next call makes new ones."""
        peer = self._peers.pop(node, None)
        if peer is not None:
            await peer.aclose()

    async def aclose(self) -> None:
        """End all connections."""
        for peer in self._peers.values():
            await peer.aclose()


def _not_reached(why: str) -> Unavailable:
    return Unavailable(
        f"another node is not reached: {why}", code=Code.PEER_UNAVAILABLE, outcome=Outcome.NONE
    )
