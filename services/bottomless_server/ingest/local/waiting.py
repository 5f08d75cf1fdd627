"""The appends that wait for a stream's next round, and which of them it takes.

They are taken in the order in which they came, but only one at a time of each producer or key:
the next one is decided when the outcome of the first is known. An append that expects a certain
offset is taken first and alone, so that its place is certain. Repeats, and appends that are out
of order, are answered here and never reach the log.

On the record's path: after records/intake.py, before log/core/batcher.py.
"""

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Final

from bottomless.errors import StoreError
from bottomless_server.core.tracking.tracking import Tracking
from bottomless_server.ingest.log.core.batcher import RoundSpace
from bottomless_server.ingest.producers.places import Places
from bottomless_server.ingest.producers.producers import Appended, in_flight
from bottomless_server.ingest.producers.super_requests import decide_waiting
from bottomless_server.ingest.records.conditions import NO_CONDITIONS, Conditions, WithKey
from bottomless_server.ingest.records.intake import Append
from bottomless_server.runtime.base.without_frames import without_frames

_LEFT_COUNT_MAX: Final = 64
"""How many appends one round steps over; then all others wait, so that rounds stay cheap."""


@dataclass(slots=True, eq=False)
class WaitingAppend:
    """An append, and where its answer goes."""

    append: Append
    answer: asyncio.Future[Appended]


@dataclass(slots=True, eq=False)
class Chosen:
    """An append that is to be written."""

    waiting: WaitingAppend
    append: Append
    """The append without the records that are stored already."""
    duplicates: int


class WaitingAppends:
    """The appends of one stream that wait. Each one that is taken out is answered by `settle`."""

    def __init__(self, chunk_size_max: int) -> None:
        self._chunk_size_max = chunk_size_max
        self._waiting: deque[WaitingAppend] = deque()
        self._keys: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, append: Append) -> asyncio.Future[Appended]:
        """Put an append at the end.

        Raises:
            Overloaded: `idempotency-in-flight`.
        """
        key = _key_of(append.conditions)
        if key is not None:
            if key in self._keys:
                raise in_flight()
            self._keys.add(key)
        answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self._waiting.append(WaitingAppend(append, answer))
        return answer

    def choose(self, tracking: Tracking, next_offset: int, layout: int = 0) -> list[Chosen]:
        """Take out what the next round holds, and answer appends that need no round; `layout` is the
        oldest one of a super stream of which parts are taken."""
        chosen: list[Chosen] = []
        left: list[WaitingAppend] = []
        try:
            self._choose(chosen, left, tracking, next_offset, layout)
        except BaseException:
            # A bug: nobody may be forgotten, so all of them wait again, to be refused.
            left = [one.waiting for one in chosen] + left
            raise
        finally:
            self._waiting.extendleft(reversed(left))
        return chosen

    def settle(self, waiting: WaitingAppend, outcome: Appended | StoreError) -> None:
        """Answer an append that was taken out."""
        key = _key_of(waiting.append.conditions)
        if key is not None:
            self._keys.discard(key)
        if waiting.answer.done():
            return
        if isinstance(outcome, StoreError):
            waiting.answer.set_exception(without_frames(outcome))
        else:
            waiting.answer.set_result(outcome)

    def refuse_all(self, error: StoreError) -> None:
        """Refuse all that wait, for one reason."""
        while self._waiting:
            self.settle(self._waiting.popleft(), error)

    def _choose(
        self,
        chosen: list[Chosen],
        left: list[WaitingAppend],
        tracking: Tracking,
        next_offset: int,
        layout: int,
    ) -> None:
        room, busy = RoundSpace(self._chunk_size_max), set[str | bytes | None]()
        places = Places(tracking)
        while self._waiting and not room.full and len(left) < _LEFT_COUNT_MAX:
            waiting = self._waiting.popleft()
            left.append(waiting)
            conditions, append, duplicates = waiting.append.conditions, waiting.append, 0
            if conditions is not NO_CONDITIONS:
                if _must_wait(conditions, busy, first=not chosen):
                    busy.add(_name_of(conditions))
                    continue
                try:
                    verdict = decide_waiting(tracking, append, next_offset, places, layout)
                except StoreError as error:
                    self.settle(left.pop(), error)
                    continue
                if isinstance(verdict, Appended):
                    self.settle(left.pop(), verdict)
                    continue
                duplicates = verdict.duplicates
                append = append.without_first(duplicates)
                busy.add(_name_of(conditions))
            if not room.take(append):
                return
            if conditions.identity is not None:
                places.take(conditions.identity)
            chosen.append(Chosen(left.pop(), append, duplicates))
            if conditions.expected_offset is not None:
                return


def _must_wait(conditions: Conditions, busy: set[str | bytes | None], *, first: bool) -> bool:
    if conditions.expected_offset is not None and not first:
        return True
    name = _name_of(conditions)
    return name is not None and name in busy


def _name_of(conditions: Conditions) -> str | bytes | None:
    identity = conditions.identity
    if identity is None:
        return None
    return identity.key_hash if isinstance(identity, WithKey) else identity.turn_name


def _key_of(conditions: Conditions) -> bytes | None:
    return conditions.identity.key_hash if isinstance(conditions.identity, WithKey) else None
