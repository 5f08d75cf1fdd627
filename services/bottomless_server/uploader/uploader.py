"""Carry one stream's committed chunks into object storage: one session, from its start to its end.

The way of one fragment, and what there is after a crash of this process at each step
(the uploader itself keeps nothing; coordination, the object store and the log do):

1. a cut is decided     nothing but a thought; the log still holds everything
2. chunks are fetched   the same; they are a copy. Of those in a file of this machine only the
                        headers are: their bytes are read when the object is put
3. intents are asked    the record lists the uids: keys that may exist from now on
4. the object is put    it is there whole or not at all, under a key that an intent names
5. it is registered     the manifest may hold it in memory; the intent stays until its root
                        is published, so until then this step is repeated
6. it is applied        the root names it, the intent is gone, the log may be freed

After a crash at 3, 4 or 5 the next session's `uploads` makes the manifest look at exactly
the keys of the intents: what fits at its end is adopted, the rest goes to quarantine and is
deleted there. Nothing is deleted here. Two uploaders at once do no harm: the later session
fences the earlier one, whose fragments then cannot be registered.

On the record's path: after services/bottomless_server/uploader/core/cutter.py, before
shared/bottomless/formats/fragment.py.
"""

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import structlog

from bottomless.drives.base import Body, Drive
from bottomless.errors import Code, Corrupt, StoreError, Unavailable
from bottomless.formats.checks import corrupt
from bottomless.formats.keys import fragment_key
from bottomless.model.fragment import FragmentInfo
from bottomless.model.limits import MIB
from bottomless.model.names import StreamId, Uid
from bottomless_server.protocol.peer import PeersPort
from bottomless_server.protocol.tail import HEAD_SIZE, ChunkRun, HeadsRun
from bottomless_server.runtime.base.end import end_tasks
from bottomless_server.runtime.base.fault_points import reach
from bottomless_server.stores.put_retries import put_object
from bottomless_server.uploader.budget import ByteBudget
from bottomless_server.uploader.calls import IngestCalls, ManifestCalls
from bottomless_server.uploader.core.cutter import ChunksFetched, Cut, Cutter, Fetch, Measure, Wait
from bottomless_server.uploader.core.epochs import Piece, divide
from bottomless_server.uploader.core.owner_seen import OwnerSeen
from bottomless_server.uploader.core.window import Expected, Window
from bottomless_server.uploader.failures import OF_SESSION, Failures, Retries, put_waits
from bottomless_server.uploader.metrics import UploadCounts
from bottomless_server.uploader.packing import READ_SIZE, FragmentSource, Packed, pack_piece
from bottomless_server.uploader.settings import UploaderSettings

log = structlog.get_logger(__name__)

BYTES_ON_THE_WAY_MAX: Final = 256 * MIB
"""Bytes of all fragments that are being put: four of the usual size. An attempt that moves bytes more
slowly than a MiB a second is given up, and with too many at a time each would be."""
LOST: Final = frozenset({Code.FENCED, Code.MOVED, Code.STREAM_NOT_FOUND})
"""Answers that end a session at once: what it is doing has no use any more."""
ROOT_HURRY_SECONDS: Final = 0.3
"""How long a drain leaves it to manifest when the root comes: most roots are there by then."""


@dataclass(frozen=True)
class Parts:
    """What all streams of one uploader share."""

    settings: UploaderSettings
    drive: Drive
    ingest: PeersPort
    manifest: ManifestCalls
    budget: ByteBudget
    retries: Retries
    clock_ms: Callable[[], int]
    """Monotonic: ages are this process's own."""
    counts: UploadCounts = field(default_factory=UploadCounts)
    way: ByteBudget = field(default_factory=lambda: ByteBudget(BYTES_ON_THE_WAY_MAX))
    """The way to the object store, which all puts share. Memory does not bound how many do, since
    what is read while it is put takes little."""


