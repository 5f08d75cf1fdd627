"""Followers behind their routes, for tests that reach them over HTTP."""

import random
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from bottomless.model.names import NodeId
from bottomless_server.ingest.replicas.replica_routes import ReplicaRoutes, add_replica_routes
from bottomless_server.node.core.admission import Admission
from bottomless_server.node.room import MemoryRoom
from bottomless_server.runtime.http.app import create_api, wrap
from unit.ingest.replica_logs import FollowerNode

NODE: Final = NodeId("f" * 32)


class ServedNode:
    """A follower behind its routes; its address outlives its processes."""

    def __init__(self) -> None:
        self.node = FollowerNode()
        self._app: ASGIApp = self._made()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    def die(self, chance: random.Random) -> None:
        """The process is killed, or the power is lost; another process begins."""
        self.node.die(chance if chance.random() < 0.5 else None)
        self._app = self._made()

    def _made(self) -> ASGIApp:
        api = create_api("a follower")
        clocks = self.node.clocks.clocks()
        room = MemoryRoom(Admission(2**24, 2**24), clocks.monotonic, 1)
        routes = ReplicaRoutes(self.node.following, room, lambda: NODE, clocks.monotonic)
        return wrap(add_replica_routes(api, routes))
