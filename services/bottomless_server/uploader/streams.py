"""The streams that have something to upload: one task each, ended when it is idle.

A task runs one session after the other. What it fails with is kept in view and retried
without end; a session that got something into the manifest before it failed is followed
by the next one at once.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final

import structlog
from prometheus_client.metrics_core import Metric

from bottomless.errors import Code, Corrupt, NotFound, StoreError
from bottomless.model.names import StreamId
from bottomless_server.protocol.tail import Commit
from bottomless_server.runtime.base.end import end_tasks
from bottomless_server.runtime.base.endless import endless
from bottomless_server.uploader.calls import IngestCalls
from bottomless_server.uploader.core.cutter import CommitSeen, Cutter
from bottomless_server.uploader.core.owner_seen import OwnerSeen
from bottomless_server.uploader.failures import OF_SESSION, Failures
from bottomless_server.uploader.fragments import Parts
from bottomless_server.uploader.metrics import uploader_metrics
from bottomless_server.uploader.uploader import Session

log = structlog.get_logger(__name__)

REPORTED_COUNT_MAX: Final = 100
"""Failing streams that a report names; the rest is a number."""


class StreamTask:
    """One active stream, its cutter, and the session that is running."""

    def __init__(self, stream_id: StreamId, owner: OwnerSeen[IngestCalls], parts: Parts) -> None:
        self.failures = Failures(stream_id)
        self.cutter = Cutter()
        self._owner = owner
        self._stream_id = stream_id
        self._parts = parts
        self._woken = asyncio.Event()
        self._session: Session | None = None
        self._draining = False
        self._stopping = False
        self._progress_at = parts.clock_ms()

    def lag_ms(self, now: int) -> int:
        """How long nothing of this stream got into the manifest, though there is something."""
        session = self._session
        if session is None or not session.empty or self.cutter.uncut:
            applied_at = None if session is None else session.applied_at
            return now - (applied_at or self._progress_at)
        self._progress_at = now
        return 0

    def commit_seen(self, commit: CommitSeen, ingest: IngestCalls) -> None:
        if not self._owner.hear(commit.epoch, ingest):
            log.warning("an owner of the past speaks", stream_id=self._stream_id)
            return
        now = self._parts.clock_ms()
        self.lag_ms(now)
        self.cutter.commit_seen(commit, now)
        self._woken.set()

    def drain(self) -> None:
        """Cut what is pending at once; the task ends when all of it is applied."""
        self._draining = True
        self.cutter.drain()
        if self._session is not None:
            self._session.draining = True
        self._woken.set()

    def stop(self) -> None:
        self._stopping = True

    async def run(self) -> None:
        """Upload until nothing is left that was seen; between that fact and the end nothing waits."""
        await endless("uploader-stream", self._upload_once)

    async def _upload_once(self) -> float | None:
        if self._stopping:
            return None
        try:
            finished = await self._parts.retries.forever(
                self.failures, OF_SESSION, self._run_session, frozenset({Code.STREAM_NOT_FOUND})
            )
        except NotFound:
            log.info("the stream is gone", stream_id=self._stream_id)
            return None
        return None if finished and (self._draining or not self.cutter.uncut) else 0

    async def _run_session(self) -> bool:
        """Run one session; whether it came to its end, or the next is to begin at once.

        Raises:
            StoreError: the next has to wait.
        """
        session = self._session = Session(
            self._stream_id, self.cutter, self._owner, self.failures, self._woken, self._parts
        )
        session.draining = self._draining
        try:
            await session.run()
        except Corrupt as error:
            if not self._draining:
                raise
            # There is no time to wait for an operator; the next start reports it again.
            self.failures.note(OF_SESSION, error)
        except StoreError as error:
            if session.applied_count == 0:
                raise
            log.warning("an upload session ended", stream_id=self._stream_id, code=error.code)
            return False
        finally:
            self._progress_at = session.applied_at or self._progress_at
            self._session = None
        return True


class Streams:
    """All active streams of this process."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._streams: dict[StreamId, StreamTask] = {}
        self._tasks: dict[StreamId, asyncio.Task[None]] = {}
        self._draining = False

    def __len__(self) -> int:
        return len(self._streams)

    def seen(self, commit: Commit, ingest: IngestCalls) -> None:
        """Take word of a stream; a task is started where there is something to upload."""
        stream = self._streams.get(commit.stream_id)
        if stream is None:
            if commit.published_next >= commit.committed_next:
                return
            owner = OwnerSeen(commit.epoch, ingest)
            stream = StreamTask(commit.stream_id, owner, self._parts)
            self._streams[commit.stream_id] = stream
            self._tasks[commit.stream_id] = asyncio.create_task(
                self._run(commit.stream_id, stream), name=f"upload {commit.stream_id}"
            )
            if self._draining:
                stream.drain()
        stream.commit_seen(_seen(commit), ingest)

    async def drain(self, seconds: float) -> bool:
        """Cut everything that was seen and wait for it; returns whether all of it is applied in time."""
        self._draining = True
        for stream in self._streams.values():
            stream.drain()
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=seconds)
        return not self._streams

    async def stop(self) -> None:
        """Stop where everything stands; the next start finds it by the intents."""
        tasks = list(self._tasks.values())
        for stream in self._streams.values():
            stream.stop()
        await end_tasks(*tasks)

    def report(self) -> Mapping[str, Any]:
        failing = {
            stream_id: stream.failures.report()
            for stream_id, stream in self._streams.items()
            if stream.failures
        }
        return {
            "active_streams": len(self._streams),
            "memory_bytes": self._parts.budget.size,
            "waiting_for_memory": self._parts.budget.waiting_count,
            "failing_streams": len(failing),
            "failures": dict(list(failing.items())[:REPORTED_COUNT_MAX]),
        }

    def metrics(self) -> Iterable[Metric]:
        now = self._parts.clock_ms()
        return uploader_metrics(
            self._parts.counts,
            active_count=len(self._streams),
            failing_count=sum(1 for stream in self._streams.values() if stream.failures),
            lag_ms=max((stream.lag_ms(now) for stream in self._streams.values()), default=0),
            memory_size=self._parts.budget.size,
        )

    async def _run(self, stream_id: StreamId, stream: StreamTask) -> None:
        try:
            await stream.run()
        finally:
            # In the same step as the end of `run`: a commit that comes next starts a new task.
            del self._streams[stream_id], self._tasks[stream_id]


def _seen(commit: Commit) -> CommitSeen:
    return CommitSeen(
        epoch=commit.epoch,
        committed_next=commit.committed_next,
        log_end=commit.log_end,
        target_bytes=commit.target_bytes,
        max_age_ms=commit.max_age_ms,
    )
