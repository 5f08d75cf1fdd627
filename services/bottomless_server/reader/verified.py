"""Bytes that are verified before anybody sees them, and fetched once more where they are damaged.

Bytes can be damaged on the way, and then the store still has them whole; what is damaged again is so
at rest, and an operator has to hear of it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

import structlog

from bottomless.errors import Corrupt
from bottomless.model.limits import KIB

log = structlog.get_logger(__name__)

T = TypeVar("T")

INLINE_SIZE_MAX = 256 * KIB
"""What is verified or decoded on the event loop: some tens of microseconds. More goes to a thread."""


class Events(NamedTuple):
    """What the log says."""

    reread: str
    """It is damaged, and read once more."""
    corrupt: str
    """It is damaged again."""


async def verified(
    read: Callable[[], Awaitable[memoryview]],
    decode: Callable[[memoryview], T],
    drop: Callable[[], None],
    size: int,
    *,
    events: Events,
    **facts: Any,
) -> T:
    """What `decode` makes of what `read` gets, of `size` bytes. Where it is damaged it is forgotten, by
    `drop`, and read once more; `events` and `facts` are for the log.

    Raises:
        Corrupt: it is damaged again; and whatever `read` raises.
    """
    try:
        return await off_loop(size, decode, await read())
    except Corrupt:
        log.warning(events.reread, **facts)
        drop()
    try:
        return await off_loop(size, decode, await read())
    except Corrupt as error:
        # Not kept: the next reader looks again, after somebody mended the object.
        drop()
        log.error(events.corrupt, **facts, cause=str(error))  # noqa: TRY400
        raise


async def off_loop(size: int, decode: Callable[[memoryview], T], data: memoryview) -> T:
    """Run `decode` where it belongs for `size` bytes."""
    if size <= INLINE_SIZE_MAX:
        return decode(data)
    return await asyncio.to_thread(decode, data)
