"""Appends on the lane: those that nobody has to wait for before they are in the line of their stream.

An append is taken where its headers are usual, its stream's name is known, the stream is open here
under a claim that is good, and there is room for its body in memory and on disk. All that is read
and judged here is read and judged by the functions of the usual way (`forms.py`, `lookup.py`,
`intake.py`); what these refuse is left to that way, which says why. Once an append is in line its
answer is made here, whatever it is: to do it again would store it twice.

On the record's path: instead of routes.py and append_requests.py, before records/intake.py.
"""

import asyncio
from collections.abc import Hashable, Sequence
from typing import Final, NamedTuple

import structlog
from starlette.types import Scope

from bottomless.errors import Outcome, StoreError
from bottomless.model.limits import KIB
from bottomless.model.names import FullName
from bottomless_server.ingest.front.answers import answer_to, wants_minimal
from bottomless_server.ingest.front.append_requests import AppendedTo
from bottomless_server.ingest.front.forms import (
    ARROW,
    CONDITION_HEADERS,
    FRAMES,
    INLINE_SIZE,
    STAGED,
    Form,
    conditions_of,
    read_form,
    reading_of,
)
from bottomless_server.ingest.front.lookup import AppenderLookup, note_begun_with
from bottomless_server.ingest.front.metrics import AppendCounts
from bottomless_server.ingest.front.routes import APPEND
from bottomless_server.ingest.ports import Appender
from bottomless_server.ingest.producers.producers import Appended
from bottomless_server.ingest.records.conditions import FromProducer
from bottomless_server.node.room import BodyReservation, MemoryRoom
from bottomless_server.node.under_way import RequestsUnderWay
from bottomless_server.runtime.http.app import request_id_of
from bottomless_server.runtime.http.endpoint_table import STREAM
from bottomless_server.runtime.http.endpoints import find
from bottomless_server.runtime.http.full_names import full_name_of
from bottomless_server.runtime.http.lane import Answering
from bottomless_server.runtime.http.problems import problem_answer, unexpected
from bottomless_server.runtime.http.whole_answer import WholeAnswer

log = structlog.get_logger(__name__)

_OF_ONE_REQUEST: Final = frozenset(
    {b"content-length", b"authorization", b"traceparent", b"tracestate", *CONDITION_HEADERS}
)
"""Headers whose values are of one request; what the others say of its form is remembered."""
_FORM_COUNT_MAX: Final = 1_000
_FORM_SIZE_MAX: Final = KIB
"""Bytes of headers beyond which nothing is remembered of them."""


class _Known(NamedTuple):
    """What lasting headers say of an append."""

    form: Form
    minimal: bool


class AppendLane:
    """The lane of ingest."""

    def __init__(
        self,
        lookup: AppenderLookup,
        under_way: RequestsUnderWay,
        room: MemoryRoom,
        counts: AppendCounts,
        frame_size_max: int,
    ) -> None:
        self._room = room
        self.lookup: Final = lookup
        self.under_way: Final = under_way
        self.counts: Final = counts
        self.frame_size_max: Final = frame_size_max
        self._known: dict[tuple[tuple[bytes, bytes], ...], _Known | None] = {}

    def begin(self, scope: Scope, size: int) -> "AppendOnLane | None":
        """Take an append whose principal is known; as `Lane.begin` says it."""
        found = find(scope)
        endpoint = found.endpoints.get(scope["method"])
        if endpoint is None or endpoint.operation_id != APPEND or scope["query_string"]:
            return None
        if size > INLINE_SIZE:
            # It would be read in a thread, and what comes after it would have to wait.
            return None
        lasting = [pair for pair in scope["headers"] if pair[0] not in _OF_ONE_REQUEST]
        known = self._form_of(lasting)
        if known is None:
            return None
        try:
            name = full_name_of(scope, found.parts[STREAM])
            form = _with_conditions(known.form, scope)
        except StoreError:
            return None
        appender = self.lookup.at_once(name)
        if appender is None:
            return None
        room = self._room.body_at_once(appender.stream_id, size)
        if room is None:
            return None
        self.under_way.begin()
        return AppendOnLane(self, scope, name, form, appender, room, minimal=known.minimal)

    def _form_of(self, lasting: Sequence[tuple[bytes, bytes]]) -> _Known | None:
        key = tuple(lasting)
        try:
            return self._known[key]
        except KeyError:
            pass
        known = _read_form(lasting)
        if sum(len(name) + len(value) for name, value in key) <= _FORM_SIZE_MAX:
            if len(self._known) >= _FORM_COUNT_MAX:
                # Clients send the same headers all the time: it fills up again at once.
                self._known.clear()
            self._known[key] = known
        return known


