"""The protocol of a listener that has a lane: `protocol.py`, and requests that go past it.

A request is offered to the lane at the end of its head, and there alone: by then the parser and all
bounds of heads have had their say. Its body comes by the same parser. Wherever the lane does not take
it, at the end of the head, while its body comes or when the whole body is here, it becomes the
request that it would have been, with the bytes that have come.

Answers keep their order. While requests are on the lane, one that goes the usual way is begun
only when they are answered. While one is answered the usual way, what comes next is not read if it
may be for the lane: else it would wait among those that go the usual way one after the other, and
a client that keeps several requests under way would never come back to the lane.
"""

import copy
import re
from collections.abc import Sequence
from typing import Any, Final, cast

import structlog
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from bottomless.errors import StoreError
from bottomless_server.runtime.http.lane import Lane, LaneRequest
from bottomless_server.runtime.listener.connections import Connections
from bottomless_server.runtime.listener.on_lane import OnLane
from bottomless_server.runtime.listener.protocol import BoundedProtocol, declared_size
from bottomless_server.runtime.listener.reading import Reading

log = structlog.get_logger(__name__)

_START: Final = b"POST /v1/"
"""How every request begins that may be for the lane."""
_PATH: Final = re.compile(rb"/v1/[A-Za-z0-9/._-]+")
"""A path in which nothing is encoded, and no query: it means what it looks like."""


class LaneProtocol(BoundedProtocol):
    """One connection."""

    def __init__(self, lane: Lane, watched: Connections, *arguments: Any, **named: Any) -> None:
        super().__init__(watched, *arguments, **named)
        self._lane = lane
        self._on_lane = OnLane(self, watched, self.loop)
        self._after_lane: tuple[RequestResponseCycle, Any] | None = None
        """A request that is begun when those on the lane are answered."""
        self.closes = False
        """Whether the connection ends when those on the lane are answered."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_lane.lose()
        if self._after_lane is not None:
            # As those that wait for it: it is told that the client has gone.
            self.pipeline.append(self._after_lane)
            self._after_lane = None
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Called by the server that is about to stop."""
        if self._on_lane.receiving:
            self._leave_lane()
        if self._on_lane.waiting_count and self._is_usual_way_free():
            self._close_after_lane()
        else:
            super().shutdown()

    @property
    def held_size(self) -> int:
        """Bytes that have come and are not read until requests before them are answered."""
        return len(self._held)

    # What the parser says

    def on_headers_complete(self) -> None:
        request = self._offer()
        if request is None:
            super().on_headers_complete()
            return
        self._on_lane.begin(request)
        self._enter(Reading.BODY)
        self._body_left = declared_size(self.headers)

    def on_body(self, body: bytes) -> None:
        if self._on_lane.receiving:
            self._fed = 0
            self._time.came()
            if self._on_lane.receive(body):
                self._body_left -= len(body)
                return
            self._leave_lane()
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._on_lane.receiving:
            if self._is_taken():
                self._enter(Reading.NOTHING)
                return
            self._leave_lane()
        super().on_message_complete()

    def _offer(self) -> LaneRequest | None:
        """Offer the lane the request whose head is here; None if it goes the usual way."""
        parser = self.parser
        if (
            not _PATH.fullmatch(self.url)
            or parser.get_method() != b"POST"
            or parser.get_http_version() != "1.1"
            or not parser.should_keep_alive()
            or parser.should_upgrade()
            or not self._is_lane_free()
        ):
            return None
        sizes = [value for name, value in self.headers if name == b"content-length"]
        if len(sizes) != 1 or not int(sizes[0]):
            return None
        # As uvicorn says it, who says it again where the request goes the usual way.
        scope = cast("dict[str, Any]", self.scope)
        path = self.url.decode("ascii")
        scope.update(method="POST", path=path, raw_path=self.url, query_string=b"")
        try:
            return self._lane.begin(scope, int(sizes[0]))
        except Exception:
            log.exception("the lane met a bug; the request goes the usual way")
            return None

    def _is_taken(self) -> bool:
        """Whether the request stays on the lane whose whole body is here."""
        try:
            return self._on_lane.complete()
        except Exception:
            log.exception("the lane met a bug; the request goes the usual way")
            return False

    def _is_lane_free(self) -> bool:
        """Whether a request that comes now may be answered after those that are on the lane."""
        if self._after_lane is not None or self.closes or self.transport.is_closing():
            return False
        # A client that takes nothing gets no more answers until it does: the usual way waits.
        return self._is_usual_way_free() and not self.flow.write_paused

    def _is_usual_way_free(self) -> bool:
        """Whether no request is answered the usual way, or waits for that."""
        return not self.pipeline and (self.cycle is None or self.cycle.response_complete)

    def _leave_lane(self) -> None:
        """Let the request that is being received go the usual way, with what has come of it."""
        parts = self._on_lane.leave()
        # The client has no more time for it than before.
        time = copy.copy(self._time)
        super().on_headers_complete()
        self._time = time
        for part in parts:
            super().on_body(part)

    # What the usual way does

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if self._on_lane.waiting_count:
            self._after_lane = (cycle, app)
        else:
            super()._start_asgi_task(cycle, app)

    def default_headers(self) -> Sequence[tuple[bytes, bytes]]:
        return self.server_state.default_headers

    def lane_emptied(self) -> None:
        """All requests on the lane are answered: go on with what waited for that."""
        if self.closes:
            # The last answer has said so: whatever has come since then is not begun.
            self.transport.close()
        elif self._after_lane is not None:
            (cycle, app), self._after_lane = self._after_lane, None
            super()._start_asgi_task(cycle, app)
        if self._held:
            self.loop.call_soon(self._read_on)

    def _close_after_lane(self) -> None:
        self.closes = True
        self._on_lane.close_at_end()

    def _waiting_count(self) -> int:
        return len(self.pipeline) + self._on_lane.waiting_count

    def _must_hold(self, data: bytes | memoryview) -> bool:
        return super()._must_hold(data) or self._waits_for_usual_way(data)

    def _waits_for_usual_way(self, data: bytes | memoryview) -> bool:
        """Whether what begins here may be for the lane, which is not free now."""
        return (
            self._time.reading is Reading.NOTHING
            and data[: len(_START)] == _START
            and not self._is_usual_way_free()
        )

    def _read_on(self) -> None:
        if not self._waits_for_usual_way(self._held):
            super()._read_on()

    # What time does

    def _is_answered(self) -> bool:
        on_lane = self._on_lane
        return not (on_lane.receiving or on_lane.waiting_count) and super()._is_answered()

    def _was_asked(self) -> bool:
        return self._on_lane.used or super()._was_asked()

    def _refuse(self, error: StoreError) -> None:
        if self._on_lane.receiving:
            self._leave_lane()
        is_over = self.transport.is_closing() or self._time.reading is Reading.REST
        if is_over or not self._on_lane.waiting_count:
            super()._refuse(error)
        elif self._is_usual_way_free():
            # Those before it are answered; bytes of a refusal must not stand among theirs.
            self._watched.ended[error.code.replace("-", "_")] += 1
            self._close_after_lane()
            self._enter(Reading.REST)
        elif self._time.reading is Reading.BODY:
            self._watched.ended[error.code.replace("-", "_")] += 1
            self.transport.close()
        else:
            super()._refuse(error)
