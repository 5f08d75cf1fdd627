"""The one task that commits as an instance: it gives pieces their offsets, and answers their appends.

core/commit_queue.py says what is next. Each EXEC is waited for until its outcome is known, and nothing
else is committed before: one whose reply was lost is decided by a bump (stores/lost_commits.py). That
may take as long as coordination is away, so its appends are told `commit-timeout` after a while; the
question goes on, since the notes of what was stored depend on it.

In Redis after a crash: nothing of the group that is under way, or all of it: visible, and recognised
when it is repeated. Nothing of what is in line.

On the record's path: after flusher.py. Here a record becomes visible.
"""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import structlog

from bottomless.errors import (
    Outcome,
    StoreError,
    Unavailable,
)
from bottomless.guards import guard
from bottomless_server.core.regressed import coordination_lost
from bottomless_server.ingest.leaderless.answers import Answers
from bottomless_server.ingest.leaderless.commits import InstanceCommits, NotNow
from bottomless_server.ingest.leaderless.context import WriterContext
from bottomless_server.ingest.leaderless.core.accumulator import Accumulator
from bottomless_server.ingest.leaderless.core.commit_queue import (
    CONFLICT_COUNT_MAX,
    CommitQueue,
    Group,
    pause_ms,
)
from bottomless_server.ingest.leaderless.core.notes import Notes
from bottomless_server.ingest.leaderless.core.pieces import TrimAgain, WaitingPiece
from bottomless_server.ingest.leaderless.core.refusals import (
    appends_of,
    away,
    contended,
    is_told,
    timed_out,
)
from bottomless_server.ingest.leaderless.core.sealing import seal_again
from bottomless_server.ingest.leaderless.core.sequences import Sequences
from bottomless_server.ingest.leaderless.core.telling import told
from bottomless_server.ingest.leaderless.seen_tails import SeenTails
from bottomless_server.ingest.producers.producers import Appended
from bottomless_server.leaderless.instance import RESERVED_LEFT_MIN, Loss
from bottomless_server.leaderless.tail_changes import Committed
from bottomless_server.node.pulse import wait_for
from bottomless_server.runtime.base.end import end_tasks
from bottomless_server.runtime.base.fault_points import reach
from bottomless_server.stores.lost_commits import Fate
from bottomless_server.stores.tail_commits import Asked, Commit, CommitUnknown

log = structlog.get_logger(__name__)

T = TypeVar("T")
_LOOK_SECONDS: Final = 1.0
"""How often it looks whether something has waited for too long."""
_AWAY_SECONDS: Final = 0.2
"""The pause before coordination is asked again that did not answer."""


class _Unknown(NamedTuple):
    """A commit whose reply was lost."""

    group: Group | None
    """What it was of; None for one without pieces."""
    asked: Sequence[Asked]
    sequence: int
    settled: int
    clock: int
    commit: Commit
    until: int
    """When its appends are told that nobody knows."""
    put_back: bool = False
    """Whether it is not there, though it may have been: then the same is committed again."""

    @property
    def pieces(self) -> list[WaitingPiece]:
        return [] if self.group is None else self.group.pieces


@guard("what may have been seen, committed again before anything else")
def comes_first(fate: Fate | Loss) -> bool:
    """Tell whether a lost commit is made again as it was: an earlier run of the store may have had it,
    and whoever has read it there must find the same at those offsets."""
    return fate is Fate.PUT_BACK


