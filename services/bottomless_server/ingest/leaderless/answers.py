"""Tell appends what became of them: at once, or when the notes of it are durable.

With INGEST_WAL_NOTES=sync an append is acknowledged only once the note of its commit lies in the
bucket, so that even a loss of coordination cannot cost it. Until then it waits here. What waits is
what requests hold room for; one that waits for longer than a put may take is told that its outcome is
unknown: it is stored and visible, and not yet what it was promised to be.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import structlog

from bottomless.errors import StoreError
from bottomless.guards import guard
from bottomless.model.names import StreamId
from bottomless_server.core.restated import restated
from bottomless_server.ingest.leaderless.context import WriterContext
from bottomless_server.ingest.leaderless.core.notes import Notes
from bottomless_server.ingest.leaderless.core.pieces import WaitingAppend
from bottomless_server.ingest.leaderless.earlier_notes import (
    after_earlier_notes,
    not_noted,
    waits_for_earlier,
)
from bottomless_server.ingest.producers.producers import Appended

log = structlog.get_logger(__name__)


class _Held(NamedTuple):
    mark: int
    """So many notes have to be durable."""
    until: int
    append: WaitingAppend
    said: Appended


class Answers:
    """The answers of one instance."""

    def __init__(self, context: WriterContext, notes: Notes, generation: int) -> None:
        self._context = context
        self._generation = generation
        self._notes = notes
        self._held: deque[_Held] = deque()
        self._looking: set[asyncio.Task[Appended | StoreError]] = set()
        """Answers that speak of what was stored before, by whomever."""

    def __len__(self) -> int:
        return len(self._held) + len(self._looking)

    def tell(
        self, append: WaitingAppend, said: Appended | StoreError, stream_id: StreamId | None = None
    ) -> None:
        """Tell an append what was decided, after the notes of that were added. `stream_id` is its
        stream, where it may have been stored before."""
        if append.decided:
            return
        append.decided = True
        if isinstance(said, StoreError):
            self._context.counts.refusals[said.code] += 1
            append.settle(said)
            return
        sync = self._context.bounds.notes_sync
        if stream_id is not None and waits_for_earlier(said, sync=sync):
            task = asyncio.create_task(
                after_earlier_notes(self._context, self._generation, stream_id, said)
            )
            self._looking.add(task)
            task.add_done_callback(partial(self._tell_found, append))
            return
        mark = self._notes.added
        if may_answer(mark, self._notes.durable_below, sync=sync):
            self._acknowledge(append, said)
            return
        until = self._context.now() + int(self._context.bounds.put_seconds * 1000)
        self._held.append(_Held(mark, until, append, said))

    def refuse(self, appends: Iterable[WaitingAppend], error: StoreError) -> None:
        """Tell appends that they are refused, for one reason.

        The last one first: one that is refused takes those along that came after it and are not
        decided (core/followers.py), and these were decided together.
        """
        for append in reversed(list(appends)):
            self.tell(append, restated(error))

    def release(self) -> None:
        """Answer what waited for notes that are durable now, and what waited for too long."""
        now = self._context.now()
        while self._held:
            first = self._held[0]
            if may_answer(first.mark, self._notes.durable_below, sync=True):
                self._acknowledge(self._held.popleft().append, first.said)
            elif first.until <= now:
                self._held.popleft().append.settle(not_noted())
            else:
                return

    def _acknowledge(self, append: WaitingAppend, said: Appended) -> None:
        if append.at is not None:
            self._context.counts.note_ms("answer", append.at, self._context.now())
        append.settle(said)

    def give_up(self) -> None:
        """Answer all that waits: nobody puts their notes any more."""
        while self._held:
            self._held.popleft().append.settle(not_noted())
        for task in self._looking:
            task.cancel()

    def _tell_found(self, append: WaitingAppend, task: asyncio.Task[Appended | StoreError]) -> None:
        """Answer when nobody looks any more. A task does not do that by itself, since one that is
        cancelled before its first step runs no part of itself."""
        self._looking.discard(task)
        if task.cancelled():
            append.settle(not_noted())
        elif (error := task.exception()) is not None:
            log.error("notes of before could not be looked for", exc_info=error)
            append.settle(not_noted())
        else:
            append.settle(task.result())


@guard("an answer after its notes are durable")
def may_answer(mark: int, durable_below: int, *, sync: bool) -> bool:
    """Tell whether an append may be acknowledged whose commit, and all before it, has so many notes;
    all below `durable_below` are durable."""
    return not sync or mark <= durable_below