class Session:
    """One run over one stream: the manifest knows it by a name, and by that fences it."""

    def __init__(
        self,
        stream_id: StreamId,
        cutter: Cutter,
        owner: OwnerSeen[IngestCalls],
        failures: Failures,
        woken: asyncio.Event,
        parts: Parts,
    ) -> None:
        self._stream_id = stream_id
        self._cutter = cutter
        self._owner = owner
        self._failures = failures
        self._woken = woken
        self._parts = parts
        self._settings = parts.settings
        self._name = secrets.token_hex(16)
        self._window = Window(
            parts.settings.uploader_uploads_in_flight_per_stream,
            parts.settings.uploader_unapplied_count_max,
        )
        self._gathered: list[bytes | memoryview | HeadsRun] = []
        self._gathered_ticket: int | None = None
        self._gathered_asked: int | None = None
        """What was asked for where most of it is not in memory; None where its bytes come."""
        self._expected = Expected(READ_SIZE)
        self._tickets: set[int] = set()
        self._uploads: dict[int, asyncio.Task[None]] = {}
        """By their first offset."""
        self._failed: StoreError | None = None
        """What ended an upload that only another session can begin anew."""
        self._tenant = ""
        """The tenant, as the manifest says when the session begins."""
        self.draining = False
        self.applied_count = 0
        self.applied_at: int | None = None

    @property
    def empty(self) -> bool:
        """Whether nothing that was cut is under way."""
        return self._window.empty

    async def run(self) -> None:
        """Upload until the stream is idle, or drained; cancelling leaves the rest to the next
        session.

        Raises:
            StoreError: the session is over, and another one should begin.
        """
        opened = await self._parts.manifest.uploads(self._stream_id, self._name)
        self._tenant = opened.tenant
        self._owner.note(opened.epoch)
        self._cutter.restart(opened.published_next)
        try:
            await self._cut_and_upload()
        except StoreError as error:
            await self._abandon(error)
            raise
        finally:
            for ticket in list(self._tickets):
                self._free(ticket)

    async def _cut_and_upload(self) -> None:
        try:
            async with asyncio.TaskGroup() as uploads:
                failed = await self._cut_while_possible(uploads)
        except ExceptionGroup as group:
            # The first is the cause: whatever failed after it was being cancelled already.
            raise group.exceptions[0] from group
        if failed is not None:
            raise failed

    async def _cut_while_possible(self, uploads: asyncio.TaskGroup) -> StoreError | None:
        try:
            await self._cut_until_idle(uploads)
        except StoreError as error:
            self._drop_gathered()
            if error.code in LOST:
                raise
            # What was cut before this is good: the caller waits until it is applied.
            return error
        return None

    async def _cut_until_idle(self, uploads: asyncio.TaskGroup) -> None:
        while True:
            self._check_failed()
            match self._cutter.decide(self._parts.clock_ms()):
                case Measure(first_offset):
                    self._cutter.measured(fetched_of(await self._fetch(first_offset, 1)))
                case Fetch() as fetch:
                    await self._gather(fetch)
                case Cut() as cut:
                    await self._cut(cut, uploads)
                case Wait(until):
                    if not await self._wait(until):
                        return

    async def _wait(self, until: int | None) -> bool:
        """Wait for an event or the time; returns whether there may be more to do."""
        idle = until is None and self._window.empty
        if idle and self.draining:
            return False
        if until is None and self._cutter.hurried and self._window.registering:
            return await self._hurry_root()
        seconds = None
        if until is not None:
            seconds = max(0, until - self._parts.clock_ms()) / 1000
        elif idle:
            seconds = self._settings.uploader_idle_seconds
        return await self._wake(seconds) or not idle

    async def _hurry_root(self) -> bool:
        """Have what waits for others to share its root published now, since no others come.

        A session that begins again changes nothing but that. All is uploaded, and what is not
        registered yet by then is published after the next wait.
        """
        if not await self._wake(ROOT_HURRY_SECONDS):
            await self._parts.manifest.uploads(self._stream_id, self._name)
        return True

    async def _wake(self, seconds: float | None = None) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            return False
        self._woken.clear()
        return True

    async def _gather(self, fetch: Fetch) -> None:
        while not self._window.has_room:
            await self._wake()
            self._check_failed()
        if self._gathered_ticket is None:
            reads_files = self._owner.source.reads_files(self._stream_id)
            asked = self._expected.size(fetch.max_bytes) if reads_files else None
            self._gathered_asked = asked
            size = fetch.max_bytes if asked is None else asked
            self._gathered_ticket = await self._parts.budget.take(size)
            self._tickets.add(self._gathered_ticket)
        run = await self._fetch(fetch.first_offset, fetch.max_bytes)
        fetched = fetched_of(run)
        if fetched.size:
            self._gathered.append(run if isinstance(run, HeadsRun) else run.data)
            if not self._holds(self._gathered_ticket):
                self._expected.took_more(*self._gathered_sizes())
                self._drop_gathered()
                self._cutter.gathered_dropped()
                return
        self._cutter.chunks_fetched(fetched)

    def _holds(self, ticket: int) -> bool:
        """Whether there is room for all that is gathered. If not it is to be dropped, and asked for
        anew: who waits for more while it holds something may wait for who does the same."""
        held, _ = self._gathered_sizes()
        if self._gathered_asked is None:
            # Only the last chunk can be more than was asked for.
            self._parts.budget.charge(ticket, held)
            return True
        return self._parts.budget.grow(ticket, held)

    def _gathered_sizes(self) -> tuple[int, int]:
        """Bytes that it takes in memory, and that it is in the log."""
        held = sum(map(held_size, self._gathered))
        return held, sum(
            run.size if isinstance(run, HeadsRun) else len(run) for run in self._gathered
        )

    async def _fetch(self, first_offset: int, max_bytes: int) -> ChunkRun | HeadsRun:
        run = await self._owner.source.chunks(self._stream_id, first_offset, max_bytes)
        told = run.run if isinstance(run, HeadsRun) else run
        if not self._owner.takes(told.bounds.epoch):
            raise Unavailable("the tail is shown by an owner of the past", code=Code.NOT_OWNER)
        there = fetched_of(run).size
        if there and told.first_offset != first_offset:
            raise corrupt("chunk feed", "no chunk begins where the last fragment ends")
        if not there and not self._gathered:
            raise Unavailable("the owner does not show what it said is committed")
        return run

    async def _cut(self, cut: Cut, uploads: asyncio.TaskGroup) -> None:
        pieces = await asyncio.to_thread(divide, self._gathered, cut.first_offset)
        if not pieces or pieces[-1].next_offset != cut.next_offset:
            raise corrupt("chunk feed", "its headers do not say what its chunks do")
        uids = await self._parts.manifest.intents(
            self._stream_id, self._name, [piece.first_offset for piece in pieces]
        )
        for uid in uids:
            self._window.started(uid)
        packed = [await self._pack(uid, piece) for uid, piece in zip(uids, pieces, strict=True)]
        # Else what was cut while an upload failed would wait for ever to be applied after it.
        self._check_failed()
        self._cutter.cut_taken()
        for fragment in packed:
            ticket = self._parts.budget.add(fragment.held_size)
            self._tickets.add(ticket)
            task = uploads.create_task(self._upload(fragment, ticket))
            self._uploads[fragment.info.first_offset] = task
        self._expected.took(*self._gathered_sizes())
        self._drop_gathered()

    async def _pack(self, uid: Uid, piece: Piece) -> Packed:
        # Every byte is summed here: long enough for all other streams to wait, if not in a thread.
        return await asyncio.to_thread(pack_piece, self._stream_id, uid, piece)

    async def _upload(self, fragment: Packed, ticket: int) -> None:
        info = fragment.info
        try:
            error = await self._put(info, fragment.body)
        finally:
            # The memory goes now; registering may take long. That of one that failed goes too: its
            # own session may be waiting for memory, and would not hear that it failed.
            del fragment
            self._free(ticket)
        if error is not None:
            await self._give_up_from(info.first_offset, error)
            return
        await reach("uploader.put.after-object")
        self._window.uploaded(info.uid)
        self._woken.set()
        await self._register(info)
        self._window.applied(info.uid)
        del self._uploads[info.first_offset]
        self.applied_count += 1
        self.applied_at = self._parts.clock_ms()
        self._parts.counts.fragments += 1
        self._parts.counts.bytes += info.size
        self._failures.clear(OF_SESSION)
        self._woken.set()

    async def _put(self, info: FragmentInfo, body: Body) -> StoreError | None:
        """Put a fragment; what is returned ends the session, since the source is gone or damaged.

        Raises:
            Corrupt: its chunks were right before; something else is wrong with the object.
        """
        object_key = fragment_key(self._stream_id, info.first_offset, info.uid, self._tenant)
        source = body if isinstance(body, FragmentSource) else None

        async def put() -> StoreError | None:
            try:
                await put_object(
                    self._parts.drive,
                    object_key,
                    body,
                    info.crc,
                    deadline_seconds=self._settings.uploader_upload_deadline_seconds,
                    waits=put_waits(self._settings),
                    # For an attempt, and not for the pauses: what cannot be put keeps nobody else.
                    room=lambda: self._parts.way.holding(info.size),
                )
            except StoreError as error:
                if source is not None and source.gone is not None:
                    return source.gone
                if source is not None and isinstance(error, Corrupt):
                    return error
                raise
            return None

        # Under the same uid for as long as it takes: if an attempt whose reply was lost
        # did put the object, the next one finds it. Only damage gives a uid up.
        return await self._parts.retries.forever(
            self._failures, f"put {info.fragment_id}", put, frozenset({Code.DATA_CORRUPT})
        )

    async def _give_up_from(self, first_offset: int, error: StoreError) -> None:
        """Let the session end with an error when what was cut before this has been applied; what was
        cut after it never would be."""
        if self._failed is None:
            self._failed = error
        self._woken.set()
        # One that has ended was applied, and is not there any more, or has failed too.
        later = [task for offset, task in self._uploads.items() if offset > first_offset]
        await end_tasks(*later)

    def _check_failed(self) -> None:
        if self._failed is not None:
            raise self._failed

    async def _register(self, info: FragmentInfo) -> None:
        while True:
            answer = await self._parts.retries.forever(
                self._failures,
                f"register {info.fragment_id}",
                lambda: self._parts.manifest.register(self._stream_id, self._name, [info]),
                LOST,
            )
            if info.uid in answer.applied or answer.published_next >= info.next_offset:
                return
            # It waits there for an earlier one. The manifest keeps that in memory only,
            # so it is told again until it has published.
            await asyncio.sleep(self._settings.uploader_retry_initial_seconds)

    async def _abandon(self, error: StoreError) -> None:
        # A fenced session has no say; and if this fails, the next session's start does the same.
        uids = sorted(self._window.uploading)
        if not uids or error.code in (Code.FENCED, Code.STREAM_NOT_FOUND):
            return
        try:
            await self._parts.manifest.abandon(self._stream_id, self._name, uids)
        except StoreError as failed:
            log.warning("could not give up intents", stream_id=self._stream_id, error=str(failed))

    def _drop_gathered(self) -> None:
        self._gathered = []
        if self._gathered_ticket is not None:
            self._free(self._gathered_ticket)
            self._gathered_ticket = None

    def _free(self, ticket: int) -> None:
        self._tickets.discard(ticket)
        self._parts.budget.free(ticket)


def fetched_of(found: ChunkRun | HeadsRun) -> ChunksFetched:
    """What a run brought, wherever its bytes are."""
    run, size = (found.run, found.size) if isinstance(found, HeadsRun) else (found, len(found.data))
    return ChunksFetched(run.first_offset, run.next_offset, size, run.log_end)


def held_size(run: bytes | memoryview | HeadsRun) -> int:
    """Bytes that a run takes in memory until it is cut, about."""
    return HEAD_SIZE * len(run.heads) if isinstance(run, HeadsRun) else len(run)
