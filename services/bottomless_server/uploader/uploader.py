"""Cut one stream's committed chunks into fragments: one session, from its start to its end.

The way of one fragment begins here, and there is nothing to lose after a crash of this process:

1. a cut is decided     nothing but a thought; the log still holds everything
2. chunks are fetched   the same; they are a copy. Of those in a file of this machine only the
                        headers are: their bytes are read when the object is put

What follows, from the intents on, is in fragments.py.

On the record's path: after services/bottomless_server/uploader/core/cutter.py, before
services/bottomless_server/uploader/fragments.py.
"""

import asyncio
from typing import Final

from bottomless.errors import Code, Unavailable
from bottomless.formats.checks import corrupt
from bottomless.model.names import StreamId
from bottomless_server.protocol.tail import HEAD_SIZE, ChunkRun, HeadsRun
from bottomless_server.uploader.calls import IngestCalls
from bottomless_server.uploader.core.cutter import ChunksFetched, Cut, Cutter, Fetch, Measure, Wait
from bottomless_server.uploader.core.owner_seen import OwnerSeen
from bottomless_server.uploader.core.window import Expected
from bottomless_server.uploader.failures import Failures
from bottomless_server.uploader.fragments import FragmentUploads, Parts
from bottomless_server.uploader.packing import READ_SIZE

ROOT_HURRY_SECONDS: Final = 0.3
"""How long a drain leaves it to manifest when the root comes: most roots are there by then."""


class Session:
    """One run over one stream: what is cut, and when."""

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
        self._woken = woken
        self._parts = parts
        self._fragments = FragmentUploads(stream_id, failures, woken, parts)
        self._window = self._fragments.window
        self._gathered: list[bytes | memoryview | HeadsRun] = []
        self._gathered_ticket: int | None = None
        self._gathered_asked: int | None = None
        """What was asked for where most of it is not in memory; None where its bytes come."""
        self._expected = Expected(READ_SIZE)
        self.draining = False

    @property
    def empty(self) -> bool:
        """Whether nothing that was cut is under way."""
        return self._window.empty

    @property
    def applied_count(self) -> int:
        return self._fragments.applied_count

    @property
    def applied_at(self) -> int | None:
        return self._fragments.applied_at

    async def run(self) -> None:
        """Upload until the stream is idle, or drained; cancelling leaves the rest to the next
        session.

        Raises:
            StoreError: the session is over, and another one should begin.
        """
        opened = await self._fragments.begin()
        self._owner.note(opened.epoch)
        self._cutter.restart(opened.published_next)
        await self._fragments.run(self._cut_until_idle)

    async def _cut_until_idle(self) -> None:
        try:
            await self._cut_while_any()
        finally:
            # Before the caller waits until what was cut before is applied.
            self._drop_gathered()

    async def _cut_while_any(self) -> None:
        while True:
            self._fragments.check_failed()
            match self._cutter.decide(self._parts.clock_ms()):
                case Measure(first_offset):
                    self._cutter.measured(fetched_of(await self._fetch(first_offset, 1)))
                case Fetch() as fetch:
                    await self._gather(fetch)
                case Cut() as cut:
                    await self._cut(cut)
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
            seconds = self._parts.settings.uploader_idle_seconds
        return await self._wake(seconds) or not idle

    async def _hurry_root(self) -> bool:
        """Have what waits for others to share its root published now, since no others come.

        A session that begins again changes nothing but that. All is uploaded, and what is not
        registered yet by then is published after the next wait.
        """
        if not await self._wake(ROOT_HURRY_SECONDS):
            await self._fragments.begin()
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
        await self._fragments.room()
        if self._gathered_ticket is None:
            reads_files = self._owner.source.reads_files(self._stream_id)
            asked = self._expected.size(fetch.max_bytes) if reads_files else None
            self._gathered_asked = asked
            size = fetch.max_bytes if asked is None else asked
            self._gathered_ticket = await self._parts.budget.take(size)
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

    async def _cut(self, cut: Cut) -> None:
        await self._fragments.take(self._gathered, cut.first_offset, cut.next_offset)
        self._cutter.cut_taken()
        self._expected.took(*self._gathered_sizes())
        self._drop_gathered()

    def _drop_gathered(self) -> None:
        self._gathered = []
        if self._gathered_ticket is not None:
            self._parts.budget.free(self._gathered_ticket)
            self._gathered_ticket = None


def fetched_of(found: ChunkRun | HeadsRun) -> ChunksFetched:
    """What a run brought, wherever its bytes are."""
    run, size = (found.run, found.size) if isinstance(found, HeadsRun) else (found, len(found.data))
    return ChunksFetched(run.first_offset, run.next_offset, size, run.log_end)


def held_size(run: bytes | memoryview | HeadsRun) -> int:
    """Bytes that a run takes in memory until it is cut, about."""
    return HEAD_SIZE * len(run.heads) if isinstance(run, HeadsRun) else len(run)
