"""Operations: work that outlives its request, kept in coordination until it is done, and longer.

bottomless:operation:{operation_id}          the operation, JSON
bottomless:operation-lease:{operation_id}    who works on it now
bottomless:operations                        their ids, by the time when somebody looks again

One queue serves both ends: an operation that is not finished is due when its next step is,
a finished one when it may be forgotten. After a crash at any moment the operation stands as
its last finished step left it and is due, so whoever looks next goes on with the step after
it; a step that was under way is done again, and therefore has to be idempotent.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

import orjson

from bottomless.errors import Code, Corrupt, NotFound
from bottomless.model.names import StreamId
from bottomless_server.coordination.base import Changes, Coordination, Due, Values

OPERATIONS_KEY: Final = "bottomless:operations"
FOREVER: Final = 2**52
"""Later than anything is queued for."""
_ID_PREFIX: Final = "op_"
_ID: Final = re.compile(r"op_[0-9a-f]{32}", re.ASCII)


class OperationState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Operation:
    operation_id: str
    kind: str
    tenant: str
    """The tenant that may ask what became of it."""
    stream_id: StreamId | None
    """None of one that is about more than one stream."""
    created_at: int
    updated_at: int
    state: OperationState = OperationState.PENDING
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """The arguments of the operation; plain JSON values, as in the fields below."""
    progress: Mapping[str, Any] = field(default_factory=dict)
    """Where the next step begins, and what people may see of it."""
    result: Mapping[str, Any] | None = None
    error: Mapping[str, Any] | None = None
    """`code` and `detail`; of one that is not finished: why its last step did not succeed."""

    @property
    def finished(self) -> bool:
        return self.state in (OperationState.SUCCEEDED, OperationState.FAILED)


def new_operation(
    uid: str,
    kind: str,
    now: int,
    *,
    tenant: str,
    stream_id: StreamId | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> Operation:
    """An operation that nobody has entered yet; `uid` makes its id unique."""
    return Operation(
        operation_id=_ID_PREFIX + uid,
        kind=kind,
        tenant=tenant,
        stream_id=stream_id,
        created_at=now,
        updated_at=now,
        arguments=arguments or {},
    )


def operation_key(operation_id: str) -> str:
    return f"bottomless:operation:{operation_id}"


def operation_lease_key(operation_id: str) -> str:
    return f"bottomless:operation-lease:{operation_id}"


def entered(operation: Operation, due_at: int) -> Changes:
    """Make the changes that enter an operation, or move it on; they may be part of any transaction."""
    return Changes(
        {operation_key(operation.operation_id): encode_operation(operation)},
        [Due(OPERATIONS_KEY, operation.operation_id.encode("ascii"), due_at)],
    )


def encode_operation(operation: Operation) -> bytes:
    return orjson.dumps(operation)


def decode_operation(data: bytes) -> Operation:
    """Read what `encode_operation` wrote.

    Raises:
        Corrupt: it is not such a value.
    """
    try:
        members = orjson.loads(data)
        return Operation(**{**members, "state": OperationState(members["state"])})
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt("an operation is not readable") from error


class OperationStore:
    """Reads and moves operations. Holds no state of its own."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination

    async def find(self, operation_id: str) -> Operation:
        """Find an operation by its id, of whatever tenant.

        Raises:
            NotFound: there is none, or it was finished long ago.
        """
        if not _ID.fullmatch(operation_id):
            raise operation_not_found()
        value = await self._coordination.get(operation_key(operation_id))
        if value is None:
            raise operation_not_found()
        return decode_operation(value)

    async def find_of(self, tenant: str, operation_id: str) -> Operation:
        """Find an operation of a tenant; another tenant's is answered like one that is not there.

        Raises:
            NotFound
        """
        operation = await self.find(operation_id)
        if operation.tenant != tenant:
            raise operation_not_found()
        return operation

    async def listed(
        self, tenant: str, before: str | None, count: int
    ) -> tuple[list[Operation], str | None]:
        """The operations of a tenant among the `count` newest ids before an id, None for the newest of all;
        and the id before which the next ones are, None after the last. What cannot be read is left out.

        Ids sort by the time at which they were made, and all of them are read: their number has a bound.

        Raises:
            CoordinationUnavailable
        """
        number = await self._coordination.member_count(OPERATIONS_KEY)
        dues = await self._coordination.due(OPERATIONS_KEY, FOREVER, number) if number else []
        ids = sorted((due.member.decode("ascii") for due in dues), reverse=True)
        ids = [one for one in ids if before is None or one < before]
        page = ids[:count]
        values = await self._coordination.get_many([operation_key(one) for one in page])
        found: list[Operation] = []
        for value in values:
            with suppress(Corrupt):
                if value is not None:
                    found.append(decode_operation(value))
        after = page[-1] if len(ids) > count else None
        return [one for one in found if one.tenant == tenant], after

    async def enter(self, operation: Operation) -> None:
        """Enter a new operation, due at once."""
        key = operation_key(operation.operation_id)
        changes = entered(operation, operation.created_at)
        await self._coordination.transact([key], lambda _: (changes, None))

    async def enter_once(
        self, operation: Operation, watched: Sequence[str], require: Callable[[Values], None]
    ) -> Operation:
        """Enter an operation, unless one of the same id is there that is not finished; returns the
        one that is there then.

        One that is finished makes way: the new one says that it was created after the end of that
        one, so nobody who still works on that one takes the new one for it.
        `require` looks at the `watched` keys, and raises to leave it all as it is.
        """
        key, member = operation_key(operation.operation_id), operation.operation_id.encode("ascii")
        before = await self._coordination.get(key)
        # A queue never brings a time forward, so that of the finished one is taken out. It does not
        # move any more.
        [queued_at] = await self._coordination.due_at(OPERATIONS_KEY, [member])
        queued = [] if queued_at is None else [Due(OPERATIONS_KEY, member, queued_at)]

        def change(values: Values) -> tuple[Changes, Operation]:
            require(values)
            value, new = values[key], operation
            # One that cannot be read can be carried out by nobody.
            with suppress(Corrupt):
                if value is not None:
                    found = decode_operation(value)
                    if not found.finished or value != before:
                        return Changes(), found
                    after = max(operation.created_at, found.updated_at + 1)
                    new = replace(operation, created_at=after, updated_at=after)
            return Changes(settled=queued) | entered(new, operation.created_at), new

        return await self._coordination.transact([key, *watched], change)

    async def move(self, before: Operation, due_at: int, now: int, **changes: Any) -> Operation:
        """Write what a step has changed, unless somebody else has moved it since.

        Raises:
            NotFound: it was forgotten, or moved by somebody else.
        """
        key = operation_key(before.operation_id)
        after = replace(before, updated_at=now, **changes)
        moved = entered(after, due_at)

        def change(values: Values) -> tuple[Changes, None]:
            value = values[key]
            if value is None or decode_operation(value) != before:
                raise operation_not_found()
            return moved, None

        await self._coordination.transact([key], change)
        return after

    async def forget(self, due: Due) -> None:
        """Remove a finished operation that is still due when `due` says; after a crash half-way
        it is due again.

        One that was finished since the queue was looked at is due much later: somebody will ask
        what became of it. A finished one does not move any more; but it may make way for another one
        of its id, and that stays.
        """
        key = operation_key(due.member.decode("ascii"))
        before = await self._coordination.get(key)
        if await self._coordination.due_at(OPERATIONS_KEY, [due.member]) != [due.due_at]:
            return

        def change(values: Values) -> tuple[Changes, None]:
            return Changes({key: None} if values[key] == before else {}), None

        await self._coordination.transact([key], change)
        await self._coordination.settle([due])


def operation_not_found() -> NotFound:
    return NotFound("there is no such operation", code=Code.OPERATION_NOT_FOUND)
