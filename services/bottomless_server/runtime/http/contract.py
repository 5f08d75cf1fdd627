"""What `/openapi.json` says: the contract of openapi/, in one piece.

A server that was installed does not have openapi/*.yaml; so `./dev contract` compiles what they say
together into `contract/`, and a test compares both: `public.json` is for clients, and
`endpoints.json` is what the server goes by (endpoint_table.py). Every public listener answers with all of
it, whichever service it belongs to: clients have one address, whose proxy knows the services.

An application by itself tells what it serves of it. Routes take a bare request, so what FastAPI
derives from them is a list of paths; the words are those of the contract. A route that the
contract does not know would still be shown, without words, and a test would fail.
"""

import re
from functools import cache
from importlib.resources import files
from typing import Any, Final

import orjson
from fastapi import FastAPI

PATH: Final = "/openapi.json"

_COMPILED: Final = files("bottomless_server") / "contract"

_PARAMETER: Final = re.compile(r"{[^}]*}")


def contract_text() -> bytes:
    """The whole contract of the public interface, as JSON."""
    return (_COMPILED / "public.json").read_bytes()


def endpoints_text() -> bytes:
    """The table of the public interface, as JSON: see endpoint_table.py."""
    return (_COMPILED / "endpoints.json").read_bytes()


def describe(api: FastAPI) -> None:
    """Let an application tell what the contract says of what it serves."""
    derive = api.openapi

    def openapi() -> dict[str, Any]:
        contract = _contract()
        described = {_shape(path): (path, item) for path, item in contract["paths"].items()}
        paths: dict[str, dict[str, Any]] = {}
        for path, operations in derive().get("paths", {}).items():
            spelled, item = described.get(_shape(path), (path, {}))
            paths[spelled] = {
                method: item.get(method, operation) for method, operation in operations.items()
            }
        info = {**contract["info"], "title": api.title}
        return {**contract, "info": info, "paths": paths}

    # The way that FastAPI offers for it.
    api.openapi = openapi  # type: ignore[method-assign]


@cache
def _contract() -> dict[str, Any]:
    contract: dict[str, Any] = orjson.loads(contract_text())
    return contract


def _shape(path: str) -> str:
    """A path whatever its parts are called."""
    return _PARAMETER.sub("{}", path)
