"""How much a tenant, and each of its credentials, may ask of this process in a second.

Pure ASGI. It runs after the gate, which says whose request it is. Counted are requests below /v1 and
bytes of bodies that append, as they are sent; each by a sliding window of two counters
(`sliding_window.py`), so that a bucket is some numbers and not a list of events. Nothing is shared
between processes: n of them let n times as much pass.

The bytes of an append are counted before its body is read, where it says how many they are. A
body that does not say is counted when its end has come, before anything of it is stored.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from cachetools import LRUCache
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bottomless.errors import Code, Overloaded
from bottomless.model.limits import BINARY_BODY_SIZE_MAX
from bottomless_server.core.principal import Principal
from bottomless_server.runtime.base.principal import principal_of
from bottomless_server.runtime.base.settings import CommonSettings
from bottomless_server.runtime.http.endpoint_table import Rate
from bottomless_server.runtime.http.endpoints import TABLE, find
from bottomless_server.runtime.http.problems import request_id_of, send_problem
from bottomless_server.runtime.process.sliding_window import SlidingWindow

BUCKET_COUNT_MAX: Final = 20_000
"""Tenants and credentials that are counted at once, some 500 bytes each. Who is the longest silent
is forgotten first, and may then ask as if it had not asked before."""

_BELOW: Final = "/v1/"
_ADMITTED: Final = "bottomless.admitted"
"""In a scope: how a request was counted before it came here."""
_BY_ROUTE: Final = "bottomless.rates"
"""In a scope: the limits by which a route counts what a request stands for."""


def count_by_route(scope: Scope, size: int | None = None) -> None:
    """Count one of the requests that a request stands for as if it had come alone; with `size`, as an
    append of a body of so many bytes.

    Raises:
        Overloaded: `rate-limited`.
    """
    limits: RateLimits | None = scope.get(_BY_ROUTE)
    if limits is not None:
        request = LimitedRequest(limits, principal_of(scope), appends=size is not None)
        request.admit(size)


class Policy(NamedTuple):
    """One limit, as its name in `RateLimit-Policy` says."""

    name: str
    quota: int
    window_seconds: int
    per_key: bool
    of_bytes: bool

    @property
    def described(self) -> str:
        unit = "content-bytes" if self.of_bytes else "requests"
        return f'"{self.name}";q={self.quota};w={self.window_seconds};qu="{unit}"'


def policies_of(settings: CommonSettings) -> list[Policy]:
    """The limits that are set."""
    found = []
    # The credential's first: what it asks for in vain is not taken from its tenant's others.
    for whose, requests, size in (
        (
            "key",
            settings.rate_key_requests_per_second,
            settings.rate_key_append_bytes_per_second,
        ),
        (
            "tenant",
            settings.rate_tenant_requests_per_second,
            settings.rate_tenant_append_bytes_per_second,
        ),
    ):
        per_key = whose == "key"
        if requests is not None:
            found.append(Policy(f"{whose}-requests", requests, 1, per_key, of_bytes=False))
        if size is not None:
            # Long enough for one body of the largest size, which would never fit otherwise.
            seconds = max(1, math.ceil(BINARY_BODY_SIZE_MAX / size))
            name = f"{whose}-append-bytes"
            found.append(Policy(name, size * seconds, seconds, per_key, of_bytes=True))
    return found


class RateLimits:
    """The buckets of one process."""

    def __init__(
        self,
        policies: Sequence[Policy],
        *,
        bucket_count_max: int = BUCKET_COUNT_MAX,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        self._elapsed = elapsed
        self._policies = {True: list(policies)}
        self._policies[False] = [policy for policy in policies if not policy.of_bytes]
        self._described = {
            appends: ", ".join(policy.described for policy in applied).encode("ascii")
            for appends, applied in self._policies.items()
        }
        self._buckets: LRUCache[tuple[str, ...], dict[str, SlidingWindow]] = LRUCache(
            bucket_count_max
        )

    def around(self, app: ASGIApp) -> ASGIApp:
        """The application within these limits; itself where there are none."""
        if not self._policies[True]:
            return app

        async def limited(scope: Scope, receive: Receive, send: Send) -> None:
            rate = _rate(scope)
            appends = rate is Rate.APPEND
            if rate is Rate.BY_ROUTE:
                scope[_BY_ROUTE] = self
            if rate in (Rate.NONE, Rate.BY_ROUTE) or not self._policies[appends]:
                await app(scope, receive, send)
                return
            request: LimitedRequest | None = scope.get(_ADMITTED)
            if request is not None:
                # It was counted on the lane, which it left.
                await app(scope, receive, request.sending(send))
                return
            request = LimitedRequest(self, principal_of(scope), appends=appends)
            try:
                request.admit(_declared_size(scope) if appends else 0)
            except Overloaded as error:
                await send_problem(request.sending(send), error, request_id_of(scope))
                return
            counted = request.counting(receive) if request.size_is_unknown else receive
            await app(scope, counted, request.sending(send))

        return limited

    def at_once(self, scope: Scope, size: int) -> "LimitedRequest | None":
        """Count an append whose body has `size` bytes, as `around` does; what counts it once more
        finds it counted. None, and nothing is counted, if it would be refused, or where nobody
        knows yet."""
        request = LimitedRequest(self, principal_of(scope), appends=True)
        if self._policies[True]:
            if size > BINARY_BODY_SIZE_MAX or not request.may_pass(size):
                return None
            request.admit(size)
            scope[_ADMITTED] = request
        return request

    def applied(self, *, appends: bool) -> Sequence[Policy]:
        return self._policies[appends]

    def described(self, *, appends: bool) -> bytes:
        """The value of `RateLimit-Policy`."""
        return self._described[appends]

    def take(self, policy: Policy, principal: Principal, cost: int, *, counts: bool) -> "Allowance":
        """Count `cost` where there is room for it; without `counts`, only look."""
        whose = (principal.tenant, principal.actor) if policy.per_key else (principal.tenant,)
        bucket = self._buckets.get(whose)
        if bucket is None:
            bucket = self._buckets[whose] = {}
        now = self._elapsed()
        window = bucket.get(policy.name)
        if window is None:
            window = bucket[policy.name] = SlidingWindow(policy.window_seconds, began_at=now)
        left = window.move(now)
        wait = window.seconds_until_room(policy.quota, left, cost)
        if wait == 0 and counts:
            window.now += cost
        remaining = max(0, policy.quota - math.floor(window.counted(left)))
        return Allowance(remaining, wait or left, refused=wait > 0)


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a limit says after a request was counted, or was not."""

    remaining: int
    seconds: float
    """How long at least that much is left; after a refusal, how long until the request would pass."""
    refused: bool = False


