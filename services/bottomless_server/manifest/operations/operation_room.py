"""Room for new operations: a bound on how many there are, the finished ones among them.

Finished operations are kept for days, so that people may ask what became of them. Where there are
too many, those that were finished first are forgotten earlier. An operation that is not finished
is never forgotten: then a new one is refused.
"""

from typing import Final

from bottomless.errors import Corrupt, Overloaded
from bottomless_server.coordination.base import Due
from bottomless_server.manifest.common.context import Context
from bottomless_server.stores.operations import (
    FOREVER,
    OPERATIONS_KEY,
    OperationStore,
    decode_operation,
    operation_key,
)

_READ_COUNT: Final = 512
_FORGET_COUNT: Final = 64
"""Forgotten at once, so that not every new operation looks for one."""
_FULL_MS: Final = 1_000
"""How long nobody looks again after none of so many was finished."""


class OperationRoom:
    def __init__(self, context: Context, store: OperationStore) -> None:
        self._context = context
        self._store = store
        self._full_until = 0
        """Until when there is no room, by `Context.elapsed`."""

    async def make(self) -> None:
        """Make room for one operation.

        Raises:
            Overloaded: there are too many, and none of them is finished.
            CoordinationUnavailable, CoordinationUnknown
        """
        coordination, settings = self._context.coordination, self._context.settings
        count = await coordination.member_count(OPERATIONS_KEY)
        if count < settings.manifest_operation_count_max:
            return
        elapsed = self._context.elapsed()
        finished = await self._oldest_finished(count) if elapsed >= self._full_until else []
        if not finished:
            self._full_until = max(self._full_until, elapsed + _FULL_MS)
            raise Overloaded(
                "too many operations are under way; wait until some are finished",
                retry_after_seconds=60,
            )
        for due in finished:
            await self._store.forget(due)

    async def _oldest_finished(self, count: int) -> list[Due]:
        """Some of those that were finished first. Others are due before them as a rule, and
        however many these are, they do not hide them."""
        coordination, now = self._context.coordination, self._context.clock()
        dues = await coordination.due(OPERATIONS_KEY, FOREVER, count)
        dues.sort(key=lambda due: (due.due_at <= now, due.due_at))
        for begin in range(0, len(dues), _READ_COUNT):
            page = dues[begin : begin + _READ_COUNT]
            values = await coordination.get_many([_key_of(due) for due in page])
            pairs = zip(page, values, strict=True)
            if finished := [due for due, value in pairs if _is_finished(value)]:
                return finished[:_FORGET_COUNT]
        return []


def _key_of(due: Due) -> str:
    return operation_key(due.member.decode("ascii"))


def _is_finished(value: bytes | None) -> bool:
    try:
        return value is not None and decode_operation(value).finished
    except Corrupt:
        return False
