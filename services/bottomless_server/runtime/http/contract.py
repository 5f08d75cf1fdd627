"""What `/openapi.json` says: the contract of openapi/, in one piece.

A server that was installed does not have openapi/*.yaml; so `./dev contract` compiles what they say
together into `contract/`, and a test compares both: `public.json` is for clients, and
`endpoints.json` is what the server goes by (endpoint_table.py). Every public listener answers with all of
it, whichever service it belongs to: clients have one address, whose proxy knows the services.

An application by itself tells what it serves of it: the paths of its routes, in the words of the
contract. A route that the contract does not know would still be shown, without words, and a test
would fail. FastAPI could derive words of its own, but routes take a bare request, so there is
nothing to derive them from; and since every start asks all applications for their paths, this took
a third of it (docs/decisions/0238-a-start-does-what-it-needs.md).
"""

import re
from functools import cache
from importlib.resources import files
from typing import Any, Final

import orjson
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Scope

PATH: Final = "/openapi.json"

_COMPILED: Final = files("bottomless_server") / "contract"

_PARAMETER: Final = re.compile(r"{[^}]*}")
_ASKED: Final = "bottomless.paths"
"""In the scope of a request of this process: where the paths go that an application serves. No client
can write there."""


def contract_text() -> bytes:
    """The whole contract of the public interface, as JSON."""
    return (_COMPILED / "public.json").read_bytes()


def endpoints_text() -> bytes:
    """The table of the public interface, as JSON: see endpoint_table.py."""
    return (_COMPILED / "endpoints.json").read_bytes()


def tell(api: FastAPI) -> None:
    """Let an application tell which paths it serves, by which methods, and nothing more."""

    def openapi() -> dict[str, Any]:
        info = {"title": api.title, "version": api.version}
        return {"openapi": api.openapi_version, "info": info, "paths": _served(api)}

    async def told(request: Request) -> Response:
        asked: set[str] | None = request.scope.get(_ASKED)
        if asked is None:
            return Response(orjson.dumps(api.openapi()), media_type="application/json")
        spellings = _spellings()
        asked.update(spellings.get(_shape(path), path) for path in _served(api))
        return Response(status_code=204)

    # The way that FastAPI offers for it.
    api.openapi = openapi  # type: ignore[method-assign]
    api.add_route(PATH, told, include_in_schema=False)


def describe(api: FastAPI) -> None:
    """Let an application of the public interface tell what the contract says of what it serves."""

    def openapi() -> dict[str, Any]:
        contract = _contract()
        described = {_shape(path): (path, item) for path, item in contract["paths"].items()}
        paths: dict[str, dict[str, Any]] = {}
        for path, operations in _served(api).items():
            spelled, item = described.get(_shape(path), (path, {}))
            paths[spelled] = {
                method: item.get(method, operation) for method, operation in operations.items()
            }
        info = {**contract["info"], "title": api.title}
        return {**contract, "info": info, "paths": paths}

    api.openapi = openapi  # type: ignore[method-assign]


async def paths_of(app: ASGIApp) -> set[str]:
    """The paths that an application of `create_api` serves, spelled as in the contract, through
    whatever stands around it; none of another application."""
    paths: set[str] = set()
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": PATH,
        "raw_path": PATH.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [],
        "client": None,
        "server": None,
        _ASKED: paths,
    }

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(_: Message) -> None:
        pass

    await app(scope, receive, send)
    return paths


def _served(api: FastAPI) -> dict[str, dict[str, Any]]:
    """Methods by path, in the order in which they were added."""
    paths: dict[str, dict[str, Any]] = {}
    for route in api.routes:
        if isinstance(route, APIRoute) and route.include_in_schema:
            methods = sorted(route.methods or ())
            paths.setdefault(route.path_format, {}).update({one.lower(): {} for one in methods})
    return paths


@cache
def _spellings() -> dict[str, str]:
    """Each path of the public interface as the contract spells it, by its shape."""
    endpoints: list[dict[str, Any]] = orjson.loads(endpoints_text())["endpoints"]
    return {_shape(each["path"]): each["path"] for each in endpoints}


@cache
def _contract() -> dict[str, Any]:
    contract: dict[str, Any] = orjson.loads(contract_text())
    return contract


def _shape(path: str) -> str:
    """A path whatever its parts are called."""
    return _PARAMETER.sub("{}", path)
