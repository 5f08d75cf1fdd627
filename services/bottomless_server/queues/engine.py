"""The engine of queues in one process: a directory with a ledger and message files, and all that is done there.

    DIR/ledger.db  ledger.db-wal    the truth about queues, items and places
        registry/{queue_id}.json    what a rebuild of a lost ledger needs of each queue
        messages/{n}.sqs            bodies
        aside/                      for an operator

One process has a directory open; whoever opens it holds its lock. All methods are for one event loop.
A method that changes something returns when that is durable. What it raises says with its `outcome`
whether something is stored all the same; `Overloaded` and `Unavailable` say when to come again.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final

from bottomless.errors import Code, InvalidRequest, Overloaded
from bottomless.model.queue import QueueConfig
from bottomless_server.node.file_calls import FileCalls, RealFileCalls
from bottomless_server.queues.calls import (
    Created,
    PeekAnswer,
    PublishAnswer,
    PublishRequest,
    QueueDescription,
    QueuePage,
    ReceivedMessage,
    RedriveAnswer,
    Settlement,
    StateFilter,
    StorageFigures,
)
from bottomless_server.queues.changes import settle
from bottomless_server.queues.changes.publish import Publish
from bottomless_server.queues.changes.queues import (
    CreateQueue,
    DeleteQueue,
    PurgeDamaged,
    PurgeQueue,
    UpdateQueue,
    changed_meanwhile,
)
from bottomless_server.queues.changes.receive import Receive
from bottomless_server.queues.changes.upkeep import Upkeep
from bottomless_server.queues.core.message_ids import RANDOM_SIZE, first_id
from bottomless_server.queues.directory.housekeeping import Housekeeping, Place
from bottomless_server.queues.directory.opening import (
    LEDGER,
    MESSAGES,
    REGISTRY,
    make_directories,
    open_directory,
)
from bottomless_server.queues.directory.registry import FileRegistry
from bottomless_server.queues.figures import Figures, Gauges
from bottomless_server.queues.outgoing.outgoing import Found, OutgoingLines, find
from bottomless_server.queues.outgoing.redriving import redrive
from bottomless_server.queues.ports import OutgoingStreams
from bottomless_server.queues.reading import looks
from bottomless_server.queues.reading.known_queues import KnownQueues
from bottomless_server.queues.reading.reading import Reading
from bottomless_server.queues.reading.receiving import AnswerRoom, Receiving
from bottomless_server.queues.rounds.round_files import RoundFiles
from bottomless_server.queues.rounds.round_writer import Bounds, RoundWriter
from bottomless_server.queues.rounds.rounds import Limits, Rounds
from bottomless_server.queues.rounds.work import Ended
from bottomless_server.queues.settings import EngineSettings
from bottomless_server.queues.store.bodies import Bodies
from bottomless_server.queues.store.descriptors import Descriptors
from bottomless_server.queues.store.pins import Pins
from bottomless_server.queues.store.start import StartReport

_DAMAGED_AT_ONCE: Final = 5_000
_TIDY_SECONDS_MAX: Final = 10.0
"""Time that what was begun with a message file has to end in order."""


class QueueEngine:
    """All queues of one node. `open` makes one; `close` ends it."""

    def __init__(
        self,
        directory: Path,
        settings: EngineSettings,
        clock: Callable[[], int],
        files: FileCalls,
        streams: OutgoingStreams | None,
    ) -> None:
        """Prepare one; `open` is what makes it work."""
        self._directory = directory
        self._settings = settings
        self._clock = clock
        self._files = files
        self._pins = Pins()
        self._round_files = RoundFiles(files, directory / MESSAGES, self._pins)
        self._descriptors = Descriptors(files, settings.open_file_count_max)
        self._threads = ThreadPoolExecutor(settings.read_thread_count, "queue-reads")
        self._rounds = Rounds(
            self._open_writer,
            clock,
            Upkeep(settings.sweep_count),
            Limits(
                settings.waiting_bytes_max,
                settings.round_bytes_max,
                settings.round_change_count_max,
                settings.waiting_receive_count_max,
            ),
            self._heard,
        )
        bodies = Bodies(files, directory / MESSAGES, self._descriptors)
        self._reading = Reading(bodies, self._threads)
        self._receiving = Receiving(self._rounds, self._reading)
        self._outgoing = OutgoingLines(self._rounds, self._reading, streams, settings)
        place = Place(
            files,
            directory / MESSAGES,
            self._descriptors,
            self._pins,
            self._round_files.free_bytes,
        )
        self._housekeeping = Housekeeping(self._rounds, place, self._threads, settings)
        self._known = KnownQueues(self._rounds)
        self._figures = Figures()
        self._found: Found | None = None
        self._report: StartReport | None = None
        self._time_at_start = 0
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        directory: Path,
        settings: EngineSettings,
        clock: Callable[[], int],
        *,
        files: FileCalls | None = None,
        streams: OutgoingStreams | None = None,
    ) -> "QueueEngine":
        """Open a directory, make its files and its ledger agree, and begin.

        `clock` gives the wall clock in ms since 1970 as far as it is believed, or raises what is
        then answered (`clock-skew`). Without `streams` what is on its way to streams waits.

        Raises:
            CannotStart: an operator has to look first; nothing was changed.
            LedgerFailed, OSError: the disk does not work.
        """
        engine = cls(directory, settings, clock, files or RealFileCalls(), streams)
        try:
            await engine._rounds.start()
        except BaseException:
            await engine.close()
            raise
        assert engine._found is not None
        engine._outgoing.start(engine._found)
        engine._housekeeping.start()
        return engine

    def _open_writer(self) -> RoundWriter:
        """Open the ledger; in the writer's thread."""
        make_directories(self._files, self._directory)
        opened = open_directory(
            self._files,
            self._directory,
            self._settings.ledger_cache_bytes,
            v1_files=self._settings.v1_files,
            checksum=self._settings.checksum,
        )
        self._report = opened.report
        self._found = find(opened.ledger)
        self._time_at_start = opened.ledger.store().clock
        settings = self._settings
        return RoundWriter(
            opened.ledger,
            self._round_files,
            FileRegistry(self._files, self._directory / REGISTRY),
            self._clock,
            Bounds(settings.file_bytes_max, settings.free_bytes_min, settings.wal_bytes_max),
        )

    async def close(self) -> None:
        """Answer everybody, waiting receives with nothing, and leave the directory in order.

        What is asked from now on hears `draining`. May be called again.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self.stop_waiting()
        await self._outgoing.stop()
        tidied = asyncio.create_task(self._housekeeping.stop())
        # Where the disk does not answer any more it would wait for a round that never ends.
        await asyncio.wait([tidied], timeout=_TIDY_SECONDS_MAX)
        try:
            await self._rounds.stop()
        finally:
            await tidied
            self._threads.shutdown(wait=False)
            self._descriptors.close()

    def stop_waiting(self) -> None:
        """Answer all waiting receives with nothing, and let none wait from now on."""
        self._rounds.stop_waiting()

    @property
    def start_report(self) -> StartReport:
        """What the start has found and done."""
        assert self._report is not None, "it was not opened"
        return self._report

    @property
    def time_at_start(self) -> int:
        """The last time that the ledger knew before this start, in ms since 1970: none after it is before."""
        return self._time_at_start

    def _heard(self, ended: Ended, seconds: float) -> None:
        self._figures.hear(ended, seconds)
        self._housekeeping.wake()
        if ended.sent_out:
            self._outgoing.wake(ended.sent_out)

    # Queues

    async def create_queue(self, tenant: str, name: str, config: QueueConfig) -> Created:
        """Make a queue; one that is there with the same configuration is the answer.

        Raises:
            Exists: `queue-exists`, with the fact `differences`.
            InvalidRequest: `validation-failed`: dead letters would come back to it.
            Overloaded: `quota-exceeded`.
        """
        queue_id = first_id(self._clock(), os.urandom(RANDOM_SIZE))
        row, created = await self._rounds.do(CreateQueue(queue_id, tenant, name, config))
        self._known.put(tenant, name, row.queue_id)
        if created:
            self._outgoing.wake_queue(tenant, name)
        return Created(await self.describe_queue(tenant, name), created)

    async def describe_queue(self, tenant: str, name: str) -> QueueDescription:
        """What a queue is and has.

        Raises:
            NotFound: `queue-not-found`, as of every method below that names a queue.
        """
        return await self._rounds.look(
            lambda look: looks.described(look, tenant, name, self._outgoing.waiting_for)
        )

    async def list_queues(
        self, tenant: str, *, prefix: str = "", after: str = "", limit: int = 100
    ) -> QueuePage:
        """Queues of a tenant by their names, those that sort after `after`."""
        return await self._rounds.look(
            lambda look: looks.listed(
                look, tenant, prefix, after, limit, self._outgoing.waiting_for
            )
        )

    async def update_queue(
        self, tenant: str, name: str, patch: object, *, queue_id: bytes, version: int
    ) -> QueueDescription:
        """Apply a merge patch to the configuration, if the queue is still that of `queue_id` and
        the configuration still that of `version`.

        Raises:
            WrongOffset: `etag-mismatch`.
            InvalidRequest: `validation-failed`.
        """
        if await self._known.id_of(tenant, name) != queue_id:
            raise changed_meanwhile()
        await self._rounds.do(UpdateQueue(queue_id, patch, version))
        return await self.describe_queue(tenant, name)

    async def delete_queue(self, tenant: str, name: str, *, if_empty: bool = False) -> None:
        """Delete a queue with all that is in it; its name is free at once.

        Raises:
            WrongOffset: `queue-not-empty`, or `queue-in-use`, with the facts `queue` and `count`:
                dead letters of others go there.
        """
        try:
            await self._rounds.do(DeleteQueue(tenant, name, if_empty))
        finally:
            # Also where nobody knows what became of it: the next one asks the ledger.
            self._known.forget(tenant, name)

    # Messages

    async def publish(self, request: PublishRequest) -> PublishAnswer:
        """Store messages in queues: all in all of them, or none.

        Raises:
            NotFound: `queue-not-found`, with the fact `queue`.
            InvalidRequest: `idempotency-mismatch`: the key or a `dedup_id` was used for something else.
            Overloaded: `queue-full`, with the fact `queue`; `disk-bound`; `quota-exceeded`: a queue
                remembers as many repeats as it can; `overloaded`.
            Unavailable: `storage-full`, `storage-failed`, `clock-skew`, `draining`.
        """
        settings = self._settings
        if self._housekeeping.disk_bytes >= settings.disk_bytes_max:
            raise Overloaded(
                "message files have as many bytes as they may have",
                code=Code.DISK_BOUND,
                retry_after_seconds=5,
            )
        change = Publish(
            request, os.urandom(RANDOM_SIZE), settings.checksum, settings.dedup_count_max
        )
        answer: PublishAnswer = await self._rounds.do(change)
        return answer

    async def receive(
        self,
        tenant: str,
        name: str,
        *,
        limit: int = 10,
        bytes_max: int = 4 * 2**20,
        visibility_ms: int | None = None,
        wait_ms: int = 0,
        allowed: Callable[[], bool] | None = None,
        room: AnswerRoom | None = None,
    ) -> Sequence[ReceivedMessage]:
        """Take up to `limit` messages of at most `bytes_max` bytes of records together, but one at
        least if one is ready; wait for some for up to `wait_ms`.

        `allowed` is asked once more after messages were found: where it says no they are given
        back and nothing is returned. A caller that is cancelled takes nothing. `room` is held for
        what is found, before it is read; the caller gives it back.

        Raises:
            Overloaded: too many wait for messages of this queue, or there was no room for them in
                memory; nothing is taken.
        """
        # Before the queue is known: another one of its name is waited at for what is left.
        deadline = asyncio.get_running_loop().time() + wait_ms / 1000
        return await self._known.with_id(
            tenant,
            name,
            lambda queue_id: self._receiving.receive(
                Receive(queue_id, limit, bytes_max, visibility_ms), deadline, allowed, room
            ),
        )

    def give_back(self, tenant: str, name: str, receipts: Sequence[str]) -> None:
        """Let others have at once what was received and could not be sent to whoever asked."""
        self._receiving.give_back(tenant, name, receipts)

    async def ack(self, tenant: str, name: str, receipts: Sequence[str]) -> Settlement:
        """Their consumer is done with these messages: they are gone, or on their way to the archive."""
        return await self._settle(tenant, name, lambda queue_id: settle.ack(queue_id, receipts))

    async def nack(
        self,
        tenant: str,
        name: str,
        receipts: Sequence[str],
        *,
        delay_ms: int = 0,
        dead_letter: bool = False,
    ) -> Settlement:
        """Their consumer gives these messages back, or rejects them as dead letters."""
        return await self._settle(
            tenant,
            name,
            lambda queue_id: settle.nack(
                queue_id, receipts, delay_ms=delay_ms, dead_letter=dead_letter
            ),
        )

    async def extend(
        self, tenant: str, name: str, receipts: Sequence[str], visibility_ms: int | None = None
    ) -> Settlement:
        """Their consumer wants these messages for longer, from now on."""
        return await self._settle(
            tenant, name, lambda queue_id: settle.extend(queue_id, receipts, visibility_ms)
        )

    async def _settle(
        self, tenant: str, name: str, change: Callable[[bytes], settle.Settle]
    ) -> Settlement:
        settled: settle.Settled = await self._known.with_id(
            tenant, name, lambda queue_id: self._rounds.do(change(queue_id))
        )
        return Settlement(*settled)

    async def peek(
        self,
        tenant: str,
        name: str,
        *,
        after: int | None = None,
        limit: int = 10,
        state: StateFilter | None = None,
        bytes_max: int = 4 * 2**20,
        room: AnswerRoom | None = None,
    ) -> PeekAnswer:
        """Look at messages in order of their sequences, of those after `after`. `room` is held for
        them before they are read; the caller gives it back.

        Raises:
            Overloaded: there was no room for them in memory.
        """
        wanted = looks.Wanted(tenant, name, after, limit, state, bytes_max)
        if room is not None:
            # Who finds others before it waits for its turn before it looks.
            await room.take(0)
        seen = await self._rounds.look(lambda look: looks.peeked(look, wanted))
        try:
            if room is not None:
                await room.take(sum(each.message.size for each in seen.stored))
            messages = await self._reading.read([each.message for each in seen.stored])
        finally:
            seen.release()
        return looks.shown(seen, messages)

    async def purge(self, tenant: str, name: str, *, damaged: bool = False) -> int:
        """Remove everything, in flight too, or what is damaged alone; returns how many."""
        if not damaged:
            count: int = await self._known.with_id(
                tenant, name, lambda queue_id: self._rounds.do(PurgeQueue(queue_id))
            )
            return count
        purged = 0
        while True:
            some: int = await self._known.with_id(
                tenant,
                name,
                lambda queue_id: self._rounds.do(PurgeDamaged(queue_id, _DAMAGED_AT_ONCE)),
            )
            purged += some
            if some < _DAMAGED_AT_ONCE:
                return purged

    async def redrive(
        self, tenant: str, name: str, *, limit: int = 1_000, to: str | None = None
    ) -> RedriveAnswer:
        """Publish ready messages anew, the oldest first, where each was before it came here as a
        dead letter, or in the queue `to`; they are gone from here.

        Raises:
            NotFound: `queue-not-found`, with the fact `queue`: where the first one would go there
                is no queue.
            InvalidRequest: `bad-parameter`: they are in the queue `to` already.
        """
        if to == name:
            raise InvalidRequest("messages cannot be redriven to the queue that they are in")
        return await self._known.with_id(
            tenant,
            name,
            lambda queue_id: redrive(
                self._rounds,
                self._reading,
                queue_id,
                limit=limit,
                to=to,
                checksum=self._settings.checksum,
            ),
        )

    # Operators

    async def storage(self) -> StorageFigures:
        """What lies on the disk."""
        housekeeping = self._housekeeping
        waiting_for = self._outgoing.waiting_for
        stored = await self._rounds.look(lambda look: looks.storage(look, waiting_for))
        ledger = self._directory / LEDGER
        return replace(
            stored,
            ledger_bytes=ledger.stat().st_size,
            pins=self._pins.count,
            compactions={ended.value: count for ended, count in housekeeping.ended.items()},
            moved_bytes=housekeeping.moved_bytes,
        )

    async def compact(self) -> int:
        """Have all sealed files with a gap compacted soon, without a pause; returns how many."""
        return await self._housekeeping.ask()

    async def tend(self) -> bool:
        """Remove and compact message files that are due, now; returns whether there were any.

        The engine does it by itself; this is for tests and for whoever cannot wait.
        """
        return await self._housekeeping.tend()

    async def upkeep(self) -> None:
        """Do all that is due by now; the engine does it by itself when it is."""
        while await self._rounds.do(Upkeep(self._settings.sweep_count)):
            pass

    async def check(self) -> list[str]:
        """Everything that rows of the ledger say of each other and that is not so; it looks at all of
        them.
        """
        return await self._rounds.look(lambda look: look.ledger.check())

    def figures(self) -> Figures:
        """What happened since the start, without names of queues."""
        figures = self._figures
        figures.damaged_reads = self._reading.damaged_count
        figures.outgoing_sent = self._outgoing.sent_count
        figures.outgoing_aside = self._outgoing.aside_count
        figures.outgoing_waiting = len(self._outgoing.waiting_for)
        figures.waiting_receives = self._rounds.waiting_receives
        figures.moved_bytes = self._housekeeping.moved_bytes
        figures.compactions = {
            ended.value: count for ended, count in self._housekeeping.ended.items()
        }
        figures.disk_bytes = self._housekeeping.disk_bytes
        return figures

    async def gauges(self) -> Gauges:
        """What is there now, of all queues together; it looks at each queue."""
        found = await self._rounds.look(looks.gauges)
        return found._replace(ledger_bytes=(self._directory / LEDGER).stat().st_size)
