"""Messages on their way out of their queues: to other queues as dead letters, to streams as records.

Each target has a line of its own, in the order of the numbers that its rows got. A row goes with the
round in which its message is in the other queue, or after the stream has said that it has it.

*To a queue*: one round publishes messages anew there and takes their rows.

*To a stream*: as the producer `queue.{store_id}` in highwater mode, with the row's number as publishing
id. The stream has what it has once: what it knows already it does not append again. So a row is sent
again after a crash between its append and the round that takes it.

Before the first send after a start the stream is asked for the highest id that it knows. Numbers go on
above it, and rows that were made since the start with numbers up to it get new ones: a ledger that was
put back from a back-up would give numbers again that mean something else there, and hear "duplicate".

What is refused for itself (too large for a stream, damaged) steps aside: it gets a new number at the
end of the line, in a round before anything after it is sent, so that its old number means nothing
any more; it is tried again after a while. Unless the stream has it already, from a send of which nobody
heard what became: that is asked before. In a ledger from a back-up a row that is refused was refused
before, and has gone on under another number since: it steps aside, whatever the stream knows. For
anything else the target waits, longer each time.
"""

import asyncio
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import structlog

from bottomless.errors import Code, StoreError
from bottomless.guards import guard
from bottomless.model.backoff import backoff
from bottomless.model.queue import QueueMessage
from bottomless_server.queues.changes.moving import Arrive, Arriving
from bottomless_server.queues.core.message_ids import RANDOM_SIZE
from bottomless_server.queues.core.origin import decode_origin, with_origin
from bottomless_server.queues.ledger.base import NUMBER_MAX, Ledger, Outgoing, Target
from bottomless_server.queues.ports import OutgoingRecord, OutgoingStreams, Pin, RecordRefused
from bottomless_server.queues.reading.reading import Reading, Unread
from bottomless_server.queues.rounds.rounds import Rounds
from bottomless_server.queues.rounds.work import Look, Work
from bottomless_server.queues.settings import EngineSettings
from bottomless_server.runtime.base.end import end_tasks
from bottomless_server.runtime.base.endless import endless

log = structlog.get_logger(__name__)

BATCH_COUNT_MAX: Final = 100
BATCH_BYTES_MAX: Final = 4 * 2**20
"""Rows of one send, unless one alone is larger."""
TARGETS_AT_ONCE: Final = 8
"""Targets of each kind: queues do not wait for streams whose node stands still."""
ASIDE_COUNT_MAX: Final = 1_000
"""Rows of one target that stand aside; with more of them the target waits."""


@dataclass
class _Line:
    """What is known of a target since the start."""

    target: Target
    new_from: int
    """Rows from this number on were made since the start."""
    is_older: bool = False
    """Whether the stream knows numbers that this ledger has not given: it was put back from a back-up.
    So rows of before the start were sent, or stepped aside, in a life that this ledger knows nothing of."""
    asked: bool = False
    """Whether the stream was asked for its highest id since the start."""
    aside: dict[int, float] = field(default_factory=dict)
    """Rows that stepped aside, and when each is tried again, on the loop's clock."""
    failures: int = 0
    waiting_for: str | None = None
    """The code of what the target waits for."""
    is_due: bool = False
    """Whether rows came since it was looked at."""
    task: "asyncio.Task[None] | None" = None
    timer: asyncio.TimerHandle | None = None


class Found(NamedTuple):
    """What is on its way at a start."""

    store_id: bytes
    targets: Sequence[Target]
    busy: frozenset[int]
    """Targets with rows."""


def find(ledger: Ledger) -> Found:
    """What is on its way; to be asked before the first round after a start."""
    targets = ledger.targets()
    busy = frozenset(each.id for each in targets if ledger.outgoing(each.id, 1))
    return Found(ledger.store().store_id, targets, busy)


class _Batch(NamedTuple):
    rows: Sequence[Outgoing]
    """Rows that are sent now."""
    later: Sequence[Outgoing]
    """Rows before them that stand aside still."""
    gone: Sequence[int]
    """Numbers that stood aside and that no row has any more."""
    pins: Sequence[Pin]

    def release(self) -> None:
        for pin in self.pins:
            pin.release()


