"""What `/openapi.json` says: the contract of openapi/, of the operations that are served.

Routes take a bare request, so what FastAPI derives from them is a list of paths. The words
come from openapi/*.yaml, which a server that was installed does not have; so each file lies in
`contract/` too, in one piece, and a test compares both. A route that the contract does not
know would still be shown, without words, and a test would fail.
"""

import re
from functools import cache
from importlib.resources import files
from typing import Any, Final

import orjson
from fastapi import FastAPI

_PARAMETER: Final = re.compile(r"{[^}]*}")


def describe(api: FastAPI, service: str) -> None:
    """Let an application tell what openapi/{service}.yaml says of what it serves."""
    derive = api.openapi

    def openapi() -> dict[str, Any]:
        contract = _contract_of(service)
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
def _contract_of(service: str) -> dict[str, Any]:
    text = (files("bottomless_server") / "contract" / f"{service}.json").read_bytes()
    contract: dict[str, Any] = orjson.loads(text)
    return contract


def _shape(path: str) -> str:
    """A path whatever its parts are called."""
    return _PARAMETER.sub("{}", path)
