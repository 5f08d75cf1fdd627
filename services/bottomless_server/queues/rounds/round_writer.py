"""One round of queues after the other, in the one thread that has the ledger: written, synced, committed.

Changes come in the order of their arrival. Each stands in a savepoint and sees those before it; one
that is refused leaves nothing. What is on disk after a crash:

- before the write: nothing of the round.
- after the write, or its sync: bytes after the end that the ledger knows of the open file, and perhaps
  a file without a row. The next start cuts and removes them.
- in COMMIT: all of the round, or nothing of it; its bytes are durable either way.
- after COMMIT: all of it, and nobody was told.

What fails, and what is answered:

| Failed | Then | Who brought records hears | The others |
|---|---|---|---|
| a statement | the round is taken back | `storage-full` or `storage-failed`, none | the same |
| the write | taken back, the file is cut; unless the disk is full it is sealed too | the same | go again, without records |
| the sync | taken back, the file is cut and sealed where it ended | `storage-failed`, none | go again |
| COMMIT | the ledger is opened anew before a file is cut and anything is answered | what is true then | the same |
| a registry object | written again after each round | `storage-failed`, committed | the same |

docs/decisions/0088 says why a failed COMMIT ends with what is true. `rounds.py` is the task around this.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

import structlog

from bottomless.errors import Code, NotServed, Outcome, StoreError
from bottomless.guards import guard
from bottomless_server.queues.core.states import FileState, QueueState
from bottomless_server.queues.ledger.base import NUMBER_MAX, Ledger, LedgerFailed, Totals
from bottomless_server.queues.ports import (
    MessageFiles,
    Pin,
    Registry,
    SyncFailed,
    WriteFailed,
)
from bottomless_server.queues.rounds.round_bodies import Place, RoundBodies, repeated
from bottomless_server.queues.rounds.work import (
    Asked,
    Change,
    Ended,
    Look,
    Verdict,
    Ways,
    Work,
    not_stored,
    sum_of,
)

T = TypeVar("T")
log = structlog.get_logger(__name__)

_REGISTRY_COUNT: Final = 10_000
"""Registry objects that are written after one round: more than a round has changes."""
_BUSY_ROUNDS: Final = 50
"""Rounds after a request in which others are expected."""
_NEVER: Final = NUMBER_MAX
"""Stands for the number of a round that certainly is not there."""


class Bounds(NamedTuple):
    """Bounds of what the writer does."""

    file_bytes_max: int = 16 * 2**20
    """A message file that would grow beyond is sealed."""
    free_bytes_min: int = 64 * 2**20
    """Room on the disk below which no records are taken: acknowledgements need room too."""
    wal_bytes_max: int = 16 * 2**20
    """The log of the ledger is checkpointed once it is longer."""


_NOTHING: Final = Ended((), {}, None)
_NOBODY: Final = Verdict()
"""What becomes of a change whose sender has hung up."""


@dataclass(slots=True)
class _Doubt:
    """A round of which nobody knows whether it is there."""

    number: int
    ended: Ended
    """What it has come to if it is."""
    asked: Sequence[Asked] = ()
    error: StoreError | None = None
    """What is answered if it is not; None: `storage-failed`."""
    taken: "_Taken | None" = None
    after_bug: bool = False


class _Taken:
    """A round that is begun, and what its changes have come to."""

    def __init__(self, goes_on: Place | None) -> None:
        self.goes_on = goes_on
        """The end of the open file before the round."""
        self.number = 0
        self.parts: RoundBodies | tuple[()] = ()
        self.pins: list[Pin] = []
        self.ended = _NOTHING

    def release(self) -> None:
        """Release what was pinned for answers that nobody gets."""
        for pin in self.pins:
            pin.release()


class RoundWriter:
    """The only one who changes the ledger and writes to message files. One thread has it."""

    def __init__(
        self,
        ledger: Ledger,
        files: MessageFiles,
        registry: Registry,
        clock: Callable[[], int],
        bounds: Bounds = Bounds(),  # noqa: B008 it is immutable
    ) -> None:
        """`clock` gives ms since 1970, or raises what is then answered (`clock-skew`)."""
        self._ledger = ledger
        self._files = files
        self._registry = registry
        self._clock = clock
        self._bounds = bounds
        self._doubt: _Doubt | None = None
        self._to_seal: set[int] = set()
        """Open files that take no more records after a failure: the next round seals them."""
        self._written: set[bytes] = set()
        """Queues whose registry object is written, which the ledger does not know yet."""
        self._unwritten: frozenset[bytes] = frozenset()
        """Queues whose registry object could not be written."""
        self._taken = _Taken(None)
        """The last round that was begun."""
        self._asked_at = -_BUSY_ROUNDS
        """The last round in which somebody asked for something, and not only upkeep was due."""
        self._given_up = False
        self.log_is_long = False
        """Whether it is time to `tidy`."""
        self._goes_on = self._open_end()

    @property
    def in_doubt(self) -> bool:
        """Whether nothing may be done before `settle` has succeeded."""
        return self._doubt is not None

    def round(self, asked: Sequence[Asked]) -> Ended | None:
        """Do a round; None if nobody knows what became of it: `settle`."""
        if self._given_up:
            return _refused(asked, not_stored())
        if self._doubt is not None:
            # A look has failed since the last round; what became of that is known.
            assert not self._doubt.asked
            self._doubt = _Doubt(_NEVER, _NOTHING, asked)
            return self.settle()
        # Not the one before: who was answered has its pins.
        self._taken = _Taken(None)
        try:
            return self._round(asked, self._refusal())
        except Exception:
            log.exception("a round of queues met a bug")
            error = not_stored(outcome=Outcome.UNKNOWN, code=Code.INTERNAL)
            # Whether it is there or not, nobody hears more of it; what it wrote is cut if it is not.
            taken, ended = self._taken, _refused(asked, error)
            taken.release()
            self._doubt = _Doubt(taken.number or _NEVER, ended, asked, error, taken, after_bug=True)
            return self.settle()

    def look(self, call: Callable[[Look], T]) -> T:
        """What the ledger says between two rounds: everything that is durable, and nothing else.

        Raises:
            Unavailable: `storage-failed`: it does not say.
        """
        if self._doubt is not None and not self._doubt.asked and not self._given_up:
            # Nobody waits for it, and perhaps no round comes that would settle it.
            self.settle()
        if self._given_up or self.in_doubt:
            raise not_stored()
        try:
            return call(Look(self._ledger, self._files.pin))
        except LedgerFailed as error:
            log.warning("the ledger refused a look", error=str(error))
            self._doubt = _Doubt(0, _NOTHING)
            raise not_stored() from error

    def settle(self) -> Ended | None:
        """Find out what became of a round in doubt; None if the disk does not tell yet."""
        doubt = self._doubt
        if doubt is None:
            # A look has settled it.
            return _NOTHING
        try:
            self._ledger.reopen()
            landed = self._ledger.store().round >= doubt.number
            end = self._open_end()
        except LedgerFailed as error:
            log.warning("the ledger cannot be opened again", error=str(error))
            return None
        self._doubt = None
        self._goes_on = end
        if landed:
            self._forget_done()
            # What is due after a bug is written after the next round.
            return doubt.ended if doubt.after_bug else self._register(doubt.ended)
        if doubt.taken is not None:
            self._cut(doubt.taken)
        return _refused(doubt.asked, doubt.error or not_stored())

    def give_up(self) -> Ended:
        """End a doubt without knowing: nothing is done any more, and the next start finds out."""
        doubt, self._doubt = self._doubt, None
        self._given_up = True
        assert doubt is not None
        if doubt.taken is not None:
            doubt.taken.release()
        return _refused(doubt.asked, not_stored(outcome=Outcome.UNKNOWN))

    def tidy(self) -> bool:
        """Checkpoint the ledger; False if that failed: `settle`."""
        self.log_is_long = False
        try:
            self._ledger.checkpoint()
        except LedgerFailed as error:
            log.warning("a checkpoint of the ledger failed", error=str(error))
            # Every round is there already, whatever is found.
            self._doubt = _Doubt(0, _NOTHING)
            return False
        return True

    def close(self, *, clean: bool) -> None:
        """Close the ledger; `clean` says that this is the end of an orderly stop.

        Raises:
            LedgerFailed: the next start looks at everything.
        """
        try:
            if clean and not self.in_doubt and not self._given_up:
                self._ledger.begin()
                self._ledger.set_clean(clean=True)
                self._ledger.commit()
        finally:
            self._ledger.close()

    def _round(self, asked: Sequence[Asked], refusal: StoreError | None) -> Ended | None:
        taken = self._taken = _Taken(self._goes_on)
        try:
            bodies = self._take(taken, asked, refusal)
        except LedgerFailed as error:
            log.warning("the ledger refused a round", error=str(error))
            return self._take_back(asked, taken, not_stored(full=error.full))
        except StoreError as error:
            return self._take_back(asked, taken, error)
        try:
            self._write(bodies)
        except WriteFailed as error:
            log.warning("message files take no records", error=str(error))
            if not error.full:
                # The place may stay bad, and another file have others.
                self._to_seal.update(part.file for part in bodies if not part.created)
            return self._without_records(asked, taken, not_stored(full=error.full))
        try:
            self._sync(bodies)
        except SyncFailed as error:
            log.warning("a sync of message files failed", error=str(error))
            # Of a file that was created nothing is left: no row names it.
            self._to_seal.update(part.file for part in bodies if not part.created)
            return self._without_records(asked, taken, not_stored())
        try:
            self._commit()
        except LedgerFailed as error:
            log.warning("a commit of the ledger failed", error=str(error))
            self._doubt = _Doubt(taken.number, taken.ended, asked, taken=taken)
            return self._settled(taken.ended)
        self._goes_on = bodies.end
        self._forget_done()
        self.log_is_long = self._ledger.log_size > self._bounds.wal_bytes_max
        return self._register(taken.ended)

    def _take(
        self, taken: _Taken, asked: Sequence[Asked], refusal: StoreError | None
    ) -> RoundBodies:
        """Begin a round and apply its changes.

        Raises:
            LedgerFailed: the round is to be taken back.
            StoreError: so is it, since the time is not believed.
        """
        ledger = self._ledger
        taken.number = ledger.begin()
        store = ledger.store()
        now = max(store.clock, self._clock())
        ledger.set_clock(now)
        if store.clean:
            ledger.set_clean(clean=False)
        for sealed in self._to_seal:
            ledger.set_file_state(sealed, FileState.SEALED)
        if self._written:
            ledger.settle_registry(self._written)
        goes_on = taken.goes_on
        if goes_on is not None and goes_on.file in self._to_seal:
            goes_on = None
        bodies = RoundBodies(ledger, goes_on, self._bounds.file_bytes_max, refusal)
        taken.parts = bodies
        ways = Ways(bodies, lambda file: self._pin(taken, file), self._unwritten)
        verdicts = []
        made_ready: Counter[bytes] = Counter()
        dead_lettered: Counter[str] = Counter()
        needs_upkeep = False
        sent_out: set[int] = set()
        totals = Totals()
        if not all(getattr(each.change, "is_background", False) for each in asked):
            self._asked_at = taken.number
        for change, is_wanted in asked:
            work = Work(ledger, taken.number, now, ways)
            work.is_busy = taken.number - self._asked_at < _BUSY_ROUNDS
            verdict = self._apply(change, work, taken, bodies) if is_wanted() else _NOBODY
            verdicts.append(verdict)
            totals = sum_of(totals, work.totals)
            if verdict.error is None:
                made_ready.update(work.made_ready)
                needs_upkeep |= work.needs_upkeep
                sent_out |= work.sent_out
                dead_lettered.update(work.dead_lettered)
        bodies.enter()
        next_due = ledger.next_due()
        taken.ended = Ended(
            verdicts,
            made_ready,
            next_due,
            needs_upkeep,
            frozenset(sent_out),
            totals,
            dead_lettered,
        )
        return bodies

    def _apply(self, change: Change, work: Work, taken: _Taken, bodies: RoundBodies) -> Verdict:
        mark = bodies.mark()
        pin_count = len(taken.pins)
        self._ledger.savepoint()
        try:
            answer = change.apply(work)
        except LedgerFailed:
            raise
        except Exception as error:
            if not isinstance(error, StoreError):
                log.exception("a change of queues met a bug")
            self._ledger.undo()
            work.settle_refused()
            bodies.undo(mark)
            for pin in taken.pins[pin_count:]:
                pin.release()
            return Verdict(error=error)
        self._ledger.keep()
        return Verdict(answer)

    def _pin(self, taken: _Taken, file: int) -> Pin:
        pin = self._files.pin(file, taken.number)
        taken.pins.append(pin)
        return pin

    def _write(self, bodies: RoundBodies) -> None:
        for part in bodies:
            self._files.write(part.file, part.position, part.records, create=part.created)

    @guard("the bytes of a round are durable before its rows")
    def _sync(self, bodies: RoundBodies) -> None:
        for part in bodies:
            self._files.sync(part.file, created=part.created)

    @guard("a round is durable before its answers")
    def _commit(self) -> None:
        self._ledger.commit()

    @guard("a round in doubt is answered after the ledger was opened anew and checkpointed")
    def _settled(self, ended: Ended) -> Ended | None:
        """What a round in doubt has come to; `ended` is what it was about to come to."""
        del ended
        return self.settle()

    @guard("a round whose bytes are not durable is rolled back")
    def _roll_back(self) -> None:
        self._ledger.rollback()

    def _take_back(self, asked: Sequence[Asked], taken: _Taken, error: StoreError) -> Ended | None:
        """Roll a round back of which nothing was written, and refuse all of it."""
        taken.release()
        try:
            self._ledger.rollback()
        except LedgerFailed as failed:
            log.warning("a round could not be rolled back", error=str(failed))
            self._doubt = _Doubt(_NEVER, _NOTHING, asked, error)
            return self.settle()
        return _refused(asked, error)

    def _without_records(
        self, asked: Sequence[Asked], taken: _Taken, refusal: StoreError
    ) -> Ended | None:
        """Roll a round back whose bytes could not be stored, and do it again without them."""
        try:
            self._roll_back()
        except LedgerFailed as failed:
            log.warning("a round could not be rolled back", error=str(failed))
            self._doubt = _Doubt(_NEVER, _NOTHING, asked, refusal, taken)
            return self.settle()
        self._cut(taken)
        return self._round(asked, refusal)

    def _cut(self, taken: _Taken) -> None:
        """Cut files to where they ended before a round that is not there.

        One that cannot be cut is sealed: what lies in it after its end is cut at the next start.
        """
        taken.release()
        for part in taken.parts:
            try:
                self._files.cut(part.file, None if part.created else part.position)
            except SyncFailed as error:
                log.warning("a message file could not be cut", error=str(error), file=part.file)
                if not part.created:
                    self._to_seal.add(part.file)

    def _forget_done(self) -> None:
        """Forget what the round that is there now has done."""
        self._to_seal.clear()
        self._written.clear()

    def _register(self, ended: Ended) -> Ended:
        """Write the registry objects that the round has made due, before it is answered."""
        try:
            due = self._ledger.registry_due(_REGISTRY_COUNT)
        except LedgerFailed as error:
            log.warning("the ledger refused a look", error=str(error))
            self._doubt = _Doubt(0, _NOTHING)
            return _uncertain(ended)
        failed = set()
        for row in due:
            try:
                if row.state is QueueState.DELETED:
                    self._registry.remove(row.queue_id)
                else:
                    self._registry.write(row)
                self._written.add(row.queue_id)
            except NotServed:
                # It stays due until the release is back that can read it; what it asks for is refused.
                continue
            except WriteFailed as error:
                log.warning("a registry object could not be written", error=str(error))
                failed.add(row.queue_id)
            except Exception:
                # It is that queue's alone: those of all others are written.
                log.exception("a registry object met a bug", queue_id=row.queue_id.hex())
                failed.add(row.queue_id)
        is_new = not failed <= self._unwritten
        self._unwritten = frozenset(failed)
        return _uncertain(ended) if is_new else ended

    def _refusal(self) -> StoreError | None:
        """Why no record is taken at present."""
        try:
            free = self._files.free_bytes()
        except WriteFailed as error:
            log.warning("the disk does not say how much room it has", error=str(error))
            return not_stored()
        return not_stored(full=True) if free < self._bounds.free_bytes_min else None

    def _open_end(self) -> Place | None:
        for row in self._ledger.files():
            if row.state is FileState.OPEN:
                return Place(row.number, row.size)
        return None


def _refused(asked: Sequence[Asked], error: StoreError) -> Ended:
    return Ended([Verdict(error=repeated(error)) for _ in asked], {}, None)


def _uncertain(ended: Ended) -> Ended:
    """What is said where a round is there, and not all that was to be written after it."""
    return ended._replace(
        verdicts=[
            each if each.error else each._replace(error=not_stored(outcome=Outcome.COMMITTED))
            for each in ended.verdicts
        ]
    )
