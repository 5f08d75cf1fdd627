"""`/docs`: the contract of a public application for people, off unless it is asked for.

Everything comes from this process, which a strict policy of content says to the browser. The
viewer knows OpenAPI 3.0 only, and reads our 3.1 all the same if it is told so.
"""

from pathlib import Path
from typing import Final

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from bottomless_server.runtime.problems import (
    method_not_allowed,
    request_id_of,
    send_problem,
)

PATH: Final = "/docs"

_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Bottomless</title>
<link rel="icon" href="/docs/favicon-32x32.png">
<link rel="stylesheet" href="/docs/swagger-ui.css">
</head>
<body>
<div id="contract"></div>
<script src="/docs/swagger-ui-bundle.js"></script>
<script src="/docs/start.js"></script>
</body>
</html>
"""
_START: Final = """"use strict";
fetch("/openapi.json").then(answer => answer.json()).then(contract => {
  contract.openapi = "3.0.3";
  SwaggerUIBundle({spec: contract, dom_id: "#contract", deepLinking: true, validatorUrl: null});
});
"""
_VENDORED: Final = {
    "favicon-32x32.png": "image/png",
    "swagger-ui.css": "text/css",
    "swagger-ui-bundle.js": "text/javascript",
}


def with_docs(app: ASGIApp) -> ASGIApp:
    """The application, with the page and its assets before it."""
    files = _files()

    async def documented(scope: Scope, receive: Receive, send: Send) -> None:
        found = files.get(scope["path"])
        if found is None:
            await app(scope, receive, send)
            return
        if scope["method"] not in ("GET", "HEAD"):
            await send_problem(send, method_not_allowed(["GET", "HEAD"]), request_id_of(scope))
            return
        body, media_type = found
        headers = {"content-security-policy": _POLICY, "cache-control": "no-cache"}
        await Response(body, 200, headers, media_type)(scope, receive, send)

    return documented


def _files() -> dict[str, tuple[bytes, str]]:
    from swagger_ui_bundle import swagger_ui_path  # type: ignore[import-untyped] # noqa: PLC0415

    vendored = {
        f"{PATH}/{name}": (Path(swagger_ui_path, name).read_bytes(), media_type)
        for name, media_type in _VENDORED.items()
    }
    return {
        PATH: (_PAGE.encode(), "text/html"),
        f"{PATH}/start.js": (_START.encode(), "text/javascript"),
        **vendored,
    }
