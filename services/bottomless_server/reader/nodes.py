"""Where ingest nodes are: asked of manifest where a stream has no owner that answers.

Contract: openapi/internal.yaml, `get_nodes`.
"""

from typing import Final

from cachetools import TTLCache

from bottomless_server.reader.one_at_a_time import OneAtATime
from bottomless_server.reader.ports import Asked

_KEEP_SECONDS: Final = 1.0
"""How late a node is noticed, against a question with every read that finds no owner."""


class IngestNodes:
    """The nodes that were alive a moment ago."""

    def __init__(self, manifest: Asked) -> None:
        self._manifest = manifest
        self._known: TTLCache[None, list[str]] = TTLCache(1, _KEEP_SECONDS)
        self._asking: OneAtATime[None, list[str]] = OneAtATime()

    async def urls(self) -> list[str]:
        """Their internal addresses.

        Raises:
            Unavailable: manifest does not answer.
        """
        known = self._known.get(None)
        return known if known is not None else await self._asking.join(None, self._load)

    async def _load(self) -> list[str]:
        answer = await self._manifest.call("GET", "/internal/v1/nodes")
        urls = self._known[None] = [node["url"] for node in answer.body["nodes"]]
        return urls
