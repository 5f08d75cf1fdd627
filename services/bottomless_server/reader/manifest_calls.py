"""What the reader asks of manifest: waited for shortly, and not twice for one request.

Nothing is read without manifest: a page by an old root might show what was trimmed since, and
an old name might be another stream's. So a request ends as soon as it is known that manifest
does not answer.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from bottomless.errors import Code, Unavailable
from bottomless_server.protocol.peer import Params, PeerAnswer, PeerBytes, PeerPort

MANIFEST_SECONDS: Final = 6.0
"""Far longer than an answer takes, and shorter than people wait."""


class ManifestAway(Unavailable):
    """Manifest did not answer; whoever asks it again at once waits again for nothing."""

    default_code = Code.PEER_UNAVAILABLE


class ManifestCalls:
    """Calls of manifest as the peer makes them, with a bound of time."""

    def __init__(self, manifest: PeerPort) -> None:
        self._manifest = manifest

    async def call(
        self,
        method: str,
        path: str,
        /,
        *,
        params: Params | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
    ) -> PeerAnswer:
        """Ask, for at most `MANIFEST_SECONDS`.

        Raises:
            ManifestAway, and what manifest answers.
        """
        seconds = min(timeout_seconds or MANIFEST_SECONDS, MANIFEST_SECONDS)
        try:
            async with asyncio.timeout(seconds):
                return await self._manifest.call(
                    method, path, params=params, body=body, headers=headers
                )
        except TimeoutError as error:
            raise _away() from error
        except Unavailable as error:
            if error.code is not Code.PEER_UNAVAILABLE:
                raise
            raise _away() from error

    async def fetch(
        self,
        path: str,
        /,
        *,
        params: Params | None = None,
        timeout_seconds: float | None = None,
    ) -> PeerBytes:
        return await self._manifest.fetch(path, params=params, timeout_seconds=timeout_seconds)

    async def aclose(self) -> None:
        await self._manifest.aclose()


def _away() -> ManifestAway:
    return ManifestAway("the manifest service does not answer", retry_after_seconds=1)