class LimitedRequest:
    """One request on its way through the limits."""

    def __init__(self, limits: RateLimits, principal: Principal, *, appends: bool) -> None:
        self._limits = limits
        self._principal = principal
        self._appends = appends
        self._allowances: dict[str, Allowance] = {}
        self.size_is_unknown = False

    def may_pass(self, size: int) -> bool:
        """Whether `admit` would let it pass."""
        return not any(
            self._limits.take(
                policy, self._principal, size if policy.of_bytes else 1, counts=False
            ).refused
            for policy in self._limits.applied(appends=self._appends)
        )

    def admit(self, size: int | None) -> None:
        """Count the request, and its body where its size is known.

        Raises:
            Overloaded: `rate-limited`.
        """
        self.size_is_unknown = size is None
        for policy in self._limits.applied(appends=self._appends):
            if not policy.of_bytes:
                self._take(policy, 1)
            elif size is not None:
                self._take(policy, size)
            else:
                # At least a byte has to fit, or the body is not begun.
                self._take(policy, 1, counts=False)

    def counting(self, receive: Receive) -> Receive:
        """`receive`, which counts the body when its end has come.

        Raises:
            Overloaded: `rate-limited`; from the last call.
        """
        size = 0

        async def receive_counted() -> Message:
            nonlocal size
            message = await receive()
            if message["type"] != "http.request":
                return message
            size += len(message.get("body", b""))
            if not message.get("more_body", False) and size <= BINARY_BODY_SIZE_MAX:
                for policy in self._limits.applied(appends=True):
                    if policy.of_bytes:
                        self._take(policy, size)
            return message

        return receive_counted

    def headers(self) -> list[tuple[bytes, bytes]]:
        """How the limits stand, as an answer says it; nothing where there are none."""
        if not self._allowances:
            return []
        allowance = ", ".join(
            f'"{name}";r={one.remaining};t={math.ceil(one.seconds)}'
            for name, one in self._allowances.items()
        )
        return [
            (b"ratelimit-policy", self._limits.described(appends=self._appends)),
            (b"ratelimit", allowance.encode("ascii")),
        ]

    def sending(self, send: Send) -> Send:
        """`send` that says how the limits stand."""

        async def send_standing(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *self.headers()]}
            await send(message)

        return send_standing

    def _take(self, policy: Policy, cost: int, *, counts: bool = True) -> None:
        allowance = self._limits.take(policy, self._principal, cost, counts=counts)
        self._allowances[policy.name] = allowance
        if allowance.refused:
            raise Overloaded(
                "too many requests in a short time; wait as long as Retry-After says",
                code=Code.RATE_LIMITED,
                retry_after_seconds=allowance.seconds,
                facts={"policy": policy.name},
            )


def _rate(scope: Scope) -> Rate:
    """What is counted of a request; also of one for which nothing is served."""
    path = scope["path"]
    # To routers a path that ends with a line feed is the same path.
    found = TABLE.find(path[:-1]) if path.endswith("\n") else find(scope)
    endpoint = found.endpoints.get(scope["method"])
    if endpoint is not None:
        return endpoint.rate
    return Rate.REQUESTS if path.startswith(_BELOW) else Rate.NONE


def _declared_size(scope: Scope) -> int | None:
    """Bytes of the body that is announced, None if that is not said; 0 for one that is refused
    for its size before it is read."""
    for name, value in scope["headers"]:
        if name == b"content-length":
            size = int(value) if value.isdigit() else 0
            return size if size <= BINARY_BODY_SIZE_MAX else 0
    return None
