"""Another service for tests: it answers nothing, until a subclass says what."""

from collections.abc import Mapping
from typing import Any

from bottomless_server.protocol.peer import Params, PeerAnswer, PeerBytes


class SilentPeer:
    """A `PeerPort` that nobody is expected to ask."""

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
        raise AssertionError((method, path, params, body, headers, timeout_seconds))

    async def fetch(
        self,
        path: str,
        /,
        *,
        params: Params | None = None,
        timeout_seconds: float | None = None,
    ) -> PeerBytes:
        raise AssertionError((path, params, timeout_seconds))

    async def aclose(self) -> None:
        """There is nothing to close."""
