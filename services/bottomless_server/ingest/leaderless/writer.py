"""The writer of leaderless streams of one process: appends go in, and are answered once committed.

    put -> accumulator -> sealing -> flusher -> commit queue -> committer -> answers
                                        |                           |
                                        +-------- notes <-----------+

Four loops carry it: one flushes, one commits, one puts notes, one renews the lease. The instance may be lost, since others took this process for dead, or coordination went back:
then all that is not decided is put again by another instance, or refused.

Everything that waits here is held by requests, which hold room for it (node/room.py), and has an end:
what is in no object after INGEST_WAL_PUT_SECONDS, and what is not committed INGEST_WAL_COMMIT_SECONDS
after its object was durable, is refused.

On the record's path: after records/intake.py; here it waits until it is durable and visible.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Final

import structlog

from bottomless.errors import Code, Outcome, Overloaded, StoreError
from bottomless.guards import guard
from bottomless.model.names import StreamId
from bottomless_server.core.regressed import coordination_lost
from bottomless_server.core.restated import restated
from bottomless_server.ingest.leaderless.commits import NotNow
from bottomless_server.ingest.leaderless.context import WriterContext
from bottomless_server.ingest.leaderless.core.accumulator import Accumulator, Gathered
from bottomless_server.ingest.leaderless.core.followers import Followers
from bottomless_server.ingest.leaderless.core.pieces import WaitingAppend, WaitingPiece
from bottomless_server.ingest.leaderless.core.refusals import (
    appends_of,
    beginning,
    is_told,
    stopping,
)
from bottomless_server.ingest.leaderless.core.sealing import seal_pieces
from bottomless_server.ingest.leaderless.earlier_notes import noted_before
from bottomless_server.ingest.leaderless.instance_run import InstanceRun, begin_instance
from bottomless_server.ingest.leaderless.seen_tails import SeenTails
from bottomless_server.ingest.leaderless.space import WriterSpace
from bottomless_server.ingest.leaderless.staged_writer import StagedWriter
from bottomless_server.ingest.leaderless.store_check import NOTHING_CHECKED, Checked, StoreCheck
from bottomless_server.ingest.leaderless.wal_cache import WalCache
from bottomless_server.ingest.producers.producers import Appended
from bottomless_server.ingest.records.intake import Append
from bottomless_server.leaderless.instance import Loss
from bottomless_server.node.pulse import Pulse, wait_for
from bottomless_server.runtime.base.end import end_tasks
from bottomless_server.runtime.base.endless import endless
from bottomless_server.stores.other_writers import Own

log = structlog.get_logger(__name__)

_AGAIN_SECONDS: Final = 0.5
"""The pause before another attempt to begin an instance."""
_LOOK_SECONDS: Final = 1.0
"""Each loop looks so often whether something has waited for too long."""
_ENDING_COUNT_MAX: Final = 4
"""Instances that are lost and whose notes are still put; the oldest is given up."""


class Writer:
    """Takes appends to leaderless streams; `start` begins, `drain` and `stop` end it."""

    def __init__(self, context: WriterContext) -> None:
        self._context = context
        self._line = Accumulator(context.bounds.flush)
        self._followers = Followers(self._refuse)
        self.seen = SeenTails()
        self._check = StoreCheck(context, self._own)
        self._run: InstanceRun | None = None
        self._losing: InstanceRun | None = None
        """The instance that is lost, while its puts are given up."""
        self._newborn: InstanceRun | None = None
        """The first instance of this process, before the store is compared: it commits nothing yet, and
        shows others that what was here before is dead."""
        self._ending: list[InstanceRun] = []
        self._refusal: StoreError | None = None
        """Why no instance can be begun now."""
        self._ends = False
        self._changed = Pulse()
        """Fires when anything was put, committed or lost."""
        self._tasks: list[asyncio.Task[None]] = []
        self.cache = WalCache(context.bounds.cache_size)
        self._staged = StagedWriter(
            context, self._check, self.seen, self.cache, self._heard, self._ending.append
        )
        self.space = WriterSpace(context)
        self.counts = context.counts

    @property
    def run(self) -> InstanceRun | None:
        """The instance that writes now."""
        return self._run

    @property
    def generation(self) -> int:
        """The generation of coordination in which it writes.

        Raises:
            Unavailable: there is none now: it has not begun, or coordination has gone back.
        """
        self._require_instance()
        if self._run is not None:
            return self._run.numbers.generation
        if self._check.agreed is None:
            raise beginning()
        return self._check.agreed

    @guard("a writer with nothing to commit, looked at where coordination is another one")
    def doubt(self) -> None:
        """Find out whether the instance that takes appends still counts, as writing.py says."""
        if self._run is not None:
            self._run.committer.doubt()

    @property
    def waiting_size(self) -> int:
        """Bytes of appends that are in no object yet."""
        return self._line.size

    # What the appenders of ingest ask.

    def require_space(self) -> None:
        """Refuse an append, before its body is read, where it cannot be stored.

        Raises:
            Overloaded: `tail-bound`.
            Unavailable: `coordination-regressed`, or not now. Nothing is stored.
        """
        self._require_instance()
        self.space.require()

    def put(self, stream_id: StreamId, append: WaitingAppend) -> None:
        """Put an append in line; it is told what became of it, in its time.

        Raises:
            Unavailable: it is refused now, and is not in line; outcome none.
        """
        self._require_instance()
        now = append.at = self._context.now()
        self._followers.enter(stream_id, append)
        self._line.add(stream_id, append, now)
        due_at = self._line.due_at()
        if len(self._line) == 1 or (due_at is not None and due_at <= now):
            self._changed.fire()

    async def commit_staged(self, stream_id: StreamId, parts: AsyncIterator[Append]) -> Appended:
        """Make one append of its parts, by one EXEC, under an instance of its own: it holds nobody up.
        A part is asked for when the one before it is durable; what it raises ends the commit.

        Raises:
            StoreError: with the outcome that is known.
        """
        self._require_instance()
        return await self._staged.commit(stream_id, parts)

    async def noted(self, stream_id: StreamId, said: Appended) -> Appended:
        """What a repeat may be told that was just found; as earlier_notes.py says it."""
        return await noted_before(self._context, self.generation, stream_id, said)

    def _require_instance(self) -> None:
        if self._refusal is not None:
            raise restated(self._refusal)
        if self._ends:
            raise stopping()

    # Its life.

    async def start(self) -> None:
        """Begin to take appends; the instance is begun beside it, as soon as stores can be asked."""
        renew_seconds = self._context.bounds.lease.renew_ms / 1000
        loops = (
            endless("wal-flushes", self._flush_step),
            endless("wal-commits", self._commit_step),
            endless("wal-notes", self._note_step),
            endless("wal-lease", self._renew_step, pause_seconds_max=renew_seconds),
        )
        self._tasks = [asyncio.create_task(loop) for loop in loops]
        # The first request after the start finds it, unless a store is away.
        await wait_for(self._changed.next(), _LOOK_SECONDS)

    async def drain(self) -> None:
        """Flush, commit and note everything, then give the instance back. What cannot be finished in
        the time that a put and a commit may take is left to `stop`."""
        bounds = self._context.bounds
        self._ends = True
        self._line.end()
        self._changed.fire()
        try:
            async with asyncio.timeout(bounds.put_seconds + bounds.commit_seconds):
                await self._until(lambda: not len(self._line) and self._is_idle())
                await self._staged.aclose()
                await self._until(lambda: not any(self._owe(self._runs())))
                if self._run is not None:
                    self._run.committer.end()
                    run = self._run
                    await self._until(lambda: run.committer.is_done)
                    await run.retire()
                await self._staged.retire()
        except TimeoutError:
            log.warning("a writer of leaderless streams could not finish in time")

    async def stop(self) -> None:
        """End, and tell whoever still waits that nothing is known, or that nothing is stored."""
        self._ends = True
        await end_tasks(*self._tasks)
        for run in self._runs():
            await run.give_up()
        self._refuse(self._line.clear(), stopping())

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            changed = self._changed.next()
            if not is_so():
                await wait_for(changed, _LOOK_SECONDS)

    def _owe(self, runs: Iterable[InstanceRun]) -> Iterator[bool]:
        """Whether each of these has something to tell the bucket still, or is telling it."""
        now = self._context.now()
        return (run.owes(now) or run.flusher.puts_notes for run in runs)

    def _is_idle(self) -> bool:
        return self._run is None or self._run.queue.is_empty

    def _runs(self) -> list[InstanceRun]:
        losing = [] if self._losing is None else [self._losing]
        return [*self._ending, *losing, *self._living()]

    def _own(self) -> Own:
        """The instances as which this process writes; beside them those of which notes are left, since
        what these prove has to be in the bucket first."""
        living = self._living()
        owing = zip(self._ending, self._owe(self._ending), strict=True)
        losing = [run for run, owes in owing if owes]
        if self._losing is not None:
            losing.append(self._losing)
        return Own(
            [run.numbers for run in living],
            frozenset(run.numbers.instance for run in losing),
        )

    def _living(self) -> list[InstanceRun]:
        runs = (self._newborn, self._run, self._staged.run)
        return [run for run in runs if run is not None]

    def _heard(self) -> None:
        """An object is durable, or failed."""
        if self._run is not None:
            self._run.committer.wake()
        self._changed.fire()

    # The loop that flushes.

    async def _flush_step(self) -> float:
        changed, now = self._changed.next(), self._context.now()
        self._expire(now)
        run = self._run
        if run is not None and run.flusher.can_begin:
            gathered = self._line.take(now)
            if gathered is not None:
                self._flush(run, gathered)
                return 0
        await wait_for(changed, self._until_due(run, now))
        return 0

    def _until_due(self, run: InstanceRun | None, now: int) -> float:
        due_at = self._line.due_at()
        if due_at is None or run is None or not run.flusher.can_begin:
            return _LOOK_SECONDS
        return min(max(due_at - now, 1) / 1000, _LOOK_SECONDS)

    def _flush(self, run: InstanceRun, gathered: Gathered) -> None:
        pieces: list[WaitingPiece] = []
        for stream_id, share in gathered.shares.items():
            appends = [one.append for one in share.appends]
            pieces += share.pieces
            try:
                pieces += seal_pieces(stream_id, appends, self._context.bounds.chunk_size_max)
            except Exception:
                # Whatever is wrong with what one stream was sent is not of the others.
                log.exception("appends of a stream cannot be sealed", stream_id=stream_id)
                self._refuse(appends, StoreError("an unexpected error", outcome=Outcome.NONE))
        if pieces:
            self.counts.note_flush(gathered, self._context.now())
            run.flusher.begin(pieces)

    def _expire(self, now: int) -> None:
        late = self._line.expire(now - int(self._context.bounds.put_seconds * 1000))
        if not late.pieces and not late.appends:
            return
        if self._run is not None:
            self._run.queue.forget(late.pieces)
        refusal = self._refusal or Overloaded("too much waits", retry_after_seconds=1)
        self._refuse([*appends_of(late.pieces), *late.appends], refusal)

    def _refuse(self, appends: Iterable[WaitingAppend], error: StoreError) -> None:
        """Refuse what is in no object, or in none that counts."""
        for append in appends:
            if not append.decided:
                append.decided = True
                self.counts.refusals[error.code] += 1
                append.settle(restated(error))

    # The loop that commits.

    async def _commit_step(self) -> float | None:
        run = self._run
        if run is None:
            return await self._begin()
        try:
            found = await run.committer.step()
        except Exception:
            run.committer.abandon()
            await self._lose(run, Loss.GONE)
            raise
        self._changed.fire()
        if found is NotNow.UNCHECKED:
            return await self._compare(run)
        if isinstance(found, Loss):
            await self._lose(run, found)
        return None if run.committer.is_done else 0

    async def _begin(self) -> float:
        """Begin an instance; the pause until the next attempt where that is not possible."""
        try:
            await self._hear_clock()
            generation = await self._check.generation()
            self._changed.fire()
            checked = await self._check.run(generation, self._show_life)
            run, self._newborn = self._newborn, None
            if run is None or run.numbers.generation != generation:
                run = await self._begun(generation, checked)
            run.numbers.compared(checked.connected, checked.run_id, whole=checked.whole)
            self._run = run
        except StoreError as error:
            self._note_refusal(error)
            self._changed.fire()
            return _AGAIN_SECONDS
        self._refusal = None
        self._changed.fire()
        return 0

    async def _begun(self, generation: int, checked: Checked) -> InstanceRun:
        return await begin_instance(
            self._context,
            generation,
            checked,
            self._line,
            self.seen,
            self.cache,
            self._heard,
            self._check.living,
        )

    def _note_refusal(self, error: StoreError) -> None:
        if self._refusal is None or self._refusal.code is not error.code:
            log.warning("no leaderless stream can be written now", error=str(error))
        self._refusal = restated(error, Outcome.NONE)
        if error.code is Code.COORDINATION_REGRESSED:
            self._refuse(self._line.clear(), self._refusal)

    async def _compare(self, run: InstanceRun) -> float:
        """Compare the store with the bucket, after it was connected to anew."""
        try:
            checking = self._check.run(run.numbers.generation, self._show_life, run.numbers)
            checked = await run.committer.beside(checking)
            run.numbers.compared(checked.connected, checked.run_id, whole=checked.whole)
        except StoreError as error:
            if error.code is Code.COORDINATION_REGRESSED:
                await self._lose(run, Loss.REGRESSED)
            return _AGAIN_SECONDS
        return 0

    async def _show_life(self) -> None:
        """Show others that the instances of this process have lost nothing; its commits wait meanwhile.

        Raises:
            Unavailable: `coordination-regressed`, or not now.
        """
        await self._show_newborn()
        if self._run is not None:
            await self._check.show_life(self._run.numbers)
        await self._staged.show_life()

    async def _show_newborn(self) -> None:
        """Show that this process has begun, before it has an instance: others may wait for the one that
        was at its address, and it for those at theirs.

        In Redis after a crash: an instance that has committed nothing, as after each other begin.
        """
        generation = self._check.agreed
        if self._newborn is not None and self._newborn.numbers.generation == generation:
            try:
                await self._check.show_life(self._newborn.numbers)
            except StoreError as error:
                if error.code is Code.COORDINATION_REGRESSED:
                    # It has nothing to lose, and another one can be begun.
                    self._newborn = None
                raise
        elif self._run is None and self._check.compared is None and self._check.waits:
            assert generation is not None
            self._newborn = await self._begun(generation, NOTHING_CHECKED)

    async def _lose(self, run: InstanceRun, loss: Loss) -> None:
        """Go on without an instance: what is not decided is put again, or refused."""
        log.warning("an instance of this writer is lost", why=loss.name)
        # A stop meanwhile looks after it: its puts may take a moment to end.
        self._run, self._losing = None, run
        run.committer.give_up()
        await run.flusher.drop()
        left = run.queue.give_up()
        known = set(left)
        left += [piece for piece in self._line.take_pieces() if piece not in known]
        left = [piece for piece in left if not is_told(piece)]
        if loss is Loss.REGRESSED:
            self._note_refusal(coordination_lost())
            run.answers.refuse(appends_of(left), coordination_lost())
        else:
            for piece in left:
                piece.accepted = None
            self._line.add_again(left, self._context.now())
        self._losing = None
        self._ending.append(run)
        self._changed.fire()

    # The loop that puts notes.

    async def _note_step(self) -> float:
        changed, now = self._changed.next(), self._context.now()
        for run in list(self._ending):
            run.answers.release()
            given_up = len(self._ending) > _ENDING_COUNT_MAX
            if given_up and len(run.notes):
                log.error("notes of a lost instance are given up", count=len(run.notes))
            if given_up or not any(self._owe([run])):
                self._ending.remove(run)
                await run.flusher.aclose()
                run.answers.give_up()
        due = [self._put_notes(run, now) for run in self._runs()]
        seconds = min([_LOOK_SECONDS, *(one for one in due if one is not None)])
        await wait_for(changed, seconds)
        return 0

    def _put_notes(self, run: InstanceRun, now: int) -> float | None:
        """Put the notes of an instance if it is time; else in how many seconds it is."""
        due_at = run.notes_due_at(now)
        if due_at is None:
            return None
        if due_at > now and run not in self._ending and not self._ends:
            return max(due_at - now, 1) / 1000
        run.flusher.begin_notes()
        # One object with notes alone is put at a time, and its end is told.
        return None

    # The loop that keeps the lease.

    async def _renew_step(self) -> float:
        bounds = self._context.bounds
        try:
            async with asyncio.timeout(bounds.lease.lease_ms / 1000):
                await self._hear_clock()
                living = self._living()
                for run in living:
                    await run.lease.renew()
                await self.space.look([run.numbers.instance for run in living])
        except (StoreError, TimeoutError) as error:
            log.warning("the lease of a writer was not renewed", error=str(error))
        await self._staged.tidy()
        return bounds.lease.renew_ms / 1000

    async def _hear_clock(self) -> None:
        clocks = self._context.clocks
        asked_at = clocks.since_boot()
        store = await self._context.coordination.clock()
        self._context.store_clock.hear(store, asked_at, clocks.since_boot())
