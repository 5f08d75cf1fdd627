"""The gate before a public application: who sends this, may they do it, and is it audited.

Pure ASGI, around everything that a process serves to the public, in the all-in-one as in a single
service. Where identity is off it lets everything pass and only audits. Where it is on, what is
not in the table (runtime/http/endpoint_table.py) is not served.

Whoever may do nothing with a stream, or a queue, gets the answer of one that is not there; whoever may see it,
but not do this, gets `forbidden`. Both are decided here, before any service looks at the stream.
"""

import time
from typing import Final, NamedTuple

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bottomless.errors import Code, NotFound, StoreError
from bottomless.model.names import TENANT_DEFAULT
from bottomless_server.core.not_found import queue_not_found, stream_not_found
from bottomless_server.core.principal import LOCAL, Principal, forbidden
from bottomless_server.core.scopes import Operation
from bottomless_server.runtime.base.principal import note_principal
from bottomless_server.runtime.http.endpoint_table import QUEUE, STREAM, FoundPath, Reach
from bottomless_server.runtime.http.endpoints import TABLE, find
from bottomless_server.runtime.http.problems import (
    STATUS,
    method_not_allowed,
    request_id_of,
    send_problem,
)
from bottomless_server.runtime.identity.audit import Audit, Audited, note_audited
from bottomless_server.runtime.identity.authenticator import Authenticator
from bottomless_server.runtime.identity.credential import RefusedError, bearer_token, not_good
from bottomless_server.runtime.identity.credential_watch import (
    CredentialWatch,
    note_credential_watch,
)

log = structlog.get_logger(__name__)

REFUSAL_LOGGED_SECONDS: Final = 1.0
"""The least time between two log lines that say why a credential was refused: anybody can cause them."""


_LONG_POLLS: Final = ((Operation.READ,), (Operation.QUEUE_RECEIVE,))
_CHANGES_KEY: Final = frozenset({"key.revoke", "key.rotate"})


class _AskedRequest(NamedTuple):
    """The place of one request in the table of rules, and what the audit calls it."""

    found: FoundPath
    audited: Audited | None


class Gate:
    """Stands before one public application."""

    def __init__(
        self, authenticator: Authenticator | None, audit: Audit, *, check_seconds: float
    ) -> None:
        """Guard an application; without an authenticator identity is off. An answer that takes
        longer than `check_seconds` has its credential checked again.
        """
        self._authenticator = authenticator
        self._audit = audit
        self._check_seconds = check_seconds
        self._refused_count = 0
        self._refusal_logged_at = -REFUSAL_LOGGED_SECONDS

    def around(self, app: ASGIApp) -> ASGIApp:
        """The application, with this gate before it."""

        async def gated(scope: Scope, receive: Receive, send: Send) -> None:
            if TABLE.is_open(scope["path"]):
                await app(scope, receive, send)
                return
            asked = _asked(scope)
            principal = LOCAL
            if self._authenticator is not None:
                try:
                    principal = await self._known(self._authenticator, scope)
                    judge(principal, scope["method"], asked.found)
                except StoreError as error:
                    await self._refuse(scope, send, error, asked.audited, principal)
                    return
            note_principal(scope, principal)
            if self._authenticator is not None and _may_wait(scope["method"], asked.found):
                send = self._checked_late(self._authenticator, scope, send, principal, asked.found)
            ended = None if self._authenticator is None else _key_changed(asked)
            try:
                if ended is not None:
                    send = self._forgetting(send, ended)
                if asked.audited is None:
                    await app(scope, receive, send)
                else:
                    await self._audit_of(app, scope, receive, send, principal, asked.audited)
            finally:
                if ended is not None:
                    self._forget(ended)

        return gated

    def at_once(self, scope: Scope) -> Principal | None:
        """The principal of a request that may do what it asks for, as far as that is known without
        asking anybody, and where nothing is audited. None leaves all of it to `around`: what is
        unknown, and what is refused."""
        asked = _asked(scope)
        if asked.audited is not None or TABLE.is_open(scope["path"]):
            return None
        if self._authenticator is None:
            return LOCAL
        try:
            principal = self._authenticator.at_once(bearer_token(scope["headers"]))
            if principal is not None:
                judge(principal, scope["method"], asked.found)
        except (RefusedError, StoreError):
            return None
        return principal

    def _forgetting(self, send: Send, key_id: str) -> Send:
        """A send for an answer that tells of a key's end: it is at an end here before."""

        async def send_forgotten(message: Message) -> None:
            self._forget(key_id)
            await send(message)

        return send_forgotten

    def _forget(self, key_id: str) -> None:
        if self._authenticator is not None:
            self._authenticator.forget_key(key_id)

    async def _known(self, authenticator: Authenticator, scope: Scope) -> Principal:
        """The principal that the credential of a request stands for.

        Raises:
            Denied: `unauthenticated`.
            Unavailable: nobody can say who it is.
        """
        try:
            return await authenticator.principal(bearer_token(scope["headers"]))
        except RefusedError as error:
            self._log_refusal(str(error), request_id_of(scope))
            raise not_good() from None

    async def _refuse(
        self,
        scope: Scope,
        send: Send,
        error: StoreError,
        audited: Audited | None,
        principal: Principal,
    ) -> None:
        request_id = request_id_of(scope)
        # Who is not known cannot be named: those are counted in the log, not in the audit.
        if audited is not None and audited.action is not None and principal is not LOCAL:
            await self._audit.write(audited, principal, STATUS[error.code], request_id)
        await send_problem(send, error, request_id, scope["path"])

    def _checked_late(
        self,
        authenticator: Authenticator,
        scope: Scope,
        send: Send,
        principal: Principal,
        found: FoundPath,
    ) -> Send:
        """A send for an answer that may begin long after its request came, or stay open: it begins
        only if the same request would still be let in."""
        method, admitted_at = scope["method"], time.monotonic()

        async def check() -> float | None:
            now = await self._known(authenticator, scope)
            judge(now, method, found)
            if now.tenant != principal.tenant:
                raise not_good()
            return now.expires_at

        note_credential_watch(scope, CredentialWatch(check, self._check_seconds))
        refused = False

        async def send_checked(message: Message) -> None:
            nonlocal refused
            begins = message["type"] == "http.response.start"
            if begins and time.monotonic() - admitted_at > self._check_seconds:
                try:
                    await check()
                except StoreError as error:
                    refused = True
                    await send_problem(send, error, request_id_of(scope), scope["path"])
            if not refused:
                await send(message)

        return send_checked

    async def _audit_of(
        self,
        app: ASGIApp,
        scope: Scope,
        receive: Receive,
        send: Send,
        principal: Principal,
        audited: Audited,
    ) -> None:
        request_id = request_id_of(scope)
        note_audited(scope, audited)

        async def send_audited(message: Message) -> None:
            if message["type"] == "http.response.start" and audited.action is not None:
                await self._audit.write(audited, principal, message["status"], request_id)
            await send(message)

        try:
            await app(scope, receive, send_audited)
        finally:
            if audited.action is not None and not audited.written:
                await self._audit.write(audited, principal, None, request_id)

    def _log_refusal(self, reason: str, request_id: str) -> None:
        self._refused_count += 1
        now = time.monotonic()
        if now - self._refusal_logged_at >= REFUSAL_LOGGED_SECONDS:
            log.warning(
                "a credential was refused",
                reason=reason,
                request_id=request_id,
                count=self._refused_count,
            )
            self._refused_count, self._refusal_logged_at = 0, now


