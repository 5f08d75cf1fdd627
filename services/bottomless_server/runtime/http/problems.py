"""Problems: the one shape of every error, and the one place where errors meet status codes.

application/problem+json as api.md, section 12, has it. Routes raise StoreErrors and never
name a status; `app.py` adds this to every application.
"""

import math
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import orjson
from starlette.responses import Response
from starlette.types import Scope, Send

from bottomless.errors import Code, Fault, InvalidRequest, Outcome, Overloaded, StoreError
from bottomless.model.names import parse_stream_name
from bottomless_server.runtime.http.whole_answer import WholeAnswer, send_whole

PROBLEM_TYPE: Final = "application/problem+json"

STATUS: Final[Mapping[Code, int]] = {
    Code.MALFORMED_JSON: 400,
    Code.UNKNOWN_PARAMETER: 400,
    Code.DUPLICATE_PARAMETER: 400,
    Code.BAD_PARAMETER: 400,
    Code.BAD_OFFSET_SPEC: 400,
    Code.BAD_HEADER: 400,
    Code.BAD_NAME: 400,
    Code.UNAUTHENTICATED: 401,
    Code.FORBIDDEN: 403,
    Code.HOST_NOT_ALLOWED: 403,
    Code.ORIGIN_NOT_ALLOWED: 403,
    Code.NOT_FOUND: 404,
    Code.STREAM_NOT_FOUND: 404,
    Code.CONSUMER_NOT_FOUND: 404,
    Code.OPERATION_NOT_FOUND: 404,
    Code.LEASE_NOT_FOUND: 404,
    Code.FRAGMENT_NOT_FOUND: 404,
    Code.PRODUCER_NOT_FOUND: 404,
    Code.STAGED_NOT_FOUND: 404,
    Code.OFFSET_NOT_FOUND: 404,
    Code.KEY_NOT_FOUND: 404,
    Code.GROUP_NOT_FOUND: 404,
    Code.QUEUE_NOT_FOUND: 404,
    Code.MEMBER_EXPIRED: 404,
    Code.METHOD_NOT_ALLOWED: 405,
    Code.NOT_ACCEPTABLE: 406,
    Code.REQUEST_TIMEOUT: 408,
    Code.STREAM_EXISTS: 409,
    Code.STREAM_REPLACED: 409,
    Code.PRODUCER_FENCED: 409,
    Code.PRODUCER_SEQUENCE_GAP: 409,
    Code.PRODUCER_SEQUENCE_OVERLAP: 409,
    Code.PRODUCER_UNKNOWN: 409,
    Code.PRODUCER_MODE_CONFLICT: 409,
    Code.STREAM_FENCED: 409,
    Code.IDEMPOTENCY_IN_FLIGHT: 409,
    Code.OFFSET_REGRESSION: 409,
    Code.CONSUMER_FENCED: 409,
    Code.NOT_ACTIVE: 409,
    Code.GROUP_MISMATCH: 409,
    Code.GROUP_NOT_EMPTY: 409,
    Code.PARTITION_OF_SUPER_STREAM: 409,
    Code.QUEUE_EXISTS: 409,
    Code.QUEUE_IN_USE: 409,
    Code.DRIVE_IN_USE: 409,
    Code.QUEUE_NOT_EMPTY: 409,
    Code.HOME_LIVE: 409,
    Code.IN_SYNC_LIVE: 409,
    Code.NOT_IN_SYNC: 409,
    Code.COORDINATION_INTACT: 409,
    Code.KEY_NOT_ACTIVE: 409,
    Code.MOVED: 409,
    Code.FENCED: 409,
    Code.OFFSET_TRIMMED: 410,
    Code.RANGE_CONDEMNED: 410,
    Code.OFFSET_MISMATCH: 412,
    Code.ETAG_MISMATCH: 412,
    Code.BODY_TOO_LARGE: 413,
    Code.RECORD_TOO_LARGE: 413,
    Code.BATCH_TOO_LARGE: 413,
    Code.DECOMPRESSED_TOO_LARGE: 413,
    Code.URI_TOO_LONG: 414,
    Code.UNSUPPORTED_MEDIA_TYPE: 415,
    Code.OFFSET_OUT_OF_RANGE: 416,
    Code.RANGE_NOT_SATISFIABLE: 416,
    Code.VALIDATION_FAILED: 422,
    Code.NUMBER_OUT_OF_RANGE: 422,
    Code.CRC_MISMATCH: 422,
    Code.IDEMPOTENCY_MISMATCH: 422,
    Code.OFFSET_BEYOND_END: 422,
    Code.NO_ROUTE: 422,
    Code.DRIVE_UNKNOWN: 422,
    Code.PRECONDITION_REQUIRED: 428,
    Code.DISK_BOUND: 429,
    Code.TAIL_BOUND: 429,
    Code.QUEUE_FULL: 429,
    Code.QUOTA_EXCEEDED: 429,
    Code.RATE_LIMITED: 429,
    Code.HEADERS_TOO_LARGE: 431,
    Code.INTERNAL: 500,
    Code.DATA_CORRUPT: 502,
    Code.DATA_MISSING: 502,
    Code.LOCAL_LOG_LOST: 502,
    Code.OVERLOADED: 503,
    Code.DRAINING: 503,
    Code.SUPER_STREAM_GROWING: 503,
    Code.NOT_OWNER: 503,
    Code.OBJECT_STORE_UNAVAILABLE: 503,
    Code.COORDINATION_UNAVAILABLE: 503,
    Code.COORDINATION_REGRESSED: 503,
    Code.PEER_UNAVAILABLE: 503,
    Code.CLOCK_SKEW: 503,
    Code.STORAGE_FULL: 503,
    Code.STORAGE_FAILED: 503,
    Code.NOT_ENOUGH_REPLICAS: 503,
    Code.COMMIT_TIMEOUT: 504,
}

