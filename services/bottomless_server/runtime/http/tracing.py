"""The request for which something is done: its ids in log lines, and in calls to other services.

The request is one context variable, so that nobody on its way has to pass ids on. An id is
made when somebody asks for it. `traceparent` is W3C's: the trace of the caller goes on, under
a span of our own, or begins here.

A task that was begun for a request may outlive it, and does the work of others by then: from
the end of an answer on its request says nothing more.
"""

import os
import re
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.typing import EventDict

from bottomless_server.runtime.base.principal import principal_of
from bottomless_server.runtime.http.problems import request_id_of, take_request_id

log = structlog.get_logger(__name__)

_TRACEPARENT: Final = re.compile(rb"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_REQUEST_ID: Final = re.compile(rb"[0-9A-Za-z_-]{1,64}")
_TRACE: Final = "bottomless.trace"


@dataclass(slots=True)
class _Held:
    """What tasks that are begun for a request have of it."""

    scope: Scope | None


_current: ContextVar[_Held | None] = ContextVar("bottomless_request", default=None)


class Trace(NamedTuple):
    trace_id: str
    span_id: str
    flags: str

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{self.flags}"


def trace_of(scope: Scope) -> Trace:
    """The trace of a request and our span of it."""
    trace: Trace | None = scope.get(_TRACE)
    if trace is None:
        found = next(
            (_parse(value) for key, value in scope["headers"] if key == b"traceparent"), None
        )
        trace_id, flags = found or (os.urandom(16).hex(), "00")
        trace = scope[_TRACE] = Trace(trace_id, os.urandom(8).hex(), flags)
    return trace


def passed_on() -> dict[str, str]:
    """The headers with which a call to another service goes on for the request in hand."""
    scope = _scope()
    if scope is None:
        return {}
    return {"request-id": request_id_of(scope), "traceparent": trace_of(scope).traceparent}


def name_request(_: Any, __: str, event: EventDict) -> EventDict:
    """A step of the log: say for which request, and for whom, a line is."""
    scope = _scope()
    if scope is not None:
        trace, principal = trace_of(scope), principal_of(scope)
        event.setdefault("request_id", request_id_of(scope))
        event.setdefault("trace_id", trace.trace_id)
        event.setdefault("span_id", trace.span_id)
        event.setdefault("tenant", principal.tenant)
        event.setdefault("actor", principal.actor)
    return event


class Requests:
    """The requests of a process, as its log sees them."""

    def __init__(
        self, *, access_log: bool, span_of: Callable[[], Trace | None] | None = None
    ) -> None:
        """Log each request when its answer has ended; without `access_log` at the level debug.
        `span_of` tells the span in hand, where somebody else makes them."""
        self._span_of = span_of
        self._write = log.info if access_log else log.debug

    def around(self, app: ASGIApp, *, trusted: bool) -> ASGIApp:
        """The application, each request known while it is answered. Who is `trusted`, which is
        another service of ours, says what id the request has."""

        async def known(scope: Scope, receive: Receive, send: Send) -> None:
            if trusted:
                _take_over_id(scope)
            if self._span_of is not None:
                scope[_TRACE] = self._span_of()
            began_at = time.perf_counter()
            status = 0

            async def send_known(message: Message) -> None:
                nonlocal status
                status = message.get("status", status)
                await send(message)

            held = _Held(scope)
            _current.set(held)
            try:
                await app(scope, receive, send_known)
            finally:
                self._note(scope, status, time.perf_counter() - began_at)
                held.scope = None

        return known

    def note_answered(self, scope: Scope, status: int, seconds: float) -> None:
        """Log a request that is answered outside of `around`; 0 is that of no answer."""
        token = _current.set(_Held(scope))
        try:
            self._note(scope, status, seconds)
        finally:
            _current.reset(token)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        self._write(
            "request",
            method=scope["method"],
            path=scope["path"],
            status=status,
            duration_ms=round(seconds * 1000, 3),
        )


def _scope() -> Scope | None:
    held = _current.get()
    return None if held is None else held.scope


def _take_over_id(scope: Scope) -> None:
    for key, value in scope["headers"]:
        if key == b"request-id" and _REQUEST_ID.fullmatch(value):
            take_request_id(scope, value.decode("ascii"))
            return


def _parse(value: bytes) -> tuple[str, str] | None:
    match = _TRACEPARENT.fullmatch(value)
    if match is None or match[1] == b"0" * 32 or match[2] == b"0" * 16:
        return None
    return match[1].decode("ascii"), match[3].decode("ascii")
