"""A process with two small services, to see how any process starts and stops.

    tiny_service.py DIR PORT [BEHAVIOUR…]

It writes what happens to its services into DIR/events. Behaviours: `no-start`, `bug`,
`hang-start`, `hang-drain`, `bad-stop`, and `long-drain`: a service has all the time that it wants
to drain, and takes it until it finds a file of its name in DIR/drained.
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from starlette.requests import Request

from bottomless.errors import Code, Unavailable
from bottomless_server.coordination.memory import MemoryCoordination
from bottomless_server.runtime.http.app import create_api, json_response
from bottomless_server.runtime.listener.listeners import internal_url
from bottomless_server.runtime.observe.telemetry import configure_logs
from bottomless_server.runtime.peers.peers import Peer
from bottomless_server.runtime.process.service import run_process, serve

DIRECTORY = Path(sys.argv[1])
BEHAVIOUR = set(sys.argv[3:])


def note(event: str) -> None:
    with (DIRECTORY / "events").open("a") as events:
        events.write(f"{event}\n")


class NotingCoordination(MemoryCoordination):
    def hurry(self, seconds: float) -> None:
        assert seconds > 0
        note("hurry")


class Tiny:
    """Answers `/where`, `/slow` once it drains, and `/poll` never."""

    def __init__(self, name: str, calls: str | None) -> None:
        self.name = name
        self.public = create_api(name)
        self.internal = create_api(name)
        self._calls = calls
        self._draining = asyncio.Event()
        self.public.add_api_route("/where", self.where)
        self.public.add_api_route("/slow", self.slow)
        self.public.add_api_route("/poll", self.poll)
        self.internal.add_api_route("/where", self.where)
        self.internal.add_api_route("/poll", self.poll, methods=["GET", "POST"])

    async def where(self, request: Request) -> Any:
        if self._draining.is_set():
            raise Unavailable("draining", code=Code.DRAINING)
        return json_response({"name": self.name, "path": request.url.path})

    async def slow(self) -> Any:
        note("slow")
        await self._draining.wait()
        return json_response({"finished": True})

    async def poll(self) -> Any:
        note("poll")
        await asyncio.Event().wait()

    async def report(self) -> dict[str, Any]:
        return {"status": "running", "name": self.name}

    async def start(self) -> None:
        if self._calls is not None:
            async with Peer(self._calls, name="first") as peer:
                note(f"first answered {(await peer.call('GET', '/where')).body['name']}")
        if "no-start" in BEHAVIOUR:
            raise Unavailable("the coordination store does not answer")
        if "refused-call" in BEHAVIOUR:
            os.kill(os.getpid(), 9_999)
        if "bug" in BEHAVIOUR:
            raise ZeroDivisionError
        if "hang-start" in BEHAVIOUR:
            note(f"hang {self.name}")
            await asyncio.Event().wait()
        note(f"start {self.name}")

    async def drain(self) -> None:
        note(f"drain {self.name}")
        self._draining.set()
        if "hang-drain" in BEHAVIOUR:
            await asyncio.Event().wait()
        while "long-drain" in BEHAVIOUR and not (DIRECTORY / "drained" / self.name).exists():
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        note(f"stop {self.name}")
        if "bad-stop" in BEHAVIOUR:
            raise ZeroDivisionError


async def main() -> int:
    urls = {name: internal_url(None, DIRECTORY, name) for name in ("first", "second")}
    services = [Tiny("first", None), Tiny("second", urls["first"])]
    return await serve(
        services,
        public_app=services[0].public,
        host="127.0.0.1",
        port=int(sys.argv[2]),
        internal_urls=urls,
        drain_order=["second", "first"],
        drain_seconds=3600 if "long-drain" in BEHAVIOUR else 0.5,
        coordination=[NotingCoordination(lambda: 0)],
    )


if __name__ == "__main__":
    configure_logs()
    sys.exit(run_process(main))
