"""Read what was stored once more where its bytes are damaged: they may have been so on their way only."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from bottomless.errors import Corrupt

T = TypeVar("T")


async def read_again(read: Callable[[], Awaitable[T]]) -> T:
    """What `read` reads and checks; a second time if the first one finds damage.

    Raises:
        Corrupt: it is damaged where it lies. Whatever else `read` raises passes through.
    """
    try:
        return await read()
    except Corrupt:
        return await read()