def judge(principal: Principal, method: str, found: FoundPath) -> None:
    """Whether a principal may do what a request asks for.

    Raises:
        Denied: `forbidden`.
        NotFound: nothing is served there; or nothing that this principal may know of.
        InvalidRequest: it is not served by this method.
    """
    if not found.endpoints:
        raise NotFound("nothing is served at this path", code=Code.NOT_FOUND)
    endpoint = found.endpoints.get(method)
    if endpoint is None:
        raise method_not_allowed(list(found.endpoints))
    grants = principal.grants
    reach, operations = endpoint.reach, endpoint.operations
    if reach is Reach.STREAM:
        stream = found.parts[STREAM]
        if any(grants.allow(operation, stream) for operation in operations):
            return
        raise stream_not_found() if endpoint.hides and not grants.show(stream) else forbidden()
    if reach is Reach.QUEUE:
        queue = found.parts[QUEUE]
        if any(grants.allow(operation, queue) for operation in operations):
            return
        raise queue_not_found() if endpoint.hides and not grants.show_queue(queue) else forbidden()
    if reach is Reach.OPEN or reach is Reach.ANY_CREDENTIAL:
        return
    if reach is Reach.SOMEWHERE:
        allowed = any(grants.allow_somewhere(operation) for operation in operations)
    else:
        allowed = any(grants.allow_everywhere(operation) for operation in operations)
    if reach is Reach.INSTALLATION:
        allowed = allowed and principal.tenant == TENANT_DEFAULT
    if not allowed:
        raise forbidden()


def _may_wait(method: str, found: FoundPath) -> bool:
    """Whether an answer may begin long after its request came, and can still be refused then: that
    of a read or a receive, whatever its method is."""
    endpoint = found.endpoints.get(method)
    return method == "GET" or (endpoint is not None and endpoint.operations in _LONG_POLLS)


def _key_changed(asked: _AskedRequest) -> str | None:
    """Find the API key that a request revokes or rotates. Whatever is answered: also with an error
    it may have happened, and to ask once more costs nothing.
    """
    if asked.audited is None or asked.audited.action not in _CHANGES_KEY:
        return None
    return asked.found.parts.get("key_id")


def _asked(scope: Scope) -> _AskedRequest:
    found = find(scope)
    endpoint = found.endpoints.get(scope["method"])
    if endpoint is None or not endpoint.audited:
        return _AskedRequest(found, None)
    target = "/".join(found.parts.values()) or None
    return _AskedRequest(found, Audited(endpoint.action, target))