_WITHOUT_OUTCOME: Final = frozenset(
    {
        Code.OFFSET_TRIMMED,
        Code.OFFSET_OUT_OF_RANGE,
        Code.RANGE_NOT_SATISFIABLE,
        Code.DATA_CORRUPT,
        Code.DATA_MISSING,
        Code.LOCAL_LOG_LOST,
    }
)
"""Codes that answer reads: there it says nothing whether a write happened."""

_STORES_AWAY: Final = frozenset({Code.OBJECT_STORE_UNAVAILABLE, Code.COORDINATION_UNAVAILABLE})
"""What is away for seconds or minutes, and no service that we call says for how long."""
_PAUSE_SECONDS: Final = 1

_STREAM_PATH: Final = re.compile(r"/v1/(?:admin/)?streams/([^/]+)")
"""Paths of the public interface that name a stream; internal callers know which stream it was."""

_REQUEST_ID: Final = "bottomless.request_id"


def unexpected(error: Exception, outcome: Outcome) -> StoreError:
    """What is answered to what nobody foresaw. Memory that ran out is no bug, and passes; but
    `overloaded` says that nothing was stored, so only where that is known."""
    if isinstance(error, MemoryError) and outcome is Outcome.NONE:
        return _out_of_memory()
    sentence = "an unexpected error; the server's log has it under the request_id"
    return StoreError(sentence, outcome=outcome)


@contextmanager
def enough_memory() -> Iterator[None]:
    """Put around what is done of a write before anything of it is stored.

    Raises:
        Overloaded: the process has too little memory for it.
    """
    try:
        yield
    except MemoryError as error:
        raise _out_of_memory() from error


def _out_of_memory() -> Overloaded:
    sentence = "the server has too little memory for this request now"
    return Overloaded(sentence, retry_after_seconds=_PAUSE_SECONDS)


def request_id_of(scope: Scope) -> str:
    """The id of a request: ours, sortable by time, the same for everybody who asks."""
    request_id: str | None = scope.get(_REQUEST_ID)
    if request_id is None:
        request_id = f"{time.time_ns() // 1_000_000:012x}{os.urandom(8).hex()}"
        scope[_REQUEST_ID] = request_id
    return request_id


def take_request_id(scope: Scope, request_id: str) -> None:
    """Let a request have the id that a trusted caller gave it."""
    scope[_REQUEST_ID] = request_id


def problem_response(
    error: StoreError, request_id: str, *, write: bool = True, path: str = ""
) -> Response:
    """The answer for an error; for a read (`write` false) without an outcome where it says nothing.
    `path` is the request's, which may name the stream that there is not."""
    problem = _problem(error, request_id, path, write=write)
    return Response(problem.body, problem.status, problem.headers)


