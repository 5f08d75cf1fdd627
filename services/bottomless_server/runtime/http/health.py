"""Health, in front of a public application: /livez and /readyz.

`/livez` says that the loop runs. `/readyz` says whether this process takes traffic: a
slow object store does not make it unready, since then callers would meet closed
connections instead of an answer that says what is wrong. `/readyz?verbose=1` adds what
each service reports of its dependencies.
"""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Final, Protocol, runtime_checkable

import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from bottomless.errors import Code, StoreError, Unavailable
from bottomless_server.runtime.http.app import (
    choice,
    json_response,
    method_not_allowed,
    parse_query,
    request_id_of,
    send_problem,
)

log = structlog.get_logger(__name__)

REPORT_SECONDS: Final = 2.0
PATHS: Final = ("/livez", "/readyz")


@runtime_checkable
class Reporting(Protocol):
    """What a service may have beside the rest: a word on each dependency."""

    def report(self) -> Awaitable[Mapping[str, Any]]: ...


@runtime_checkable
class Refusing(Protocol):
    """What a service may have that can lose what it needs to serve anything at all."""

    def not_ready(self) -> StoreError | None: ...


class Health:
    """Whether a process takes traffic."""

    def __init__(self, services: Mapping[str, object]) -> None:
        self._services = services
        self.draining = False

    def around(self, app: ASGIApp) -> ASGIApp:
        """The application, with the paths of health answered before it."""

        async def healthy(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["path"] not in PATHS:
                await app(scope, receive, send)
                return
            try:
                members = await self._answer(scope)
            except StoreError as error:
                await send_problem(send, error, request_id_of(scope))
            else:
                await json_response(members)(scope, receive, send)

        return healthy

    async def _answer(self, scope: Scope) -> dict[str, Any]:
        if scope["method"] not in ("GET", "HEAD"):
            raise method_not_allowed(["GET", "HEAD"])
        if scope["path"] == "/livez":
            parse_query(scope, {})
            return {"status": "live"}
        verbose = parse_query(scope, {"verbose": choice("1", "true", "0", "false")})
        reports = {}
        if verbose.get("verbose") in ("1", "true"):
            reports = {"services": await self._reports()}
        if self.draining:
            raise Unavailable("the server is about to stop", code=Code.DRAINING, facts=reports)
        for service in self._services.values():
            error = service.not_ready() if isinstance(service, Refusing) else None
            if error is not None:
                raise error
        return {"status": "ready", **reports}

    async def _reports(self) -> dict[str, Any]:
        names: Sequence[str] = list(self._services)
        reports = await asyncio.gather(*(self._report(name) for name in names))
        return dict(zip(names, reports, strict=True))

    async def _report(self, name: str) -> Mapping[str, Any]:
        service = self._services[name]
        if not isinstance(service, Reporting):
            return {"status": "running"}
        try:
            async with asyncio.timeout(REPORT_SECONDS):
                return await service.report()
        except TimeoutError:
            return {"status": "no report in time"}
        except Exception as error:
            # Whatever is wrong with a dependency, this question has an answer.
            log.warning("a report failed", service=name, exc_info=error)
            return {"status": "report failed"}
