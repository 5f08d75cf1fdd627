"""What the reader needs of other services, as its constructors take it."""

from collections.abc import Mapping
from typing import Any, Protocol

from bottomless_server.runtime.peers.peers import PeerAnswer, PeerBytes


class Asked(Protocol):
    """One other service; its problems are raised as the StoreError their code belongs to."""

    async def call(
        self,
        method: str,
        path: str,
        /,
        *,
        params: Mapping[str, str | int] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
    ) -> PeerAnswer: ...

    async def fetch(
        self,
        path: str,
        /,
        *,
        params: Mapping[str, str | int] | None = None,
        timeout_seconds: float | None = None,
    ) -> PeerBytes: ...


class AskedAt(Protocol):
    """Other services by their internal address."""

    def at(self, url: str, /) -> Asked: ...
