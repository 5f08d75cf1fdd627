"""Carry out one operation: step by step, each step written down before the next begins.

A runner does one bounded step of one kind of operation and says what it has come to:
`Again` with the progress that the next step needs, `Done` with the result, or `Failed` with what
nothing will change. A step may be done twice, so it has to be idempotent.

One process works on an operation at a time, under a lease in coordination that is renewed
while the step runs. After a crash the lease runs out, and whichever process looks next goes on
with the step that was under way.

Two releases may run side by side. A step that meets what only the later one can read is left to
others: it is due again after a while, and says meanwhile why it waits.

Where others wait for a place, an operation makes way after each step (`core/turns.py`): it is
written down as due after them, its lease is given back, and any process may go on with it.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import structlog

from bottomless.errors import NotFound, NotServed, Overloaded, StoreError, Unavailable
from bottomless.guards import guard
from bottomless.model.backoff import backoff
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.held_lease import held_lease
from bottomless_server.manifest.operations.core.turns import Turns
from bottomless_server.stores.operations import (
    Operation,
    OperationState,
    OperationStore,
    decode_operation,
    operation_key,
    operation_lease_key,
)

log = structlog.get_logger(__name__)

_RETRY_SECONDS_MIN: Final = 1.0
_RETRY_SECONDS_MAX: Final = 60.0


class Again(NamedTuple):
    """The operation is not finished; its next step is due at `due_at` (ms), 0 for at once."""

    progress: Mapping[str, Any]
    """Members whose name starts with `_` are for the next step only, and never shown."""
    due_at: int = 0
    error: Mapping[str, Any] | None = None
    """The fault that people should know of while the operation goes on, as `described` tells it."""


class Done(NamedTuple):
    """The operation is finished, and this came of it."""

    result: Mapping[str, Any]


class Failed(NamedTuple):
    """The operation cannot be carried out any more, however often it is tried."""

    error: StoreError


Runner = Callable[[Context, Operation], Awaitable[Again | Done | Failed]]


@dataclass(frozen=True, slots=True)
class RegisteredKind:
    """The runner of operations of one kind, and whether a step of them is tried for ever."""

    runner: Runner
    endless: bool


class Steps:
    """The steps of all operations that this process carries out."""

    def __init__(
        self,
        context: Context,
        store: OperationStore,
        turns: Turns,
        may_go_on: Callable[[str | None], bool],
    ) -> None:
        """`may_go_on` says of a kind whether it may be carried out now."""
        self._context = context
        self._store = store
        self._turns = turns
        self._may_go_on = may_go_on
        self.kinds: dict[str, RegisteredKind] = {}
        self._failures: dict[str, int] = {}
        """Steps that failed in a row, by operation under retry."""
        # Of this run and not of the node: an earlier run of it may still be working.
        self._holder = context.new_uid().encode("ascii")

    async def work(self, operation: Operation) -> bool:
        """Do steps until the operation is finished, put aside, makes way, or is somebody else's.

        False if nothing can be done with it at once.
        """
        try:
            async with held_lease(
                self._context.coordination,
                operation_lease_key(operation.operation_id),
                self._holder,
                self._context.settings.manifest_operation_lease_ms,
            ) as held:
                if not held:
                    return False
                # Read under the lease: whoever held it before may have gone on.
                value = await self._context.coordination.get(operation_key(operation.operation_id))
                current: Operation | None = None if value is None else decode_operation(value)
                while current is not None and not current.finished:
                    if not self._may_go_on(current.kind):
                        break
                    current = await self._step(current)
                return True
        except NotFound:
            log.info("an operation was moved by somebody else", operation=operation.operation_id)
        except StoreError as error:
            log.warning("an operation was not moved", kind=operation.kind, error=str(error))
        except Exception:
            log.exception("an operation met a bug", kind=operation.kind)
        return False

    async def _step(self, operation: Operation) -> Operation | None:
        """Do one step and write down what came of it; the operation if the next one may follow
        at once, on the same place."""
        kind = self.kinds[operation.kind]
        try:
            outcome = await kind.runner(self._context, operation)
        except StoreError as error:
            await self._failed(operation, kind, error)
            return None
        except Exception:
            log.exception("a step of an operation met a bug", kind=operation.kind)
            await self._failed(operation, kind, StoreError("an unexpected error; the log has it"))
            return None
        self._failures.pop(operation.operation_id, None)
        now = self._context.clock()
        if isinstance(outcome, Done):
            await self._finish(operation, OperationState.SUCCEEDED, outcome.result, None)
            return None
        if isinstance(outcome, Failed):
            log.warning("an operation failed", kind=operation.kind, error=str(outcome.error))
            await self._finish(operation, OperationState.FAILED, None, described(outcome.error))
            return None
        # Not by the clock, which may be wrong for a moment: the queue never brings a time forward.
        others = self._turns.make_way_until
        due_at = outcome.due_at if others is None else max(outcome.due_at, others + 1)
        moved = await self._store.move(
            operation,
            due_at,
            now,
            state=OperationState.RUNNING,
            progress=dict(outcome.progress),
            error=outcome.error,
        )
        return moved if others is None and due_at <= now else None

    async def _failed(self, operation: Operation, kind: RegisteredKind, error: StoreError) -> None:
        if kind.endless or may_succeed_later(error):
            await self._retry_later(operation, error)
            return
        log.warning("an operation failed", kind=operation.kind, error=str(error))
        await self._finish(operation, OperationState.FAILED, None, described(error))

    async def _retry_later(self, operation: Operation, error: StoreError) -> None:
        failures = self._failures.get(operation.operation_id, 0)
        self._failures[operation.operation_id] = failures + 1
        seconds = backoff(failures, _RETRY_SECONDS_MIN, _RETRY_SECONDS_MAX)
        now = self._context.clock()
        log.warning("a step of an operation failed", kind=operation.kind, error=str(error))
        await self._store.move(
            operation,
            now + int(seconds * 1000),
            now,
            state=OperationState.RUNNING,
            error=described(error),
        )

    async def _finish(
        self,
        operation: Operation,
        state: OperationState,
        result: Mapping[str, Any] | None,
        error: Mapping[str, Any] | None,
    ) -> None:
        now = self._context.clock()
        self._failures.pop(operation.operation_id, None)
        await self._store.move(
            operation,
            now + self._context.settings.manifest_operation_keep_ms,
            now,
            state=state,
            result=None if result is None else dict(result),
            error=error,
        )


@guard("what only a later release can read, left to it by operations")
def may_succeed_later(error: StoreError) -> bool:
    """Whether the same step, here or in another process, may succeed after a while."""
    return isinstance(error, Unavailable | Overloaded | NotServed)


def described(error: StoreError) -> dict[str, str]:
    """An error as an operation tells it."""
    return {"code": error.code.value, "detail": error.message}
