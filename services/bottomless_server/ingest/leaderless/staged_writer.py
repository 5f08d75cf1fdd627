"""Commits of what was staged: many objects, one after the other, and one EXEC for all of them.

They have an instance of their own, since `settled` of an instance waits for all that it has put: a
commit that reads for minutes would hold up the compaction of everything else that this node took.
Objects of several commits are put side by side; commits take turns.

In S3 after a crash before the EXEC: objects that nothing names, which go with the others of their
instance. In Redis: nothing. After the EXEC everything is visible, with the number of its producer.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from functools import partial

import structlog

from bottomless.errors import Code, Overloaded, StoreError, Unavailable
from bottomless.guards import guard
from bottomless.model.names import StreamId
from bottomless_server.core.regressed import coordination_lost
from bottomless_server.ingest.leaderless.commits import NotNow
from bottomless_server.ingest.leaderless.committer import comes_first
from bottomless_server.ingest.leaderless.context import WriterContext
from bottomless_server.ingest.leaderless.core.accumulator import Accumulator
from bottomless_server.ingest.leaderless.core.commit_queue import CONFLICT_COUNT_MAX, pause_ms
from bottomless_server.ingest.leaderless.core.pieces import (
    TrimAgain,
    WaitingAppend,
    WaitingPiece,
    joined,
)
from bottomless_server.ingest.leaderless.core.refusals import (
    away,
    taken_for_dead,
    timed_out,
)
from bottomless_server.ingest.leaderless.core.sealing import seal_pieces
from bottomless_server.ingest.leaderless.core.telling import told
from bottomless_server.ingest.leaderless.instance_run import InstanceRun, begin_instance
from bottomless_server.ingest.leaderless.seen_tails import SeenTails
from bottomless_server.ingest.leaderless.store_check import StoreCheck
from bottomless_server.ingest.leaderless.wal_cache import WalCache
from bottomless_server.ingest.producers.producers import Appended
from bottomless_server.ingest.records.intake import Append
from bottomless_server.leaderless.instance import Loss
from bottomless_server.leaderless.tail_changes import Committed
from bottomless_server.stores.lost_commits import Fate
from bottomless_server.stores.tail_commits import Commit, CommitUnknown

log = structlog.get_logger(__name__)

_AWAY_SECONDS = 0.2
"""The pause before coordination is asked again that did not answer."""


class StagedWriter:
    """Commits of staged batches of one process; `ended` takes an instance that is lost."""

    def __init__(
        self,
        context: WriterContext,
        check: StoreCheck,
        seen: SeenTails,
        cache: WalCache,
        heard: Callable[[], None],
        ended: Callable[[InstanceRun], None],
    ) -> None:
        self._context = context
        self._check = check
        self._seen = seen
        self._cache = cache
        self._heard = heard
        self._ended = ended
        self.run: InstanceRun | None = None
        """Its instance, from the first commit on."""
        self._beginning = asyncio.Lock()
        self._turn = asyncio.Lock()
        self._retired = False
        self._tasks: set[asyncio.Task[Appended]] = set()
        self._clock = 0
        """The clock of the last commit that was tried."""

    async def commit(self, stream_id: StreamId, parts: AsyncIterator[Append]) -> Appended:
        """Make one append of its parts; a part is asked for when the one before it is durable.

        Raises:
            StoreError: with the outcome that is known.
        """
        run = await self._begun()
        sequences: list[int] = []
        try:
            pieces = [await self._put(run, stream_id, part, sequences) async for part in parts]
        except BaseException:
            self._leave(run, sequences)
            raise
        # Whoever is cancelled leaves it to end: nobody else finds out what became of it.
        task = asyncio.create_task(self._decided(run, joined(pieces), sequences))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # Two puts and commits may stand before it, each with a time of its own.
        seconds = 4 * self._context.bounds.commit_seconds
        done, _ = await asyncio.wait([task], timeout=seconds)
        if not done:
            raise timed_out()
        return task.result()

    async def tidy(self) -> None:
        """Let the record of the instance say what is settled, where a commit that failed has left it
        behind: else nothing that was put since is ever compacted."""
        run = self.run
        if (
            run is None
            or self._retired
            or not run.queue.needs_settling(run.commits.settled)
            or self._turn.locked()
        ):
            return
        async with self._turn:
            with suppress(StoreError):
                await self._try(run, [])

    async def show_life(self) -> None:
        """Show others that the instance has lost nothing, where no commit does: parts are put for
        minutes before one comes.

        Raises:
            Unavailable: `coordination-regressed`, or not now.
        """
        run = self.run
        if run is None or self._retired or self._turn.locked():
            return
        # Of one that a rebuild has ended nothing can be shown.
        if run.numbers.generation == self._check.agreed:
            async with self._turn:
                await self._check.show_life(run.numbers)

    async def retire(self) -> None:
        """Give the instance back, once nothing of it is under way: an attempt that came in between
        would be newer than what the record says in the end."""
        async with self._turn_to_end():
            self._retired = True
            if self.run is not None:
                await self.run.retire()

    async def aclose(self) -> None:
        """Wait until no commit is under way."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    @guard("the turn of commits for the end of their instance")
    def _turn_to_end(self) -> AbstractAsyncContextManager[None]:
        """A commit whose parts were still being put may come beside the end: one waits for the other,
        and what comes after the end is refused."""
        return self._turn

    async def _begun(self) -> InstanceRun:
        async with self._beginning:
            run, agreed = self.run, self._check.agreed
            if run is not None and agreed is not None and run.numbers.generation != agreed:
                self._lose(run)
            if self.run is None:
                generation = await self._check.generation()
                checked = await self._check.run(generation)
                self.run = await begin_instance(
                    self._context,
                    generation,
                    checked,
                    Accumulator(self._context.bounds.flush),
                    self._seen,
                    self._cache,
                    self._heard,
                    self._check.living,
                )
            return self.run

    async def _put(
        self, run: InstanceRun, stream_id: StreamId, part: Append, sequences: list[int]
    ) -> WaitingPiece:
        """Return a part's piece once its object is durable, without its bytes."""
        line = WaitingAppend(part, lambda _: None)
        [piece] = seal_pieces(stream_id, [line], self._context.bounds.chunk_size_max)
        if not run.sequences.may_take:
            async with self._turn:
                await self._try(run, [])
        sequence = run.sequences.take()
        if sequence is None:
            raise Overloaded("too much is staged at once", retry_after_seconds=1)
        sequences.append(sequence)
        await run.flusher.put_staged(sequence, piece)
        return _without_bytes(piece)

    async def _decided(
        self, run: InstanceRun, pieces: Sequence[WaitingPiece], sequences: Sequence[int]
    ) -> Appended:
        try:
            async with self._turn:
                said = await self._commit(run, pieces, sequences)
        finally:
            self._leave(run, sequences)
        if isinstance(said, StoreError):
            raise said
        answer: asyncio.Future[Appended | StoreError] = asyncio.get_running_loop().create_future()
        waiting = WaitingAppend(pieces[0].appends[0].append, partial(_settle, answer))
        run.answers.tell(waiting, said, pieces[0].stream_id)
        told_so = await answer
        if isinstance(told_so, StoreError):
            raise told_so
        return told_so

    async def _commit(
        self, run: InstanceRun, pieces: Sequence[WaitingPiece], sequences: Sequence[int]
    ) -> Appended | StoreError:
        """What the one append of these pieces is told. What may have been seen is committed again until
        it is there, whatever becomes of who asked."""
        until = self._context.now() + int(self._context.bounds.commit_seconds * 1000)
        conflicts, clock = 0, None
        while True:
            done = await self._try(run, pieces, sequences, clock)
            if isinstance(done, Commit):
                return self._take(run, pieces, done)
            if done is Loss.REGRESSED:
                return coordination_lost()
            if isinstance(done, Loss):
                return taken_for_dead() if clock is None else timed_out()
            if isinstance(done, Fate) and comes_first(done):
                # With the clock that it had: it is to be as it was.
                clock = self._clock
            conflicts += done is NotNow.CONFLICT
            if clock is None and (refusal := self._refusal(done, conflicts, until)):
                return refusal
            await asyncio.sleep(self._pause(done, conflicts))

    def _refusal(
        self, done: NotNow | StoreError | Fate, conflicts: int, until: int
    ) -> StoreError | None:
        """Why it is not tried again; nothing of it is stored."""
        if isinstance(done, StoreError):
            return done
        if conflicts >= CONFLICT_COUNT_MAX:
            return Overloaded("others write to this stream all the time", retry_after_seconds=1)
        return away() if self._context.now() >= until else None

    def _pause(self, why: NotNow | StoreError | Fate, conflicts: int) -> float:
        if why is NotNow.CONFLICT:
            return pause_ms(min(conflicts, CONFLICT_COUNT_MAX), self._context.chance()) / 1000
        return 0.0 if isinstance(why, Fate) or why is NotNow.UNCHECKED else _AWAY_SECONDS

    async def _try(
        self,
        run: InstanceRun,
        pieces: Sequence[WaitingPiece],
        sequences: Sequence[int] = (),
        clock: int | None = None,
    ) -> Commit | Loss | NotNow | StoreError | Fate:
        """Commit once, and find out what became of it; a fate: it was lost, and is not there. `clock` is
        that of a commit which is made again."""
        if run.numbers.lost is not None:
            # Nobody could tell what became of an earlier one: the instance is over.
            return Loss.GONE
        end = run.sequences.next
        try:
            clock = self._clock = self._context.read_clock() if clock is None else clock
        except Unavailable as error:
            return error
        seen = [self._seen.of(pieces[0].stream_id)] if pieces else []
        done = await run.commits.try_once(
            [self._context.asked_of(one, pieces, clock) for one in seen],
            sequence=min(sequences, default=end),
            settled=run.queue.first_undecided(end, without=sequences),
            clock=clock,
        )
        if isinstance(done, CommitUnknown):
            fate = await self._fate(run, done.commit)
            if fate is Fate.NOT_APPLIED or fate is Fate.PUT_BACK:
                return fate
            if fate is Fate.APPLIED:
                return done.commit
            self._lose(run)
            return timed_out()
        if done is NotNow.UNCHECKED:
            try:
                await self._compare(run)
            except StoreError as error:
                return error
        if isinstance(done, Loss):
            self._lose(run)
        return done

    async def _fate(self, run: InstanceRun, lost: Commit) -> Fate | Loss:
        while True:
            fate = await run.commits.decide(lost)
            if fate is NotNow.UNCHECKED:
                try:
                    await self._compare(run)
                except StoreError as error:
                    if error.code is Code.COORDINATION_REGRESSED:
                        return Loss.REGRESSED
                    await asyncio.sleep(_AWAY_SECONDS)
            elif fate is not None:
                return fate
            else:
                await asyncio.sleep(_AWAY_SECONDS)

    async def _compare(self, run: InstanceRun) -> None:
        """Compare the store with the bucket, after it was connected to anew.

        Raises:
            Unavailable: `coordination-regressed`, or not now.
        """
        checked = await self._check.run(
            run.numbers.generation, lambda: self._check.show_life(run.numbers), run.numbers
        )
        run.numbers.compared(checked.connected, checked.run_id, whole=checked.whole)

    def _take(
        self, run: InstanceRun, pieces: Sequence[WaitingPiece], done: Commit
    ) -> Appended | StoreError:
        stream_id = pieces[0].stream_id
        found = done.streams[stream_id]
        if isinstance(found, Committed):
            self._seen.note(stream_id, found.tail)
            run.notes.add((note for _, note in found.notes), self._context.now())
        [said] = told(found, done.answers[stream_id], pieces)
        assert not isinstance(said, TrimAgain), "its records have no numbers of their own"
        return said

    def _leave(self, run: InstanceRun, sequences: Sequence[int]) -> None:
        for sequence in sequences:
            run.queue.leave(sequence)
        self._heard()

    def _lose(self, run: InstanceRun) -> None:
        if self.run is run:
            log.warning("the instance for staged commits is lost")
            self.run = None
            self._ended(run)


def _without_bytes(piece: WaitingPiece) -> WaitingPiece:
    """Drop the bytes of a piece that is durable; what a commit needs of it stays."""
    chunks = [chunk._replace(buffers=[]) for chunk in piece.round.chunks]
    piece.round = piece.round._replace(chunks=chunks)
    for one in piece.appends:
        one.append = replace(one.append, rows=None, frames=())
    return piece


def _settle(answer: "asyncio.Future[Appended | StoreError]", said: Appended | StoreError) -> None:
    if not answer.done():
        answer.set_result(said)
