"""Find operations that are due later than any that is not finished can be.

An operation that is not finished looks again within a minute or two. One that is due later was
entered or moved by a clock that is ahead of this one: of a process that died, or of this one before
its clock was set back. The queue keeps the later of two times, so its time does not tell when
somebody must look; it is looked at once a minute, by time that nobody can set.

Nothing is written here. That an operation is finished never changes, so each is read once.
"""

from typing import Final

from bottomless.errors import Corrupt
from bottomless_server.manifest.common.context import Context
from bottomless_server.stores.operations import (
    FOREVER,
    OPERATIONS_KEY,
    Operation,
    decode_operation,
    operation_key,
)

FAR_MS: Final = 2 * 60_000
"""No step is put off for longer than a minute."""
_LOOK_MS: Final = 60_000
_READ_COUNT: Final = 512


class FarOperations:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._look_at: int | None = None
        """When to look next, by `Context.elapsed`; None before the first look."""
        self._finished: set[bytes] = set()
        """Members of the queue that were found finished."""

    async def find(self) -> list[Operation]:
        """Operations that are not finished, if it is time for a look.

        Raises:
            CoordinationUnavailable
        """
        coordination, elapsed = self._context.coordination, self._context.elapsed()
        if self._look_at is not None and elapsed < self._look_at:
            return []
        far = self._context.clock() + FAR_MS
        count = await coordination.member_count(OPERATIONS_KEY)
        dues = await coordination.due(OPERATIONS_KEY, FOREVER, count) if count else []
        members = [due.member for due in dues if due.due_at > far]
        self._finished.intersection_update(members)
        unknown = [member for member in members if member not in self._finished]
        found: list[Operation] = []
        for begin in range(0, len(unknown), _READ_COUNT):
            found += await self._read(unknown[begin : begin + _READ_COUNT])
        self._look_at = elapsed + _LOOK_MS
        return found

    async def _read(self, members: list[bytes]) -> list[Operation]:
        keys = [operation_key(member.decode("ascii")) for member in members]
        values = await self._context.coordination.get_many(keys)
        found: list[Operation] = []
        for member, value in zip(members, values, strict=True):
            try:
                operation = None if value is None else decode_operation(value)
            except Corrupt:
                # Told by those who look at what is due.
                continue
            if operation is not None and not operation.finished:
                found.append(operation)
            else:
                self._finished.add(member)
        return found