@dataclass(frozen=True)
class _Change:
    """A change of outgoing rows, as a change of a round."""

    change: Callable[[Work], Any]
    size: int = 0

    def apply(self, work: Work) -> Any:
        return self.change(work)


class OutgoingLines:
    """Sends what is on its way. `start` begins, `stop` ends it."""

    def __init__(
        self,
        rounds: Rounds,
        reading: Reading,
        streams: OutgoingStreams | None,
        settings: EngineSettings,
    ) -> None:
        self._rounds = rounds
        self._reading = reading
        self._streams = streams
        self._settings = settings
        self._producer = ""
        self._lines: dict[int, _Line] = {}
        self._queues_at_once = asyncio.Semaphore(TARGETS_AT_ONCE)
        self._streams_at_once = asyncio.Semaphore(TARGETS_AT_ONCE)
        self._is_stopping = False
        self.sent_count = 0
        self.aside_count = 0
        """Rows that stepped aside since the start."""

    def start(self, found: "Found") -> None:
        """Begin with what was on its way before this start had changed anything."""
        self._producer = f"queue.{found.store_id.hex()}"
        for target in found.targets:
            self._lines[target.id] = _Line(target, new_from=target.next_number)
        self.wake(found.busy)

    async def stop(self) -> None:
        """Return when nothing is being sent any more. What was begun and not heard of is sent again
        after the next start.
        """
        self._is_stopping = True
        tasks = [line.task for line in self._lines.values() if line.task is not None]
        for line in self._lines.values():
            _stop_timer(line)
        await end_tasks(*tasks)

    def wake(self, targets: frozenset[int]) -> None:
        """Say that targets got rows."""
        for target in targets:
            line = self._lines.get(target)
            if line is None:
                line = self._lines[target] = _Line(Target(target, "", "", "", 0), new_from=0)
            line.is_due = True
            if line.timer is None or not line.failures:
                self._begin(line)

    def wake_queue(self, tenant: str, name: str) -> None:
        """Say that there is a queue now which dead letters may wait for."""
        for line in self._lines.values():
            if line.target[1:4] == (tenant, "queue", name) and line.failures:
                line.is_due = True
                self._begin(line)

    @property
    def waiting_for(self) -> dict[int, str]:
        """What targets wait for: the code of each, by the target's number."""
        return {
            number: line.waiting_for
            for number, line in self._lines.items()
            if line.waiting_for is not None
        }

    def _begin(self, line: _Line) -> None:
        if self._is_stopping or (line.task is not None and not line.task.done()):
            return
        _stop_timer(line)
        line.task = asyncio.create_task(
            endless("outgoing messages of queues", lambda: self._step(line))
        )

    def _begin_later(self, line: _Line, seconds: float) -> None:
        _stop_timer(line)
        loop = asyncio.get_running_loop()

        def begin() -> None:
            line.timer = None
            line.is_due = True
            self._begin(line)

        line.timer = loop.call_later(seconds, begin)

    # One target

    async def _step(self, line: _Line) -> float | None:
        """Send a batch; None where nothing is left, or where the target waits."""
        line.is_due = False
        try:
            if not line.target.kind:
                await self._get_to_know(line)
            async with turn_of(line.target.kind, self._queues_at_once, self._streams_at_once):
                is_more = await self._send_some(line)
        except StoreError as error:
            self._wait(line, error)
            return None
        line.failures = 0
        line.waiting_for = None
        if is_more or line.is_due:
            return 0
        if line.aside:
            until = min(line.aside.values()) - asyncio.get_running_loop().time()
            self._begin_later(line, max(until, 0))
        return None

    def _wait(self, line: _Line, error: StoreError) -> None:
        least, most = self._settings.outgoing_retry_ms_min, self._settings.outgoing_retry_ms_max
        pause = backoff(line.failures, least / 1000, most / 1000)
        line.failures += 1
        line.waiting_for = str(error.code)
        if self._is_stopping:
            return
        log.warning(
            "messages that leave a queue wait for their target",
            kind=line.target.kind,
            target=line.target.id,
            code=str(error.code),
            failures=line.failures,
        )
        self._begin_later(line, pause)

    async def _send_some(self, line: _Line) -> bool:
        """Send the next rows; returns whether there may be more that can be sent now.

        Raises:
            StoreError: the target waits.
        """
        if line.target.kind == "stream":
            if self._streams is None:
                return False
            if not line.asked:
                await self._ask(line, self._streams)
        now = asyncio.get_running_loop().time()
        batch = await self._rounds.look(lambda look: _look(look, line, now))
        for number in batch.gone:
            line.aside.pop(number, None)
        try:
            return await self._send_batch(line, batch)
        finally:
            batch.release()

    async def _get_to_know(self, line: _Line) -> None:
        targets = await self._rounds.look(lambda look: look.ledger.targets())
        for target in targets:
            if target.id == line.target.id:
                line.target = target
                # It was made since the start: so were all of its rows.
                line.new_from = 0

    async def _ask(self, line: _Line, streams: OutgoingStreams) -> None:
        target = line.target
        last = await streams.last_id(target.tenant, target.name, self._producer)
        if last is not None:
            line.is_older = last >= line.new_from
            await self._rounds.do(
                _Change(lambda work: _go_on_above(work, target.id, last, line.new_from))
            )
        line.asked = True

    async def _send_batch(self, line: _Line, batch: _Batch) -> bool:
        rows, later = batch.rows, batch.later
        if not rows:
            return False
        if later:
            # What comes after them is sent: so they get numbers after that, and keep their time.
            await self._step_aside(line, later, [line.aside[row.number] for row in later])
        messages = await self._reading.read([row.message for row in rows])
        for why in Unread:
            unread = [row for row, read in zip(rows, messages, strict=True) if read is why]
            if unread:
                await self._refused(line, unread, why.value)
        good = [
            Arriving(row, message)
            for row, message in zip(rows, messages, strict=True)
            if isinstance(message, QueueMessage)
        ]
        if good:
            await self._send(line, good)
        return True

    async def _send(self, line: _Line, good: Sequence[Arriving]) -> None:
        if line.target.kind == "queue":
            await self._rounds.do(
                Arrive(line.target, good, os.urandom(RANDOM_SIZE), self._settings.checksum)
            )
        else:
            assert self._streams is not None
            records = [_record(each) for each in good]
            target = line.target
            try:
                await self._streams.append(target.tenant, target.name, self._producer, records)
            except RecordRefused as refusal:
                bad = [
                    each.row
                    for each, record in zip(good, records, strict=True)
                    if record.number == refusal.number
                ]
                await self._refused(line, bad, "refused")
                return
            numbers = [each.row.number for each in good]
            await self._rounds.do(
                _Change(lambda work: work.ledger.remove_outgoing(target.id, numbers))
            )
        for each in good:
            line.aside.pop(each.row.number, None)
        self.sent_count += len(good)

    async def _refused(self, line: _Line, rows: Sequence[Outgoing], why: str) -> None:
        rows = await self._not_there(line, rows)
        if len(line.aside) + len(rows) > ASIDE_COUNT_MAX:
            raise StoreError("too many messages stand aside", code=Code.DATA_CORRUPT)
        for row in rows:
            log.error(
                "a message that leaves a queue is not taken and stands aside",
                kind=line.target.kind,
                target=line.target.id,
                message_id=row.message.msg_id.hex(),
                why=why,
            )
        self.aside_count += len(rows)
        retry = asyncio.get_running_loop().time() + self._settings.outgoing_retry_ms_max / 1000
        await self._step_aside(line, rows, [retry] * len(rows))

    async def _not_there(self, line: _Line, rows: Sequence[Outgoing]) -> Sequence[Outgoing]:
        """Take rows that the stream has; returns the others, which may get new numbers.

        One that was sent before, and of which nobody heard what became, may be there under its number.
        """
        target = line.target
        if target.kind != "stream" or self._streams is None or not rows:
            return rows
        last = await self._streams.last_id(target.tenant, target.name, self._producer)
        there = [
            row.number
            for row in rows
            if last is not None and row.number <= last and may_be_there(line, row.number)
        ]
        if there:
            await self._rounds.do(
                _Change(lambda work: work.ledger.remove_outgoing(target.id, there))
            )
            for number in there:
                line.aside.pop(number, None)
            self.sent_count += len(there)
        return [row for row in rows if row.number not in there]

    async def _step_aside(
        self, line: _Line, rows: Sequence[Outgoing], retries: Sequence[float]
    ) -> None:
        target = line.target.id
        numbers = [row.number for row in rows]
        fresh = await self._rounds.do(
            _Change(lambda work: [work.ledger.renumber(target, number) for number in numbers])
        )
        for old, new, retry in zip(numbers, fresh, retries, strict=True):
            line.aside.pop(old, None)
            line.aside[new] = retry


