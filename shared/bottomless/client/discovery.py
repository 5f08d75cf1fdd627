"""Calls that ask a server about itself: its limits, versions, readiness, and who the caller is."""

from typing import Any

from bottomless.client.wire import Wire, members


class DiscoveryCalls(Wire):
    """The calls of `openapi/manifest.yaml` by which a client finds out what a server can do."""

    async def limits(self) -> dict[str, Any]:
        """Ask for the limits of requests and of answers; sizes are in bytes."""
        return members(await self._send("GET", "/v1/limits"))

    async def server_version(self) -> dict[str, Any]:
        """Ask for the version of the server, and for those of its API and its formats."""
        return members(await self._send("GET", "/v1/version"))

    async def whoami(self) -> dict[str, Any]:
        """Ask which principal the credential stands for, and what it allows."""
        return members(await self._send("GET", "/v1/whoami"))

    async def readiness(self) -> dict[str, Any]:
        """Ask whether the process at the url takes traffic, and what its services report.

        With a proxy in between that is one process of several.

        Raises:
            StoreError: it is not ready; the error says for what.
        """
        return members(await self._send("GET", "/readyz", {"verbose": "1"}))
