"""Staged batches as objects of their stream: of leaderless streams, and of those with replicas.

Of a leaderless stream any node commits them; of one with replicas its owner, which names those of a
commit of several parts in a plan (staged/object_batches.py).

In the object store after a crash: an object, or none; nobody was told the id of one whose put was not
answered. Nothing else names a batch, and garbage collection takes what is an hour old, so a batch that
goes while it is being committed refuses its commit, and nothing is stored.
"""

import os
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from bottomless.drives.base import Drive, DriveUnavailable, ObjectMissing
from bottomless.errors import Code, Corrupt, Outcome, StoreError, Unavailable
from bottomless.formats.checks import crc32c
from bottomless.formats.keys import staged_key
from bottomless.formats.rows import Frame
from bottomless.model.names import StreamId, Uid
from bottomless_server.ingest.ports import Staged
from bottomless_server.ingest.producers.commit_plan import StagedBatch, staged_not_found
from bottomless_server.ingest.records.frames import stored_frames
from bottomless_server.stores.put_retries import PUT_WAITS, PutWaits, put_object

log = structlog.get_logger(__name__)

_ID_PREFIX: Final = "st_"
_READ_COUNT: Final = 3
"""Attempts to read a batch: bytes may be damaged on their way, and a store may not answer once."""


class StagedObjects:
    """The staged batches of all streams that keep them in the object store."""

    def __init__(
        self,
        drive: Drive,
        read_clock: Callable[[], int],
        *,
        keep_ms: int,
        put_seconds: float,
        waits: PutWaits = PUT_WAITS,
    ) -> None:
        self._drive = drive
        self._read_clock = read_clock
        self._keep_ms = keep_ms
        self._put_seconds = put_seconds
        self._waits = waits

    async def stage(self, stream_id: StreamId, tenant: str, frames: Sequence[Frame]) -> Staged:
        """Put validated frames; returns when they are durable.

        Raises:
            Unavailable: nothing is staged: nobody knows the id of what may be there.
        """
        staged_id, now = f"{_ID_PREFIX}{os.urandom(16).hex()}", self._read_clock()
        await self.put(stream_id, tenant, staged_id, frames)
        size = sum(frame.size for frame in frames)
        count = sum(frame.record_count for frame in frames)
        batch = StagedBatch(staged_id, now, size, count, len(frames))
        return Staged(batch, now + self._keep_ms)

    async def put(
        self, stream_id: StreamId, tenant: str, staged_id: str, frames: Sequence[Frame]
    ) -> None:
        """Put validated frames under an id that nothing else has; returns when they are durable.

        Raises:
            Unavailable: they are there or not.
        """
        parts = [part for frame in frames for part in frame.parts]
        crc = 0
        for part in parts:
            crc = crc32c(part, crc)
        key = _key(stream_id, tenant, staged_id)
        try:
            await put_object(
                self._drive,
                key,
                parts,
                crc,
                deadline_seconds=self._put_seconds,
                waits=self._waits,
            )
        except Unavailable as error:
            raise _away(error) from error

    async def read(self, stream_id: StreamId, tenant: str, staged_id: str) -> list[Frame]:
        """The frames of a batch, as they were staged.

        Raises:
            NotFound: `staged-not-found`.
            Corrupt, Unavailable: with outcome none.
        """
        key, left = _key(stream_id, tenant, staged_id), _READ_COUNT
        while True:
            left -= 1
            try:
                return stored_frames(await self._drive.get(key))
            except ObjectMissing:
                raise staged_not_found() from None
            except (Corrupt, DriveUnavailable) as error:
                if not left:
                    raise _damaged() if isinstance(error, Corrupt) else _away(error) from error
            except Unavailable as error:
                raise _away(error) from error

    async def is_there(self, stream_id: StreamId, tenant: str, staged_id: str) -> bool:
        """Whether a batch is there, which is not read.

        Raises:
            Unavailable: with outcome none.
        """
        key, left = _key(stream_id, tenant, staged_id), _READ_COUNT
        while True:
            left -= 1
            try:
                await self._drive.head(key)
            except ObjectMissing:
                return False
            except Unavailable as error:
                if not left or not isinstance(error, DriveUnavailable):
                    raise _away(error) from error
            else:
                return True

    async def record_count(
        self, stream_id: StreamId, tenant: str, staged_ids: Sequence[str]
    ) -> int:
        """Records of those batches that are there.

        Raises:
            Corrupt, Unavailable: with outcome none.
        """
        count = 0
        for staged_id in staged_ids:
            try:
                frames = await self.read(stream_id, tenant, staged_id)
            except StoreError as error:
                if error.code is not Code.STAGED_NOT_FOUND:
                    raise
            else:
                count += sum(frame.record_count for frame in frames)
        return count

    async def drop(self, stream_id: StreamId, tenant: str, staged_ids: Sequence[str]) -> None:
        """Delete batches that nobody needs any more; what fails is garbage."""
        keys = [_key(stream_id, tenant, one) for one in staged_ids]
        failures = await self._drive.delete(keys)
        if failures:
            log.info("staged batches were not deleted", stream_id=stream_id, count=len(failures))


def _key(stream_id: StreamId, tenant: str, staged_id: str) -> str:
    return staged_key(stream_id, Uid(staged_id.removeprefix(_ID_PREFIX)), tenant)


def _away(error: Unavailable) -> Unavailable:
    return Unavailable(
        "the object store does not take or give staged batches now",
        code=error.code,
        outcome=Outcome.NONE,
        retryable=error.retryable,
        retry_after_seconds=1,
    )


def _damaged() -> Corrupt:
    return Corrupt("a staged batch is damaged; stage it anew", outcome=Outcome.NONE)
