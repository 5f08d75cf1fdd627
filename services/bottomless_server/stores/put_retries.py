"""Put an object until it is there: the retries round a drive's single attempts.

Object keys hold 128 random bits, so an object that is there under our key is ours,
put by an attempt whose reply was lost; size and checksum prove it. After a crash
at any moment the object is there whole or not at all; the process that holds the
intent for its key looks.

On the record's path: after bottomless_server/uploader/fragments.py, before
bottomless/drives/.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Final, NamedTuple, TypeAlias

from bottomless.drives.base import (
    Body,
    Drive,
    DriveAmbiguous,
    DriveUnavailable,
    ObjectExists,
    ObjectMissing,
)
from bottomless.errors import Corrupt, Unavailable
from bottomless.guards import guard
from bottomless.model.backoff import backoff
from bottomless_server.drives.checked_parts import size_of, sum_of


class PutWaits(NamedTuple):
    """How long is waited between two attempts of one put, in seconds."""

    initial: float = 0.1
    """After the first attempt that failed; each further wait is twice as long."""
    longest: float = 5.0
    jitter: float = 0.5
    """The most that is added to each wait below the longest one, at random."""

    def after(self, failures: int) -> float:
        """The wait after a failure that follows `failures` others."""
        jitter = random.uniform(0, self.jitter)  # noqa: S311
        return backoff(failures, self.initial, self.longest, jitter)


Room: TypeAlias = Callable[[], AbstractAsyncContextManager[None]]
"""What an attempt holds from its start to its end, and may have to wait for."""
PUT_WAITS: Final = PutWaits()
"""The waits of a put for which nobody sets others."""


async def put_object(
    drive: Drive,
    object_key: str,
    body: Body,
    crc: int,
    *,
    deadline_seconds: float,
    waits: PutWaits = PUT_WAITS,
    room: Room = nullcontext,
    attempt_count_max: int | None = None,
) -> None:
    """Put an object; when this returns it is durable under its key, whole.

    Retries what a retry can mend, with `waits` in between, until the deadline, or until so many attempts
    have failed; what a source raises ends it. A source is read anew in each attempt. Parts must stay as they are until this returns,
    and longer if it is cancelled or out of time. Each attempt enters a `room` of its own first; to
    wait for that takes nothing of the time.

    Raises:
        DriveAmbiguous: it failed, and at least one attempt may have put the object.
        DriveUnavailable, DriveRefused, DriveFull: it failed, and nothing was stored.
        Corrupt: `crc` is not that of the body, or another object has the key: an alarm.
    """
    unknown, failures = False, 0
    # Not by the library for retries: it keeps what an attempt raised, whose frames hold the body, in
    # a circle that only the garbage collector finds.
    try:
        async with asyncio.timeout(deadline_seconds) as deadline:
            while True:
                try:
                    async with _entered(room, deadline):
                        try:
                            await put_once(drive, object_key, body, crc)
                        except (DriveAmbiguous, asyncio.CancelledError):
                            unknown = True
                            raise
                except (DriveUnavailable, DriveAmbiguous) as error:
                    if not error.retryable or failures + 1 == attempt_count_max:
                        raise
                else:
                    return
                await asyncio.sleep(waits.after(failures))
                failures += 1
    except (Unavailable, TimeoutError) as error:
        if unknown:
            raise DriveAmbiguous("an object may have been put, or may not") from error
        if isinstance(error, TimeoutError):
            raise DriveUnavailable("no attempt to put an object succeeded in time") from error
        raise


@asynccontextmanager
async def _entered(room: Room, deadline: asyncio.Timeout) -> AsyncIterator[None]:
    """The room, with the deadline later by as long as was waited for it."""
    loop, ends = asyncio.get_running_loop(), deadline.when()
    assert ends is not None
    left = ends - loop.time()
    deadline.reschedule(None)
    async with room():
        deadline.reschedule(loop.time() + left)
        yield


@guard("an unknown outcome of a put")
async def put_once(drive: Drive, object_key: str, body: Body, crc: int) -> None:
    """Make one attempt to put an object.

    Raises:
        DriveAmbiguous: it may have been put.
        DriveUnavailable, DriveRefused, DriveFull: it was not.
        Corrupt: `crc` is not that of the body, or another object has the key.
    """
    try:
        await drive.put(object_key, body, crc)
    except ObjectExists as error:
        if not await is_ours(drive, object_key, body, crc):
            raise Corrupt("another object has the key of one that is to be put") from error
    except Corrupt as error:
        if await sum_of(body) != crc:
            raise
        raise DriveUnavailable("the bytes of an object were damaged on their way") from error


@guard("an object of our own uid is looked at")
async def is_ours(drive: Drive, object_key: str, body: Body, crc: int) -> bool:
    """Whether the object that is said to be there is the one that is to be put.

    Raises:
        DriveAmbiguous: it cannot be told now; the same put again is right.
    """
    size = size_of(body)
    for _ in range(2):
        try:
            found = await drive.head(object_key, checksum=True)
        except ObjectMissing as error:
            # An earlier attempt of ours may be under way still, as some stores do it; and
            # who says so wrongly changes nothing, since every put is only if absent.
            raise DriveAmbiguous("an object is said to exist, and not to be there") from error
        except Unavailable as error:
            raise DriveAmbiguous(
                "an object exists, and cannot be looked at", retryable=error.retryable
            ) from error
        if (found.size, found.crc) == (size, crc):
            return True
        # A second time: where the store knows no checksum, bytes are read, perhaps damaged.
    return False