@guard("a row of an older ledger that is refused was never there")
def may_be_there(line: _Line, number: int) -> bool:
    """Whether a row that is refused for itself may be in the stream under its number.

    Not one of before the start in a ledger from a back-up: it stood aside when that was made, and in the
    life that followed it was refused again, and got another number. Its old one means nothing.
    """
    return not (line.is_older and number < line.new_from)


@guard("targets that are queues do not wait for streams")
def turn_of(
    kind: str, of_queues: asyncio.Semaphore, of_streams: asyncio.Semaphore
) -> asyncio.Semaphore:
    """Where a target waits for its turn: what goes to a stream may wait there for a node that stands still,
    as long as a request may take."""
    return of_streams if kind == "stream" else of_queues


def _look(look: Look, line: _Line, now: float) -> _Batch:
    """The next rows of a target, as many as are sent together, with pins on their files."""
    count = BATCH_COUNT_MAX + len(line.aside)
    there = look.ledger.outgoing(line.target.id, count)
    gone = no_more(line.aside, [row.number for row in there], is_all=len(there) < count)
    rows: list[Outgoing] = []
    later: list[Outgoing] = []
    size = 0
    for row in there:
        if line.aside.get(row.number, now) > now:
            later.append(row)
            continue
        size += row.message.size
        if len(rows) == BATCH_COUNT_MAX or (rows and size > BATCH_BYTES_MAX):
            break
        rows.append(row)
    files = sorted({row.message.file for row in rows})
    return _Batch(rows, later, gone, [look.pin(file) for file in files])


