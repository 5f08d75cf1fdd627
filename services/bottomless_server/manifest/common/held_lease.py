"""Do something under a lease in coordination, and stop doing it when the lease is lost.

A third of the lease is for renewing it and a third for the answer, so that the work here
is cancelled before anybody else can begin with it. After a crash the lease runs out.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

import structlog

from bottomless.errors import StoreError
from bottomless_server.coordination.base import Coordination, Hold
from bottomless_server.runtime.base.end import AGAIN_SECONDS, end_tasks

log = structlog.get_logger(__name__)

_AGAIN_SECONDS: Final = 0.1
"""A renewal has nothing to clean up."""


@contextlib.asynccontextmanager
async def held_lease(
    coordination: Coordination, redis_key: str, holder: bytes, ttl_ms: int
) -> AsyncIterator[bool]:
    """Yields whether the lease is held; while it is, the block is cancelled once it is lost.

    Raises:
        CoordinationUnavailable, CoordinationUnknown: it cannot be taken now.
    """
    if not await coordination.hold(redis_key, holder, ttl_ms):
        yield False
        return
    working = asyncio.current_task()
    assert working is not None
    renewing = asyncio.create_task(_renew(coordination, redis_key, holder, ttl_ms, working))
    try:
        yield True
    finally:
        await end_tasks(renewing, again_seconds=_AGAIN_SECONDS)
        with contextlib.suppress(StoreError):
            await coordination.release(redis_key, holder)


async def _renew(
    coordination: Coordination,
    redis_key: str,
    holder: bytes,
    ttl_ms: int,
    working: asyncio.Task[object],
) -> None:
    try:
        while True:
            await asyncio.sleep(ttl_ms / 3000)
            async with asyncio.timeout(ttl_ms / 3000):
                if await coordination.hold(redis_key, holder, ttl_ms) is not Hold.RENEWED:
                    # Taken anew is lost, too: others may have begun, and have ended, meanwhile.
                    break
    except (StoreError, TimeoutError) as error:
        log.warning("a lease was not renewed", error=str(error))
    while True:
        # Until it has ended, and ends this: it may lose a cancellation.
        working.cancel()
        await asyncio.sleep(AGAIN_SECONDS)
