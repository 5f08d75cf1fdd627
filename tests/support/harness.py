"""What every harness has: a harness is parts of the product, joined in this process by a test.

Stores are in memory, or a directory of the test; the other services are small stand-ins that
answer as the protocol says; clocks go on when the test says so. A service is asked without a
socket, so that the order of events is the test's.
"""

from typing import Protocol

from starlette.types import ASGIApp

from bottomless_server.node.lease import Clocks
from support.asgi import client_of


class ServiceParts(Protocol):
    """A service as its `app.py` makes it."""

    @property
    def public(self) -> ASGIApp: ...

    @property
    def internal(self) -> ASGIApp: ...

    async def stop(self) -> None: ...


class ServiceHarness:
    """A service, and a client of each of its two applications."""

    def __init__(self, parts: ServiceParts) -> None:
        self._parts = parts
        self.client = client_of(parts.public)
        self.internal = client_of(parts.internal)

    async def aclose(self) -> None:
        await self.client.aclose()
        await self.internal.aclose()
        await self._parts.stop()


class StandingClocks:
    """Time goes on when a test says so."""

    def __init__(self) -> None:
        self.wall = 1_750_000_000_000
        self.elapsed = 1_000
        self.slept = 0
        """What the monotonic clock did not see, and the boot clock did, in ms."""

    def advance(self, ms: int) -> None:
        self.wall += ms
        self.elapsed += ms

    def sleep(self, ms: int, *, unseen: bool = False) -> None:
        """The machine is suspended; `unseen`: paused so that its boot clock stands still too."""
        self.wall += ms
        self.slept += 0 if unseen else ms

    def clocks(self) -> Clocks:
        return Clocks(
            wall=lambda: self.wall,
            monotonic=lambda: self.elapsed / 1000,
            boot=lambda: (self.elapsed + self.slept) / 1000,
        )