@guard("a row that is gone stands aside no more")
def no_more(aside: Iterable[int], there: Sequence[int], *, is_all: bool) -> list[int]:
    """Numbers that stand aside and that no row has any more, by the first numbers that are `there`.

    A round may have taken a row, or renumbered it, and the answer was an error: a registry object beside it
    could not be written, say. Such a number would be due for ever, and looked for without a pause.
    """
    last = NUMBER_MAX if is_all else there[-1]
    known = set(there)
    return [number for number in aside if number not in known and number <= last]


@guard("the last id of a stream is asked after a start, and numbers go on above it")
def _go_on_above(work: Work, target: int, last: int, new_from: int) -> None:
    """Let no row that was made since the start have a number that the stream may know."""
    ledger = work.ledger
    ledger.set_next_number(target, last + 1)
    if last < new_from:
        return
    # This ledger is older than what the stream knows: that happens after a back-up was put back.
    for row in ledger.outgoing(target, NUMBER_MAX):
        if new_from <= row.number <= last:
            ledger.renumber(target, row.number)


@guard("the number of an outgoing row is its publishing id")
def publishing_id(row: Outgoing) -> int:
    """The number under which a stream has a record once, however often it is sent."""
    return row.number


def _record(each: Arriving) -> OutgoingRecord:
    message: QueueMessage = each.message
    origin = decode_origin(each.row.origin)
    return OutgoingRecord(
        publishing_id(each.row),
        message.value,
        message.content,
        with_origin(message.headers, origin, each.row.message.msg_id),
        message.published_at,
    )


def _stop_timer(line: _Line) -> None:
    if line.timer is not None:
        line.timer.cancel()
        line.timer = None
