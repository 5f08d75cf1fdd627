"""HTTP as all services speak it: an application whose failures are problems, and its shell.

Routes raise StoreErrors; here they, and whatever FastAPI, Starlette or a bug raises, become
answers of one shape, which is `problems.py`'s. What a request carries is read by `queries.py`
(parameters) and `bodies.py` (media types, bodies, JSON). Their names are exported here too.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import orjson
import structlog
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bottomless.errors import Code, InvalidRequest, NotFound, Outcome, StoreError
from bottomless.guards import guard
from bottomless.model.limits import URL_SIZE_MAX
from bottomless_server.protocol.parameters import Parser, Repeated, boolean, choice, integer, text
from bottomless_server.runtime.http.bodies import (
    ClientGone,
    any_content_type,
    content_encoding,
    content_type,
    encode_json,
    header,
    malformed_json,
    negotiate,
    number_out_of_range,
    parse_json,
    parse_json_lines,
    read_body,
)
from bottomless_server.runtime.http.contract import tell
from bottomless_server.runtime.http.endpoint_table import Reach
from bottomless_server.runtime.http.endpoints import find
from bottomless_server.runtime.http.problems import (
    PROBLEM_TYPE,
    STATUS,
    method_not_allowed,
    problem_response,
    request_id_of,
    send_problem,
    unexpected,
)
from bottomless_server.runtime.http.queries import bad_parameter, parse_query

__all__ = [
    "PROBLEM_TYPE",
    "STATUS",
    "ClientGone",
    "Parser",
    "Repeated",
    "any_content_type",
    "bad_parameter",
    "boolean",
    "choice",
    "content_encoding",
    "content_type",
    "create_api",
    "encode_json",
    "header",
    "integer",
    "json_response",
    "malformed_json",
    "message_response",
    "method_not_allowed",
    "negotiate",
    "number_out_of_range",
    "parse_json",
    "parse_json_lines",
    "parse_query",
    "problem_response",
    "read_body",
    "request_id_of",
    "said_in_log",
    "send_problem",
    "text",
    "with_shortcut",
    "wrap",
]

log = structlog.get_logger(__name__)

_READS: Final = ("GET", "HEAD")
_PUBLIC: Final = "/v1/"
"""Below it stand all paths that hold names of users."""
_SAID: Final = "bottomless.said_in_log"
_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
BROKER_OPERATIONS: Final = frozenset({"produce", "consume", "get_broker_health"})
"""The operations of openapi/broker.yaml, which are off unless an operator turns them on."""


def json_response(
    value: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """An answer for users; it ends its line, so that a terminal's prompt stands on the next one."""
    return Response(
        orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE), status, headers, "application/json"
    )


def message_response(value: Any, headers: Mapping[str, str] | None = None) -> Response:
    """An answer for another service: the bytes of a message of `protocol/`, and nothing more."""
    return Response(orjson.dumps(value), 200, headers, "application/json")


