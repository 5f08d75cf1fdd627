"""One public listener for several services: each request goes to the service whose path it is.

What a proxy does for services that run apart (docs/deployment.md, "The proxy"). A path may
belong to two services by method; then the first that is asked may answer 405, and the next is
asked, so that in the end `Allow` is the union of what all of them serve.
"""

from collections.abc import Callable, Mapping, Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bottomless.errors import Code, NotFound
from bottomless_server.runtime.http.app import method_not_allowed, request_id_of, send_problem

Routing = Callable[[Scope], Sequence[str]]
"""Names of the applications to ask for a request, best first."""


class Dispatcher:
    """An application made of applications."""

    def __init__(self, apps: Mapping[str, ASGIApp], routing: Routing) -> None:
        self._apps = apps
        self._routing = routing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = [self._apps[name] for name in self._routing(scope)]
        if len(asked) == 1:
            await asked[0](scope, receive, send)
            return
        allowed: list[str] = []
        for app in asked:
            attempt = _Attempt(send)
            # A router writes into its scope what it matched.
            await app(dict(scope), receive, attempt.send)
            if not attempt.refused:
                return
            allowed += attempt.allowed
        error = (
            method_not_allowed(allowed)
            if asked
            else NotFound("nothing is served at this path", code=Code.NOT_FOUND)
        )
        await send_problem(send, error, request_id_of(scope))


class _Attempt:
    """Passes an answer on, unless it is a 405: of that only `Allow` is kept."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.refused = False
        self.allowed: list[str] = []

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] == 405:
            self.refused = True
            values = [value.decode() for name, value in message["headers"] if name == b"allow"]
            self.allowed = [word.strip() for value in values for word in value.split(",")]
        if not self.refused:
            await self._send(message)
