"""Where ingest nodes are: asked of manifest where a stream has no owner that answers.

Contract: openapi/internal.yaml, `get_nodes`.
"""

from typing import Final

from cachetools import TTLCache

from bottomless.model.names import NodeId
from bottomless_server.protocol.peer import PeerPort
from bottomless_server.protocol.registry import NODES, NodeSaid, decode_nodes
from bottomless_server.runtime.base.single_flight import SingleFlight

_KEEP_SECONDS: Final = 1.0
"""How late a node is noticed, against a question with every read that finds no owner."""


class IngestNodes:
    """The nodes that were alive a moment ago."""

    def __init__(self, manifest: PeerPort) -> None:
        self._manifest = manifest
        self._known: TTLCache[None, list[NodeSaid]] = TTLCache(1, _KEEP_SECONDS)
        self._asking: SingleFlight[None, list[NodeSaid]] = SingleFlight(linger_seconds=0)

    async def urls(self) -> list[str]:
        """Their internal addresses.

        Raises:
            Unavailable: manifest does not answer.
        """
        return [node.url for node in await self._nodes()]

    async def url_of(self, node_id: NodeId) -> str | None:
        """The internal address of one of them; None if it is not alive.

        Raises:
            Unavailable: manifest does not answer.
        """
        return next((one.url for one in await self._nodes() if one.node_id == node_id), None)

    async def _nodes(self) -> list[NodeSaid]:
        known = self._known.get(None)
        return known if known is not None else await self._asking.join(None, self._load)

    async def _load(self) -> list[NodeSaid]:
        answer = await self._manifest.call("GET", NODES)
        nodes = self._known[None] = decode_nodes(answer.body)
        return nodes
