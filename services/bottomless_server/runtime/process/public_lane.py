"""The layers around a public application, for requests that take the lane.

Each layer of `front.py`, and identity and rates within them, either finds at once that it lets a
request pass, by the function that it uses on the usual way, or leaves the request to that way. What
it adds to an answer, counts or logs is added, counted and logged here too, in the same order. A layer
that is put around the applications of a process has to be put in here as well: decision 47 has the
table, and `tests/unit/ingest/test_lane_differences.py` sends the same bytes by both ways.
"""

import time
from collections.abc import Hashable, Sequence
from typing import Final

from starlette.types import Scope

from bottomless.guards import guard
from bottomless_server.runtime.base.principal import note_principal
from bottomless_server.runtime.http.app import added_headers, wrong_target
from bottomless_server.runtime.http.foreign_pages import Pages
from bottomless_server.runtime.http.lane import Answering, Lane, LaneRequest
from bottomless_server.runtime.http.tracing import Requests
from bottomless_server.runtime.http.whole_answer import WholeAnswer
from bottomless_server.runtime.identity.gate import Gate
from bottomless_server.runtime.observe.metrics import Metrics
from bottomless_server.runtime.process.rate_limits import LimitedRequest, RateLimits

_UNUSUAL: Final = frozenset({b"expect", b"origin", b"transfer-encoding", b"upgrade", b"trailer"})
"""Headers that make a request go the usual way, whatever they say."""


class PublicLane:
    """The lane of a public listener: the layers of its process around that of a service."""

    def __init__(
        self,
        service: Lane,
        *,
        metrics: Metrics,
        requests: Requests,
        pages: Pages,
        gate: Gate,
        limits: RateLimits,
        varies: Sequence[tuple[bytes, bytes]],
    ) -> None:
        """`varies` is what the layer of origins says in every answer."""
        self._service = service
        self._pages = pages
        self._gate = gate
        self._limits = limits
        self.metrics: Final = metrics
        self.requests: Final = requests
        self.varies: Final = varies

    def begin(self, scope: Scope, size: int) -> "_PublicLaneRequest | None":
        began_at = time.perf_counter()
        if not self._passes(scope):
            return None
        inner = self._service.begin(scope, size)
        if inner is None:
            return None
        # Last, since it counts.
        limited = self._limits.at_once(scope, size)
        if limited is None:
            inner.leave()
            return None
        self.metrics.begin()
        return _PublicLaneRequest(self, scope, began_at, inner, limited)

    def _passes(self, scope: Scope) -> bool:
        """Whether all layers before the service let a request pass, without asking anybody."""
        if not _UNUSUAL.isdisjoint([name for name, _ in scope["headers"]]):
            return False
        return (
            wrong_target(scope) is None
            and not self.is_from_a_stranger(scope)
            and self.is_let_in(scope)
        )

    @guard("the look at pages of strangers, on the lane")
    def is_from_a_stranger(self, scope: Scope) -> bool:
        """Whether the page of a stranger may have caused a request."""
        return self._pages.judge(scope) is not None

    @guard("the gate, on the lane")
    def is_let_in(self, scope: Scope) -> bool:
        """Whether a request's credential allows what it asks for; who it is, is noted."""
        principal = self._gate.at_once(scope)
        if principal is None:
            return False
        note_principal(scope, principal)
        return True


class _PublicLaneRequest:
    """One request within the layers."""

    __slots__ = ("_answer", "_began_at", "_inner", "_lane", "_limited", "_scope")

    def __init__(
        self,
        lane: PublicLane,
        scope: Scope,
        began_at: float,
        inner: LaneRequest,
        limited: LimitedRequest,
    ) -> None:
        self._lane = lane
        self._scope = scope
        self._began_at = began_at
        self._inner = inner
        self._limited = limited

    def receive(self, size: int) -> bool:
        return self._inner.receive(size)

    @property
    def turn(self) -> Hashable:
        return self._inner.turn

    def take(self, body: bytes, answer: Answering) -> bool:
        self._answer = answer
        return self._inner.take(body, self._answered)

    def leave(self) -> None:
        self._lane.metrics.end()
        self._inner.leave()

    def lose(self) -> None:
        self._lane.metrics.end()
        self._inner.lose()
        self._log(0)

    def _answered(self, answer: WholeAnswer) -> None:
        lane, scope = self._lane, self._scope
        route = lane.metrics.route_of(scope["path"])
        seconds = time.perf_counter() - self._began_at
        lane.metrics.note(scope["method"], route, answer.status, seconds)
        headers = [
            *answer.headers,
            *self._limited.headers(),
            *lane.varies,
            *added_headers(scope),
        ]
        self._answer(WholeAnswer(answer.status, headers, answer.body))
        lane.metrics.end()
        self._log(answer.status)

    def _log(self, status: int) -> None:
        seconds = time.perf_counter() - self._began_at
        self._lane.requests.note_answered(self._scope, status, seconds)