def create_api(title: str) -> FastAPI:
    """An application whose every failure is a problem; put `wrap` around it before serving."""
    api = FastAPI(
        title=title,
        redirect_slashes=False,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        # Asked on every request whether it is on.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    tell(api)
    api.add_exception_handler(StoreError, _answer_store_error)
    # No route lets FastAPI read what a request carries; its own answer would show the input.
    api.add_exception_handler(RequestValidationError, _answer_any)
    api.add_exception_handler(HTTPException, _answer_framework_error)
    api.add_exception_handler(ClientGone, _answer_nobody)
    api.add_exception_handler(Exception, _answer_any)
    return api


def with_shortcut(
    app: ASGIApp, method: str, path: str, route: Callable[[Request], Awaitable[Response]]
) -> ASGIApp:
    """An application of `create_api`, of which one route is found by its path alone: what one node sends
    another for each round would else cost less than the search for who takes it. `app` serves it too,
    and says so in its contract; its failures are the same problems."""

    async def found(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != path or scope["method"] != method:
            await app(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            response = await route(request)
        except StoreError as error:
            response = await _answer_store_error(request, error)
        except ClientGone as error:
            response = await _answer_nobody(request, error)
        except Exception as error:  # noqa: BLE001 it is answered, and logged with its traceback
            response = _answer_bug(request, error)
        await response(scope, receive, send)

    return found


def wrap(app: ASGIApp) -> ASGIApp:
    """Put the shell around an application: ids, headers and bounds that every answer has.

    Pure ASGI: Starlette's base middleware would hide a client's leaving from long polls.
    """

    async def shell(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError("only HTTP is served")
        added = added_headers(scope)
        started = complete = False

        async def send_added(message: Message) -> None:
            nonlocal started, complete
            if message["type"] == "http.response.start":
                # A shell inside another one, as in the all-in-one, says nothing twice.
                said = {name for name, _ in message["headers"]}
                fresh = [pair for pair in added if pair[0] not in said]
                message = {**message, "headers": [*message["headers"], *fresh]}
                started = True
            elif message["type"] == "http.response.body":
                complete = not message.get("more_body", False)
            await send(message)

        if (refused := wrong_target(scope)) is not None:
            await send_problem(send_added, refused, request_id_of(scope))
            return
        try:
            await app(scope, receive, send_added)
        except Exception as error:
            # Starlette raises a bug again after it was answered and logged. If the answer
            # broke off half-way, the server must hear of it to cut the connection.
            if started and not complete:
                raise
            if not started:
                await _answer_bug(Request(scope), error)(scope, receive, send_added)

    return shell


def added_headers(scope: Scope) -> list[tuple[bytes, bytes]]:
    """What every answer has, whoever makes it."""
    added = [
        (b"request-id", request_id_of(scope).encode()),
        (b"x-content-type-options", b"nosniff"),
    ]
    return added + [pair for pair in scope["headers"] if pair[0] == b"traceparent"][:1]


def wrong_target(scope: Scope) -> InvalidRequest | None:
    """What is wrong with the URL whatever is served; judged before anybody looks for a route."""
    if len(scope["raw_path"]) + len(scope["query_string"]) >= URL_SIZE_MAX:
        return InvalidRequest("the URL is too long", code=Code.URI_TOO_LONG)
    if holds_slash(scope):
        return InvalidRequest(
            "a name or an id in a path may not hold a slash, and %2F is one", code=Code.BAD_NAME
        )
    return None


@guard("the look at encoded slashes in a path")
def holds_slash(scope: Scope) -> bool:
    """Whether some slash of the path is encoded, as of a name that has one.

    Routes are found by the decoded path, in which it looks like one between parts: what was
    meant for a stream `orders/offsets` would be done with the stream `orders`.
    """
    return scope["path"].startswith(_PUBLIC) and b"%2f" in scope["raw_path"].lower()


def _answer(request: Request, error: StoreError) -> Response:
    write = request.method not in _READS
    scope = request.scope
    return problem_response(error, request_id_of(scope), write=write, path=scope["path"])


def said_in_log(scope: Scope) -> None:
    """Write no line for this request if it fails: whoever refuses it has said why in the log, and says so
    seldom of what goes on and on."""
    scope[_SAID] = True


async def _answer_store_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, StoreError)
    # Whoever comes while it stops is refused on purpose; that it stops was said once.
    is_said = error.code is Code.DRAINING or request.scope.get(_SAID, False)
    if STATUS[error.code] >= 500 and not is_said:
        log.warning("request failed", **_named(request), code=error.code.value, error=str(error))
    return _answer(request, error)


async def _answer_framework_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        sentence = _elsewhere(request) or "nothing is served at this path"
        return _answer(request, NotFound(sentence, code=Code.NOT_FOUND))
    if error.status_code == 405:
        return _answer(request, method_not_allowed(_allowed(request), _elsewhere(request)))
    code = next((code for code, status in STATUS.items() if status == error.status_code), None)
    if code is None or error.status_code >= 500:
        return _answer_bug(request, error)
    return _answer(request, InvalidRequest("the request is refused", code=code))


def _elsewhere(request: Request) -> str | None:
    """What to say to whoever asks this service for what it does not serve, though the contract has it:
    another service does, or it is off here."""
    endpoint = find(request.scope).endpoints.get(request.method)
    if endpoint is None or endpoint.service is None:
        return None
    if endpoint.operation_id in BROKER_OPERATIONS:
        instead = "; /readyz says how a server is" if endpoint.reach is Reach.OPEN else ""
        switch = "BOTTOMLESS_BROKER=1"
        return f"the service {endpoint.service} answers this, if it runs with {switch}{instead}"
    return (
        f"the service {endpoint.service} answers this, and this is the port of another one alone: "
        "ask the address that all services share"
    )


def _allowed(request: Request) -> list[str]:
    # Asked of every route, since Starlette names only the methods of the first that matches.
    def served(method: str) -> bool:
        scope = {**request.scope, "method": method}
        return any(route.matches(scope)[0] is Match.FULL for route in request.app.routes)

    return [method for method in _METHODS if served(method)]


async def _answer_nobody(_: Request, __: Exception) -> Response:
    return Response(status_code=400)


async def _answer_any(request: Request, error: Exception) -> Response:
    return _answer_bug(request, error)


def _answer_bug(request: Request, error: Exception) -> Response:
    log.error("request met a bug", **_named(request), exc_info=error)
    outcome = Outcome.NONE if request.method in _READS else Outcome.UNKNOWN
    return _answer(request, unexpected(error, outcome))


def _named(request: Request) -> dict[str, str]:
    return {
        "method": request.method,
        "path": request.url.path,
        "request_id": request_id_of(request.scope),
    }