async def send_problem(send: Send, error: StoreError, request_id: str, path: str = "") -> None:
    """Send an error as a problem, from code that speaks ASGI itself."""
    await send_whole(send, problem_answer(error, request_id, path))


def problem_members(error: StoreError, request_id: str) -> dict[str, Any]:
    """An error as a problem within an answer to more than what it refuses."""
    return _members(error, request_id, "", write=True)


def problem_answer(error: StoreError, request_id: str, path: str = "") -> WholeAnswer:
    """The answer for an error of a request that may change something."""
    problem = _problem(error, request_id, path, write=True)
    headers = [*problem.headers.items(), ("content-length", str(len(problem.body)))]
    encoded = [(name.encode(), value.encode()) for name, value in headers]
    return WholeAnswer(problem.status, encoded, problem.body)


def method_not_allowed(allowed: list[str], sentence: str | None = None) -> InvalidRequest:
    """The error for a path that is served, but not by this method."""
    return InvalidRequest(
        sentence or "this path does not take this method",
        code=Code.METHOD_NOT_ALLOWED,
        facts={"allowed": allowed},
    )


class _Problem(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


def _problem(error: StoreError, request_id: str, path: str, *, write: bool) -> _Problem:
    members = _members(error, request_id, path, write=write)
    headers = {"content-type": PROBLEM_TYPE, **_headers_of(error)}
    body = orjson.dumps(members, option=orjson.OPT_APPEND_NEWLINE)
    return _Problem(STATUS[error.code], headers, body)


def _members(error: StoreError, request_id: str, path: str, *, write: bool) -> dict[str, Any]:
    members: dict[str, Any] = {
        **error.facts,
        **_missing_stream(error, path),
        "type": f"urn:bottomless:problem:{error.code}",
        "title": error.code.replace("-", " ").capitalize(),
        "status": STATUS[error.code],
        "detail": error.message,
        "code": error.code,
        "retryable": error.retryable,
        "request_id": request_id,
    }
    if error.outcome is not None and (write or error.code not in _WITHOUT_OUTCOME):
        # Of a read nothing is unknown, whichever answer was lost on the way to it.
        members["outcome"] = error.outcome if write else Outcome.NONE
    if error.faults:
        members["errors"] = [_fault_members(fault) for fault in error.faults]
    return members


def _missing_stream(error: StoreError, path: str) -> dict[str, str]:
    """The name of the stream that there is not, as the caller's own path has it: only where it is
    a valid name, and the same whether the stream is hidden from the caller or is not there."""
    found = _STREAM_PATH.match(path) if error.code is Code.STREAM_NOT_FOUND else None
    if found is None:
        return {}
    try:
        return {"stream": parse_stream_name(found[1])}
    except InvalidRequest:
        return {}


def _fault_members(fault: Fault) -> dict[str, str]:
    places = {"pointer": fault.pointer, "parameter": fault.parameter, "header": fault.header}
    given = {name: place for name, place in places.items() if place is not None}
    return {"code": fault.code, "detail": fault.detail, **given}


def _headers_of(error: StoreError) -> dict[str, str]:
    headers = {}
    if error.retry_after_seconds is not None:
        headers["retry-after"] = str(math.ceil(error.retry_after_seconds))
    elif error.retryable and error.code in _STORES_AWAY:
        headers["retry-after"] = str(_PAUSE_SECONDS)
    if error.code is Code.UNAUTHENTICATED:
        headers["www-authenticate"] = "Bearer"
    if error.code is Code.METHOD_NOT_ALLOWED:
        headers["allow"] = _joined(error.facts.get("allowed"))
    if error.code is Code.UNSUPPORTED_MEDIA_TYPE and "accepted" in error.facts:
        headers["accept-post"] = _joined(error.facts["accepted"])
    if error.code is Code.UNSUPPORTED_MEDIA_TYPE and "accepted_encodings" in error.facts:
        headers["accept-encoding"] = _joined(error.facts["accepted_encodings"])
    if error.code is Code.RANGE_NOT_SATISFIABLE and "size_bytes" in error.facts:
        headers["content-range"] = f"bytes */{error.facts['size_bytes']}"
    return headers


def _joined(words: object) -> str:
    return ", ".join(map(str, words)) if isinstance(words, list | tuple) else ""
