"""One public listener for several services: each request goes to the service whose path it is.

What a proxy does by the table of api.md, section 1, for services that run apart. A path
may belong to two services by method; then the first that is asked may answer 405, and the
next is asked, so that in the end `Allow` is the union of what all of them serve.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bottomless.errors import Code, NotFound
from bottomless_server.runtime.http import (
    json_response,
    method_not_allowed,
    request_id_of,
    send_problem,
)

CONTRACT_PATH: Final = "/openapi.json"

_PARAMETER: Final = re.compile(r"{([^}]*)}")

Routing = Callable[[str, str], Sequence[str]]
"""Names of the applications to ask, by method and path, best first."""


class Dispatcher:
    """An application made of applications."""

    def __init__(self, apps: Mapping[str, ASGIApp], routing: Routing, title: str) -> None:
        self._apps = apps
        self._routing = routing
        self._title = title
        self._contract: dict[str, Any] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == CONTRACT_PATH:
            await self._answer_contract(scope, receive, send)
            return
        asked = [self._apps[name] for name in self._routing(scope["method"], scope["path"])]
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

    async def _answer_contract(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in ("GET", "HEAD"):
            error = method_not_allowed(["GET", "HEAD"])
            await send_problem(send, error, request_id_of(scope))
            return
        if self._contract is None:
            parts = [await _ask(app, scope) for app in self._apps.values()]
            self._contract = _merged(self._title, [part for part in parts if part])
        await json_response(self._contract)(scope, receive, send)


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


async def _ask(app: ASGIApp, scope: Scope) -> dict[str, Any]:
    """What an application serves as its contract, nothing if it has none."""
    status = 0
    parts: list[bytes] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            parts.append(message.get("body", b""))

    await app({**scope, "method": "GET", "query_string": b""}, receive, send)
    contract: dict[str, Any] = orjson.loads(b"".join(parts)) if status == 200 else {}
    return contract


def _merged(title: str, contracts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    spelled: dict[str, str] = {}
    components: dict[str, dict[str, Any]] = {}
    for contract in contracts:
        for path, operations in contract.get("paths", {}).items():
            same = spelled.setdefault(_PARAMETER.sub("{}", path), path)
            names = dict(zip(_PARAMETER.findall(path), _PARAMETER.findall(same), strict=True))
            paths.setdefault(same, {}).update(_renamed(operations, names))
        for kind, named in contract.get("components", {}).items():
            components.setdefault(kind, {}).update(named)
    first = contracts[0] if contracts else {}
    return {
        "openapi": first.get("openapi", "3.1.0"),
        "info": {"title": title, "version": first.get("info", {}).get("version", "1")},
        "paths": paths,
        "components": components,
    }


def _renamed(operations: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    # Two services may call the same part of a path differently; one contract may not.
    def rename(parameter: dict[str, Any]) -> dict[str, Any]:
        if parameter.get("in") != "path":
            return parameter
        return {**parameter, "name": names.get(parameter["name"], parameter["name"])}

    return {
        method: {**operation, "parameters": [rename(each) for each in operation["parameters"]]}
        if isinstance(operation, dict) and "parameters" in operation
        else operation
        for method, operation in operations.items()
    }
