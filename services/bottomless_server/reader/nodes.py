"""Where ingest nodes are: asked of manifest where a stream has no owner that answers.

Contract: openapi/internal.yaml, `get_nodes`.
"""

from typing import Final

from cachetools import TTLCache

from bottomless_server.protocol.peer import PeerPort
from bottomless_server.protocol.registry import NODES, decode_nodes
from bottomless_server.runtime.base.single_flight import SingleFlight

_KEEP_SECONDS: Final = 1.0
"""How late a node is noticed, against a question with every read that finds no owner."""


class IngestNodes:
    """The nodes that were alive a moment ago."""

    def __init__(self, manifest: PeerPort) -> None:
        self._manifest = manifest
        self._known: TTLCache[None, list[str]] = TTLCache(1, _KEEP_SECONDS)
        self._asking: SingleFlight[None, list[str]] = SingleFlight(linger_seconds=0)

    async def urls(self) -> list[str]:
        """Their internal addresses.

        Raises:
            Unavailable: manifest does not answer.
        """
        known = self._known.get(None)
        return known if known is not None else await self._asking.join(None, self._load)

    async def _load(self) -> list[str]:
        answer = await self._manifest.call("GET", NODES)
        urls = self._known[None] = [node.url for node in decode_nodes(answer.body)]
        return urls
