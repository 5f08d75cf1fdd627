"""One instance of a writer: its parts, from its begin to its end.

In Redis after a crash at any time: the record of the instance, and its lease, which runs out. The
vacuum settles it, and what was committed is compacted like everything else.
"""

from collections.abc import Callable, Sequence

import structlog

from bottomless.errors import StoreError
from bottomless_server.ingest.leaderless.answers import Answers
from bottomless_server.ingest.leaderless.commits import InstanceCommits
from bottomless_server.ingest.leaderless.committer import Committer
from bottomless_server.ingest.leaderless.context import WriterContext
from bottomless_server.ingest.leaderless.core.accumulator import Accumulator
from bottomless_server.ingest.leaderless.core.commit_queue import CommitQueue
from bottomless_server.ingest.leaderless.core.notes import Notes
from bottomless_server.ingest.leaderless.core.refusals import appends_of, is_told, stopping
from bottomless_server.ingest.leaderless.core.sequences import Sequences
from bottomless_server.ingest.leaderless.flusher import Flusher
from bottomless_server.ingest.leaderless.instance_lease import InstanceLease
from bottomless_server.ingest.leaderless.seen_tails import SeenTails
from bottomless_server.ingest.leaderless.store_check import Checked
from bottomless_server.ingest.leaderless.wal_cache import WalCache
from bottomless_server.leaderless.attempts import AttemptNumbers
from bottomless_server.leaderless.instance import RESERVED_COUNT
from bottomless_server.stores.wal import begin, retire

log = structlog.get_logger(__name__)


class InstanceRun:
    """An instance that was begun, and what it has under way."""

    def __init__(
        self,
        context: WriterContext,
        numbers: AttemptNumbers,
        lease: InstanceLease,
        line: Accumulator,
        seen: SeenTails,
        cache: WalCache,
        heard: Callable[[], None],
    ) -> None:
        bounds = context.bounds
        self.numbers = numbers
        self.lease = lease
        self.sequences = Sequences(RESERVED_COUNT)
        self.notes = Notes(0 if bounds.notes_sync else bounds.note_ms)
        self.queue = CommitQueue(int(bounds.commit_seconds * 1000), bounds.commit_stream_count_max)
        self.answers = Answers(context, self.notes, numbers.generation)
        self.flusher = Flusher(
            context,
            numbers,
            self.sequences,
            self.notes,
            self.queue,
            self.answers,
            cache,
            heard,
        )
        self.commits = InstanceCommits(context, numbers, self.sequences)
        self.committer = Committer(
            context,
            self.commits,
            self.queue,
            self.notes,
            self.sequences,
            self.answers,
            line,
            seen,
        )
        self._context = context

    def notes_due_at(self, now: int) -> int | None:
        """When an object with notes alone is put unless a flush comes before; None where the bucket has
        been told everything, or is being told. Times are in ms of a clock that never goes back."""
        due_at = self.notes.due_at()
        decided = self.queue.decided_end
        if len(self.notes) or decided is None or self.numbers.lost is not None:
            return due_at
        # Of one that has used up its sequences nothing more can be told.
        return self.notes.untold_at(decided, now) if self.sequences.left else None

    def owes(self, now: int) -> bool:
        """Tell whether the bucket does not know yet what became of everything that was put."""
        return bool(len(self.notes)) or self.notes_due_at(now) is not None

    async def give_up(self) -> None:
        """End it as it is: whoever still waits is told that nothing is known, or that nothing is
        stored."""
        await self.flusher.aclose()
        self.committer.abandon()
        left = [piece for piece in self.queue.give_up() if not is_told(piece)]
        self.answers.refuse(appends_of(left), stopping())
        self.answers.give_up()

    async def retire(self) -> None:
        """Give the instance back, once everything is committed and noted."""
        if self.numbers.lost is not None:
            return
        try:
            await retire(self._context.coordination, self.numbers)
        except StoreError as error:
            log.warning("an instance was not given back; its lease runs out", error=str(error))


async def begin_instance(
    context: WriterContext,
    generation: int,
    checked: Checked,
    line: Accumulator,
    seen: SeenTails,
    cache: WalCache,
    heard: Callable[[], None],
    living: Callable[[], Sequence[AttemptNumbers]],
) -> InstanceRun:
    """Begin an instance under its lease; a name that came to nothing is never used again. `living` tells
    the numbers of all instances of the process.

    Raises:
        Unavailable: `coordination-regressed`, or not now.
    """
    instance = context.new_uid()
    lease = InstanceLease(context.coordination, instance, context.clocks, context.bounds.lease)
    numbers = AttemptNumbers(
        instance, generation, lease.is_held, checked.connected, checked.run_id, living
    )
    since = context.clocks.beginning()
    await begin(context.coordination, numbers, context.url, lease.ttl_ms)
    lease.begun(since)
    context.counts.instances += 1
    log.info("a writer of leaderless streams has begun", instance=instance)
    return InstanceRun(context, numbers, lease, line, seen, cache, heard)
