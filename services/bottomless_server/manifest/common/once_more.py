"""The second attempt of a change whose reply was lost.

It either finds what the first one did, or writes what the first one watches, or is refused by what the first
one would meet as well: then the outcome is known. Where the store cannot be asked any more it is not: the
first one may have arrived, or may still do so.
"""

from collections.abc import Awaitable
from typing import TypeVar

from bottomless.errors import StoreError, WrongOffset
from bottomless.guards import guard
from bottomless_server.coordination.base import (
    CoordinationConflict,
    CoordinationUnavailable,
    CoordinationUnknown,
)

T = TypeVar("T")


async def once_more(lost: CoordinationUnknown, attempt: Awaitable[T]) -> T:
    """Make the second attempt of a change, or the look at what became of it; `lost` is how the first one
    ended.

    Raises:
        CoordinationUnknown: nobody can tell whether the change is done.
        StoreError: what the attempt raises; nothing is done.
    """
    try:
        return await attempt
    except (CoordinationUnavailable, CoordinationUnknown, CoordinationConflict) as error:
        raise told_after(lost, error) from error


async def once_more_on_condition(lost: CoordinationUnknown, attempt: Awaitable[T]) -> T:
    """Make the second attempt of a change that has a condition, as `once_more` does. The attempt has to find
    what the first one did; where its condition does not hold, somebody else may have changed that since.

    Raises:
        CoordinationUnknown: nobody can tell whether the change was done.
        StoreError: what the attempt raises; nothing is done.
    """
    try:
        return await once_more(lost, attempt)
    except WrongOffset as error:
        raise told_after(lost, error) from error


@guard("a lost reply, remembered when the store is away at the second attempt")
def told_after(lost: StoreError, again: StoreError) -> StoreError:  # noqa: ARG001 a test may tell it
    """What is told where a reply was lost, and the second attempt did not reach the store either."""
    return lost
