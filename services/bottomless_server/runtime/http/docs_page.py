"""`/openapi.json`, and `/docs`: the contract of the public interface, for programs and for people.

Everything comes from this process, which a strict policy of content says to the browser. The
viewer is Swagger UI as the package fastapi-offline brings it; of that package nothing else is used.
"""

from importlib.resources import files
from typing import Final

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from bottomless_server.runtime.http.contract import PATH as CONTRACT_PATH
from bottomless_server.runtime.http.contract import contract_text
from bottomless_server.runtime.http.problems import method_not_allowed, request_id_of, send_problem

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
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Bottomless: the HTTP interface</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/docs/swagger-ui.css">
</head>
<body>
<div id="contract"></div>
<script src="/docs/swagger-ui-bundle.js"></script>
<script src="/docs/start.js"></script>
</body>
</html>
"""
# A credential that is given to the viewer stays in the memory of the page, which is its default.
_START: Final = """"use strict";
SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#contract",
  deepLinking: true,
  validatorUrl: null,
  tryItOutEnabled: true,
  displayRequestDuration: true,
  defaultModelRendering: "model",
  defaultModelExpandDepth: 0,
  defaultModelsExpandDepth: -1
});
"""
_VENDORED: Final = {"swagger-ui.css": "text/css", "swagger-ui-bundle.js": "text/javascript"}


def with_docs(app: ASGIApp, *, page: bool) -> ASGIApp:
    """The application, with the contract before it, and the page for people if `page`."""
    answers = {CONTRACT_PATH: Response(contract_text(), media_type="application/json")}
    if page:
        headers = {"content-security-policy": _POLICY, "cache-control": "no-cache"}
        answers |= {
            path: Response(body, 200, headers, media_type)
            for path, (body, media_type) in _files().items()
        }

    async def documented(scope: Scope, receive: Receive, send: Send) -> None:
        found = answers.get(scope["path"])
        if found is None:
            await app(scope, receive, send)
        elif scope["method"] not in ("GET", "HEAD"):
            await send_problem(send, method_not_allowed(["GET", "HEAD"]), request_id_of(scope))
        else:
            await found(scope, receive, send)

    return documented


def _files() -> dict[str, tuple[bytes, str]]:
    viewer = files("fastapi_offline") / "static"
    vendored = {
        f"{PATH}/{name}": ((viewer / name).read_bytes(), media_type)
        for name, media_type in _VENDORED.items()
    }
    return {
        PATH: (_PAGE.encode(), "text/html"),
        f"{PATH}/start.js": (_START.encode(), "text/javascript"),
        **vendored,
    }