class Committer:
    """Commits what is in line of one instance, until that is lost or ended."""

    def __init__(
        self,
        context: WriterContext,
        commits: InstanceCommits,
        queue: CommitQueue,
        notes: Notes,
        sequences: Sequences,
        answers: Answers,
        line: Accumulator,
        seen: SeenTails,
    ) -> None:
        self._context = context
        self._commits = commits
        self._queue = queue
        self._notes = notes
        self._sequences = sequences
        self._answers = answers
        self._line = line
        self._seen = seen
        self._wake = asyncio.Event()
        self._ends = False
        self._away = False
        self._doubted = False
        """Whether somebody found coordination to be of another generation."""
        self._settling = False
        """Whether an EXEC without pieces is under way."""
        self._under_way: list[WaitingPiece] = []
        """What the commit under way is of; nobody knows what becomes of it."""
        self._unknown: _Unknown | None = None
        """The commit whose reply was lost; nothing else is committed before it is decided."""

    def wake(self) -> None:
        """Look again: an object is durable, or failed."""
        self._wake.set()

    def doubt(self) -> None:
        """Find out whether the instance still counts, also where nothing waits to be committed."""
        self._doubted = True
        self._wake.set()

    def end(self) -> None:
        """Return from `run` once nothing is left to commit or to settle."""
        self._ends = True
        self._wake.set()

    async def step(self) -> Loss | NotNow | None:
        """Commit one group, or wait for one. Returns why the instance cannot go on, or that it must
        be compared with the bucket before it does."""
        self._wake.clear()
        self._expire()
        if self._unknown is not None:
            return await self._find_out(self._unknown)
        group = self._queue.next_group(self._context.now())
        if group is None:
            if self._settles_alone() or self._doubted:
                self._doubted, self._settling = False, True
                try:
                    return await self._settle()
                finally:
                    self._settling = self._unknown is not None
            await self._rest()
            return None
        return await self._commit(group)

    @property
    def is_done(self) -> bool:
        """Whether it was to end, and has nothing left to do."""
        left = self._settling or not self._queue.is_empty or self._settles_alone()
        return self._ends and not left

    async def _rest(self) -> None:
        if self.is_done:
            return
        seconds = _LOOK_SECONDS
        ready_at = self._queue.ready_at()
        if ready_at is not None:
            seconds = min(seconds, max(ready_at - self._context.now(), 1) / 1000)
        await wait_for(self._wake, seconds)

    def _settles_alone(self) -> bool:
        """Whether the record has to say more, and no commit of pieces will say it."""
        return self._queue.needs_settling(self._commits.settled) or self._is_short

    async def _settle(self) -> Loss | NotNow | None:
        """Commit nothing, so that the record says what is settled, and more is reserved."""
        end = self._sequences.next
        try:
            clock = self._context.read_clock()
        except Unavailable:
            await asyncio.sleep(_AWAY_SECONDS)
            return None
        settled = self._queue.first_undecided(end)
        done = await self._commits.try_once([], sequence=end, settled=settled, clock=clock)
        if isinstance(done, CommitUnknown):
            lost = _Unknown(None, [], end, settled, clock, done.commit, self._until())
            return await self._find_out(lost)
        if not isinstance(done, Commit):
            return await self._not_done(done)
        # Sequences have an end, and who came to it begins another instance.
        return Loss.GONE if self._is_short else None

    @property
    def _is_short(self) -> bool:
        """Whether more sequences should have been reserved."""
        return self._sequences.left <= RESERVED_LEFT_MIN // 2

    async def _commit(self, group: Group) -> Loss | NotNow | None:
        told_before = [piece for piece in group.pieces if is_told(piece)]
        if told_before:
            # They were refused with an earlier one of their producer; the others come again.
            self._queue.done(told_before)
            return None
        try:
            clock = self._context.read_clock()
            asked = [
                self._context.asked_of(self._seen.of(stream_id), pieces, clock)
                for stream_id, pieces in group.parts.items()
            ]
        except Unavailable as error:
            self._refuse(group.pieces, error)
            return None
        self._under_way = group.pieces
        done = await self._commits.try_once(
            asked, sequence=group.sequence, settled=group.settled, clock=clock
        )
        if isinstance(done, CommitUnknown):
            lost = _Unknown(
                group, asked, group.sequence, group.settled, clock, done.commit, self._until()
            )
            return await self._find_out(lost)
        if isinstance(done, Commit):
            await self._done(group, done)
            return None
        self._under_way = []
        return await self._refused(group, done)

    async def _done(self, group: Group, done: Commit) -> None:
        self._away = False
        await reach("ingest.wal.after-exec")
        self._take(group, done)
        self._under_way = []

    def give_up(self) -> None:
        """Tell the appends of a commit whose reply was lost that nobody will ever know."""
        self._refuse(self._under_way, timed_out())
        self._under_way, self._unknown = [], None

    def abandon(self) -> None:
        """Tell the appends of a commit that a bug has broken off: it may have stored them."""
        sentence = "an unexpected error; the server's log has it"
        self._refuse(self._under_way, StoreError(sentence, outcome=Outcome.UNKNOWN))
        self._under_way, self._unknown = [], None

    async def _refused(self, group: Group, done: Loss | NotNow) -> Loss | NotNow | None:
        """What follows from an EXEC of a group that stored nothing."""
        if done is NotNow.CONFLICT:
            self._context.counts.commits["split"] += group.is_halved
            refused = self._queue.conflict(group, self._context.now(), self._context.chance())
            self._tell(refused.pieces, contended())
            return None
        if done is Loss.REGRESSED:
            self._refuse(group.pieces, coordination_lost())
        return await self._not_done(done)

    async def _not_done(self, why: Loss | NotNow) -> Loss | NotNow | None:
        """What follows from an EXEC that stored nothing; its group stays in line."""
        if why is NotNow.AWAY:
            self._away = True
            await wait_for(self._wake, _AWAY_SECONDS)
            return None
        if why is NotNow.CONFLICT:
            return None
        return why

    def _until(self) -> int:
        return self._context.now() + int(self._context.bounds.commit_seconds * 1000)

    async def _find_out(self, lost: _Unknown) -> Loss | NotNow | None:
        """Go on until it is known what became of a commit whose reply was lost."""
        self._unknown = lost
        if lost.put_back:
            return await self._commit_again(lost)
        while (fate := await self._commits.decide(lost.commit)) is None:
            self._away = True
            self._expire()
            await asyncio.sleep(_AWAY_SECONDS)
        if fate is NotNow.UNCHECKED:
            return fate
        if lost.group is not None and comes_first(fate):
            return await self._commit_again(lost._replace(put_back=True))
        self._unknown, self._settling = None, False
        if fate is Fate.APPLIED and lost.group is not None:
            await self._done(lost.group, lost.commit)
            return None
        self._under_way = []
        if isinstance(fate, Loss) or fate is Fate.UNKNOWN:
            self._refuse(lost.pieces, timed_out())
            return fate if isinstance(fate, Loss) else Loss.GONE
        # Who was told that nobody knows is not stored any more after that.
        self._queue.done([piece for piece in lost.pieces if is_told(piece)])
        return None

    async def _commit_again(self, lost: _Unknown) -> Loss | NotNow | None:
        """Commit what an earlier run of the store may have had, as it was: at the same offsets and with
        the same times, unless others came first. Nothing else is committed before."""
        assert lost.group is not None
        self._unknown = lost
        for conflicts in range(CONFLICT_COUNT_MAX):
            done = await self._commits.try_once(
                lost.asked, sequence=lost.sequence, settled=lost.settled, clock=lost.clock
            )
            if done is not NotNow.CONFLICT:
                break
            await asyncio.sleep(pause_ms(conflicts, self._context.chance()) / 1000)
        else:
            # Whoever wrote meanwhile, it is made again: the next step goes on.
            return None
        if isinstance(done, CommitUnknown):
            self._unknown = lost._replace(commit=done.commit, put_back=False)
            return None
        if done in (NotNow.AWAY, NotNow.UNCHECKED):
            return await self._not_done(done)
        self._unknown = None
        if isinstance(done, Commit):
            await self._done(lost.group, done)
            return None
        self._under_way = []
        self._refuse(lost.pieces, timed_out())
        return done if isinstance(done, Loss) else None

    def _take(self, group: Group, done: Commit) -> None:
        """Note what was committed, then tell everybody."""
        committed = {
            stream_id: found
            for stream_id, found in done.streams.items()
            if isinstance(found, Committed)
        }
        for stream_id, found in committed.items():
            self._seen.note(stream_id, found.tail)
        now = self._context.now()
        self._notes.add((note for one in committed.values() for _, note in one.notes), now)
        decided: list[WaitingPiece] = []
        answers: list[Sequence[Appended | StoreError | TrimAgain]] = []
        for stream_id, pieces in group.parts.items():
            said = iter(told(done.streams[stream_id], done.answers[stream_id], pieces))
            for piece in pieces:
                outcomes = [next(said) for _ in piece.appends]
                trim = next((one for one in outcomes if isinstance(one, TrimAgain)), None)
                if trim is None or is_told(piece):
                    decided.append(piece)
                    answers.append(outcomes)
                elif trim.duplicates != piece.duplicates:
                    self._seal_again(piece, trim.duplicates)
                # Else it waits, after an earlier one of its producer that is sealed anew.
        self._queue.done(decided)
        # The last one first, as `Answers.refuse` says.
        for piece, each in zip(reversed(decided), reversed(answers), strict=True):
            self._answer(piece, each)
        for piece in decided:
            self._context.counts.note_ms("commit", piece.durable_at, now)

    def _seal_again(self, piece: WaitingPiece, duplicates: int) -> None:
        """Seal a piece anew, without what is stored; it keeps its place, and comes into an object
        once more."""
        again = seal_again(piece, duplicates, self._context.bounds.chunk_size_max)
        self._queue.trim(piece, again)
        self._line.add_again([again], self._context.now())

    def _answer(
        self, piece: WaitingPiece, outcomes: Sequence[Appended | StoreError | TrimAgain]
    ) -> None:
        for append, said in zip(piece.appends, outcomes, strict=True):
            # What is still to be trimmed was told long ago that nobody knows of it.
            if not isinstance(said, TrimAgain):
                self._answers.tell(append, said, piece.stream_id)

    async def beside(self, check: Coroutine[Any, Any, T]) -> T:
        """What `check` returns. Nothing is committed before, and what waits for too long is refused."""
        self._away = True
        task = asyncio.create_task(check)
        try:
            while not task.done():
                await asyncio.wait([task], timeout=_LOOK_SECONDS)
                self._expire()
        finally:
            await end_tasks(task)
        return task.result()

    def _expire(self) -> None:
        """Refuse what has waited for too long, and answer what waited for notes."""
        lost, now = self._unknown, self._context.now()
        if lost is not None and lost.until <= now:
            self._tell(lost.pieces, timed_out())
        late = self._queue.expire(now, None if lost is None else lost.group)
        self._tell(late.pieces, away() if self._away else contended())
        self._answers.release()

    def _refuse(self, pieces: Iterable[WaitingPiece], error: StoreError) -> None:
        found = list(pieces)
        self._queue.done(found)
        self._tell(found, error)

    def _tell(self, pieces: Iterable[WaitingPiece], error: StoreError) -> None:
        self._answers.refuse(appends_of(pieces), error)
