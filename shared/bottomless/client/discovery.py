"""Calls that ask what there is: limits, versions, and who the caller is to the server."""

from typing import Any

from bottomless.client.wire import Wire, members


class DiscoveryCalls(Wire):
    """What `openapi/manifest.yaml` says of everything that a client can find out before it sends."""

    async def limits(self) -> dict[str, Any]:
        """The limits of requests and of what they make; sizes in bytes."""
        return members(await self._send("GET", "/v1/limits"))

    async def server_version(self) -> dict[str, Any]:
        """The server's version, and those of its API and of its formats."""
        return members(await self._send("GET", "/v1/version"))

    async def whoami(self) -> dict[str, Any]:
        """The principal that the credential stands for, and what it allows."""
        return members(await self._send("GET", "/v1/whoami"))

    async def readiness(self) -> dict[str, Any]:
        """Whether the process at the url takes traffic, and what its services report.

        Behind a proxy that is one process of several. Raises what it is not ready for.
        """
        return members(await self._send("GET", "/readyz", {"verbose": "1"}))
