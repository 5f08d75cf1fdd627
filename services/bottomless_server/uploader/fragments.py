"""Make fragments of what was cut of one stream, and get them into its manifest: one session of the
manifest, whatever its chunks come from.

The way of one fragment, and what there is after a crash of this process at each step
(the uploader itself keeps nothing; coordination, the object store and the source do):

3. intents are asked    the record lists the uids: keys that may exist from now on, each on the drive
                        that the record says too
4. the object is put    it is there whole or not at all, under a key that an intent names
5. it is registered     the manifest may hold it in memory; the intent stays until its root
                        is published, so until then this step is repeated
6. it is applied        the root names it, the intent is gone, the source may be freed

The memory is shared by all streams, and drive 0 is where most of them put. So where another drive takes
nothing for a while the session ends at step 4, with its memory; its intents stay, as after a crash. The
next session begins when the manifest could look at them, and so holds nothing while the drive is away.

After a crash at 3, 4 or 5 the next session's `uploads` makes the manifest look at exactly
the keys of the intents: what fits at its end is adopted, the rest goes to quarantine and is
deleted there. Nothing is deleted here. Two uploaders at once do no harm: the later session
fences the earlier one, whose fragments then cannot be registered.

Steps 1 and 2 are those of the source: uploader.py for streams with an owner.

On the record's path: after services/bottomless_server/uploader/uploader.py, before
shared/bottomless/formats/fragment.py.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from bottomless.drives.base import Body, Drive
from bottomless.errors import Code, Corrupt, StoreError
from bottomless.formats.checks import corrupt
from bottomless.formats.keys import fragment_place
from bottomless.model.config import FilterConfig
from bottomless.model.drive import DEFAULT_NUMBER
from bottomless.model.fragment import FragmentInfo
from bottomless.model.limits import MIB
from bottomless.model.names import StreamId, Uid
from bottomless_server.drives.table import DriveTable
from bottomless_server.protocol.peer import PeersPort
from bottomless_server.protocol.tail import HeadsRun
from bottomless_server.protocol.uploads import Opened
from bottomless_server.runtime.base.end import end_tasks
from bottomless_server.runtime.base.fault_points import reach
from bottomless_server.runtime.base.task_groups import TaskGroup, task_group
from bottomless_server.stores.put_retries import put_object
from bottomless_server.uploader.budget import ByteBudget
from bottomless_server.uploader.calls import ManifestCalls
from bottomless_server.uploader.core.epochs import Piece, divide
from bottomless_server.uploader.core.window import Window
from bottomless_server.uploader.failures import OF_SESSION, Failures, Retries, put_waits
from bottomless_server.uploader.metrics import UploadCounts
from bottomless_server.uploader.packing import (
    FragmentSource,
    Packed,
    filters_of_piece,
    pack_piece,
    read_at_once,
)
from bottomless_server.uploader.settings import UploaderSettings

log = structlog.get_logger(__name__)

BYTES_ON_THE_WAY_MAX: Final = 256 * MIB
"""Bytes of all fragments that are being put: four of the usual size. An attempt that moves bytes more
slowly than a MiB a second is given up, and with too many at a time each would be."""
AWAY_SECONDS: Final = 60.0
"""How long a fragment waits in memory for another drive than drive 0, beside the time that its bytes may
take. Memory is shared by the streams of all drives."""
LOST: Final = frozenset({Code.FENCED, Code.MOVED, Code.STREAM_NOT_FOUND})
"""Answers that end a session at once: what it is doing has no use any more."""
_LEFT_TO_THE_NEXT: Final = (Code.FENCED, Code.STREAM_NOT_FOUND, Code.OBJECT_STORE_UNAVAILABLE)
"""After these a session gives up nothing: it has no say, or nobody knows what is on the drive."""


@dataclass(frozen=True)
class Parts:
    """What all streams of one uploader share."""

    settings: UploaderSettings
    drive: Drive
    """Drive 0: what is in no fragment yet, where a stream has no owner, is there and nowhere else."""
    drives: DriveTable
    """All drives on which fragments can be put; the manifest says which, as it gives uids."""
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


class FragmentUploads:
    """One session of a stream, from the cut on: the manifest knows it by a name, and by that fences it."""

    def __init__(
        self, stream_id: StreamId, failures: Failures, woken: asyncio.Event, parts: Parts
    ) -> None:
        """`woken` is set whenever something may have changed that a cut waits for."""
        self._stream_id = stream_id
        self._failures = failures
        self._woken = woken
        self._parts = parts
        self._settings = parts.settings
        self._name = secrets.token_hex(16)
        self.window = Window(
            parts.settings.uploader_uploads_in_flight_per_stream,
            parts.settings.uploader_unapplied_count_max,
        )
        self._group: TaskGroup | None = None
        self._tickets: set[int] = set()
        self._uploads: dict[int, asyncio.Task[None]] = {}
        """Tasks that put and register, by the first offsets of their fragments."""
        self._failed: StoreError | None = None
        """What ended an upload that only another session can begin anew."""
        self._tenant = ""
        """The tenant, as the manifest says when the session begins."""
        self.applied_count = 0
        self.applied_at: int | None = None

    async def begin(self) -> Opened:
        """Begin the session; or begin it again, which has what waits for others to share its root
        published.

        Raises:
            StoreError: not now, or the stream is gone.
        """
        opened = await self._parts.manifest.uploads(self._stream_id, self._name)
        self._tenant = opened.tenant
        return opened

    async def run(self, cut: Callable[[], Awaitable[None]]) -> None:
        """Let `cut` call `take` with what it cuts, and wait until all of it is applied.

        Cancelling leaves the rest to the next session.

        Raises:
            StoreError: the session is over, and another one should begin.
        """
        try:
            await self._cut_and_upload(cut)
        except StoreError as error:
            await self._abandon(error)
            raise
        finally:
            for ticket in list(self._tickets):
                self._free(ticket)

    async def _cut_and_upload(self, cut: Callable[[], Awaitable[None]]) -> None:
        try:
            async with task_group() as self._group:
                failed = await _failure_of(cut)
        except ExceptionGroup as group:
            # The first is the cause: whatever failed after it was being cancelled already.
            raise group.exceptions[0] from group
        if failed is not None:
            raise failed

    async def take(
        self,
        chunks: Sequence[bytes | memoryview | HeadsRun],
        first_offset: int,
        next_offset: int,
    ) -> None:
        """Have fragments of whole chunks on their way: one, or more where their epoch changes.

        Raises:
            Corrupt: the chunks are not one dense run between these offsets, or are damaged.
            StoreError: the manifest gives no uids, or an earlier upload has failed.
        """
        assert self._group is not None
        pieces = await asyncio.to_thread(divide, chunks, first_offset)
        if not pieces or pieces[-1].next_offset != next_offset:
            raise corrupt("chunk feed", "its headers do not say what its chunks do")
        uids, filter_, drive = await self._parts.manifest.intents(
            self._stream_id,
            self._name,
            [piece.first_offset for piece in pieces],
            self._parts.drives.numbers[1:],
        )
        await reach("uploader.put.after-intent")
        for uid in uids:
            self.window.started(uid)
        packed = [
            await self._pack(uid, piece, filter_) for uid, piece in zip(uids, pieces, strict=True)
        ]
        # Else what was cut while an upload failed would wait for ever to be applied after it.
        self.check_failed()
        for fragment in packed:
            ticket = self._parts.budget.add(fragment.held_size)
            self._tickets.add(ticket)
            task = self._group.create_task(self._upload(fragment, ticket, drive))
            self._uploads[fragment.info.first_offset] = task

    async def _pack(self, uid: Uid, piece: Piece, filter_: FilterConfig) -> Packed:
        # What is in no memory is read one chunk after the other to look for values.
        ticket = self._parts.budget.add(read_at_once(piece, filter_))
        self._tickets.add(ticket)
        try:
            tables = await filters_of_piece(piece, filter_)
        finally:
            self._free(ticket)
        # Every byte is summed here: long enough for all other streams to wait, if not in a thread.
        return await asyncio.to_thread(pack_piece, self._stream_id, uid, piece, tables)

    async def _upload(self, fragment: Packed, ticket: int, drive: int) -> None:
        info = fragment.info._replace(drive=drive)
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
        self.window.uploaded(info.uid)
        self._woken.set()
        await self._register(info)
        await reach("uploader.put.after-register")
        self.window.applied(info.uid)
        del self._uploads[info.first_offset]
        self.applied_count += 1
        self.applied_at = self._parts.clock_ms()
        self._parts.counts.note(info.size)
        self._failures.clear(OF_SESSION)
        self._woken.set()

    async def _put(self, info: FragmentInfo, body: Body) -> StoreError | None:
        """Put a fragment; what is returned ends the session, since the source is gone or damaged, or
        another drive than drive 0 takes nothing.

        Raises:
            Corrupt: its chunks were right before; something else is wrong with the object.
        """
        place = fragment_place(self._stream_id, info, self._tenant)
        source = body if isinstance(body, FragmentSource) else None
        elsewhere = place.drive != DEFAULT_NUMBER
        deadline_seconds = self._settings.uploader_upload_deadline_seconds
        if elsewhere:
            deadline_seconds = min(deadline_seconds, AWAY_SECONDS + info.size / MIB)

        async def put() -> StoreError | None:
            try:
                await put_object(
                    self._parts.drives.of(place.drive),
                    place.object_key,
                    body,
                    info.crc,
                    deadline_seconds=deadline_seconds,
                    waits=put_waits(self._settings),
                    # For an attempt, and not for the pauses: what cannot be put keeps nobody else.
                    room=lambda: self._parts.way.holding(info.size),
                )
            except StoreError as error:
                if source is not None and source.gone is not None:
                    return source.gone
                if isinstance(error, Corrupt):
                    if source is None:
                        raise
                    return error
                if elsewhere:
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

    async def room(self) -> None:
        """Wait until one more cut may be made.

        Raises:
            StoreError: what only another session can begin anew.
        """
        while not self.window.has_room:
            await self._woken.wait()
            self._woken.clear()
            self.check_failed()

    def check_failed(self) -> None:
        """Raise what only another session can begin anew.

        Raises:
            StoreError: it.
        """
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
        uids = sorted(self.window.uploading)
        if not uids or error.code in _LEFT_TO_THE_NEXT:
            return
        try:
            await self._parts.manifest.abandon(self._stream_id, self._name, uids)
        except StoreError as failed:
            log.warning("could not give up intents", stream_id=self._stream_id, error=str(failed))

    def _free(self, ticket: int) -> None:
        self._tickets.discard(ticket)
        self._parts.budget.free(ticket)


async def _failure_of(cut: Callable[[], Awaitable[None]]) -> StoreError | None:
    """What ended the cutting, where what was cut before is good all the same: it is waited for.

    Raises:
        StoreError: what was cut has no use any more.
    """
    try:
        await cut()
    except StoreError as error:
        if error.code in LOST:
            raise
        return error
    return None
