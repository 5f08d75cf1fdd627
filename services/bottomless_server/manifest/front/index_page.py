"""`/`: what a person sees who opens the address of the server in a browser, and an index for programs.

The page is static and the same for everybody: what it shows of streams it asks for itself, as the
person who looks at it, by the same interface as everybody else. So without a credential it shows
nothing of them where identity is on. It is one answer: style and script stand in it, and the
policy of content names them by their hashes, allows nothing else, and no other host.

Contract: openapi/manifest.yaml.
"""

from base64 import b64encode
from hashlib import sha256
from importlib.metadata import version
from importlib.resources import files
from typing import Final

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from bottomless_server.runtime.http.app import header, json_response, negotiate, parse_query

HTML: Final = "text/html"
JSON: Final = "application/json"
_INDEX: Final = {
    "streams": "/v1/streams",
    "queues": "/v1/queues",
    "limits": "/v1/limits",
    "version": "/v1/version",
    "whoami": "/v1/whoami",
    "contract": "/openapi.json",
    "live": "/livez",
    "ready": "/readyz",
}


def add_index_routes(api: FastAPI) -> None:
    shown, policy = _page()
    headers = {"cache-control": "no-cache", "vary": "accept"}
    for_people = {
        **headers,
        "content-security-policy": policy,
        "referrer-policy": "no-referrer",
    }
    index = {"name": "Bottomless", "version": _version(), "api": "v1", "links": _INDEX}

    async def get(request: Request) -> Response:
        parse_query(request.scope, {})
        # Browsers name HTML; whoever takes anything is a program.
        if negotiate(header(request.scope, b"accept"), [JSON, HTML]) == HTML:
            return Response(shown, 200, for_people, HTML)
        return json_response(index, 200, headers)

    api.add_api_route("/", get, methods=["GET"])
    api.add_api_route("/", get, methods=["HEAD"], name="head")


def _page() -> tuple[bytes, str]:
    """The page, and the policy of content that allows its own style and script alone."""
    parts = files("bottomless_server.manifest") / "index"
    style = (parts / "index.css").read_text()
    script = (parts / "index.js").read_text()
    page = (parts / "index.html").read_text().replace("{version}", _version())
    page = page.replace("{style}", style).replace("{script}", script)
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; require-trusted-types-for 'script'"
    )
    return page.encode(), policy


def _hash(text: str) -> str:
    return "sha256-" + b64encode(sha256(text.encode()).digest()).decode()


def _version() -> str:
    return version("bottomless-server")