class AppendOnLane:
    """One append on the lane."""

    __slots__ = (
        "_answer",
        "_appender",
        "_form",
        "_lane",
        "_minimal",
        "_name",
        "_room",
        "_scope",
        "_size",
    )

    def __init__(
        self,
        lane: AppendLane,
        scope: Scope,
        name: FullName,
        form: Form,
        appender: Appender,
        room: BodyReservation,
        *,
        minimal: bool,
    ) -> None:
        self._lane = lane
        self._scope = scope
        self._name = name
        self._form = form
        self._appender = appender
        self._room = room
        self._minimal = minimal
        self._size = 0

    def receive(self, size: int) -> bool:
        self._size += size
        return self._room.note_at_once(size)

    @property
    def turn(self) -> Hashable:
        """A round stores rows before frames. An append of a producer, or with an expected offset,
        may be left for a later round; those of one producer keep their order, each in its own."""
        form = self._form
        frames, conditions = form.media_type in (ARROW, FRAMES), form.conditions
        identity = conditions.identity
        name = identity.turn_name if isinstance(identity, FromProducer) else None
        if name is None and conditions.expected_offset is None:
            return frames
        return frames, self._appender.stream_id, name, conditions.expected_offset is not None

    def take(self, body: bytes, answer: Answering) -> bool:
        """Put the records of the body in line. Until that has happened nothing is changed, so
        whatever is refused before is refused once more on the usual way, and told there."""
        try:
            reading = reading_of(self._scope, self._form, body, self._lane.frame_size_max)
            if not reading.inline:
                return False
            append = reading.read()
            if not self._lane.lookup.is_same_at_once(self._name, self._appender):
                return False
            appended = self._appender.put(append)
        except (StoreError, MemoryError):
            return False
        self._answer = answer
        appended.add_done_callback(self._answered)
        return True

    def leave(self) -> None:
        # As on the usual way, the name means for all of a request what it meant at its head.
        note_begun_with(self._scope, self._appender.stream_id)
        self.lose()

    def lose(self) -> None:
        self._room.end()
        self._lane.under_way.end()

    def _answered(self, appended: asyncio.Future[Appended]) -> None:
        try:
            answer = self._answer_to(appended)
        finally:
            self._room.end()
            self._lane.under_way.end()
        self._answer(answer)

    def _answer_to(self, future: asyncio.Future[Appended]) -> WholeAnswer:
        scope, appender = self._scope, self._appender
        try:
            appended = future.result()
            self._lane.counts.note(appended, self._size)
            return answer_to(AppendedTo.by(appender, appended), minimal=self._minimal)
        except StoreError as error:
            return problem_answer(error, request_id_of(scope), scope["path"])
        except Exception as error:
            log.exception("an append met a bug", request_id=request_id_of(scope))
            return problem_answer(unexpected(error, Outcome.UNKNOWN), request_id_of(scope))


def _read_form(lasting: Sequence[tuple[bytes, bytes]]) -> _Known | None:
    """What headers say of an append, as `read_form` reads them; None where that is not for the lane."""
    scope: Scope = {"type": "http", "headers": list(lasting), "query_string": b""}
    try:
        form = read_form(scope)
    except StoreError:
        return None
    if form.media_type == STAGED or form.encoding is not None:
        return None
    return _Known(form, wants_minimal(scope))


def _with_conditions(form: Form, scope: Scope) -> Form:
    """A form with the conditions of one request.

    Raises:
        InvalidRequest: 400.
    """
    if CONDITION_HEADERS.isdisjoint([name for name, _ in scope["headers"]]):
        return form
    return form._replace(conditions=conditions_of(scope))
