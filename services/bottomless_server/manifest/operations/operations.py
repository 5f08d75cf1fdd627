"""Operations: long work that is begun by a request, and goes on in any process until it is done.

This is where they are entered, found, and chosen: which of those that are due are worked on here,
and which wait. What is done with one that was chosen stands in `steps.py`, and whose turn it is in
`core/turns.py`. Who carries out operations of a kind is registered in `app.py`.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any, Final

import structlog

from bottomless.errors import Corrupt, NotFound, StoreError
from bottomless.model.names import StreamId
from bottomless.model.stream import StreamRecord
from bottomless_server.coordination.base import Due
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.failing_deletes import queue_later
from bottomless_server.manifest.operations.core.turns import Turns
from bottomless_server.manifest.operations.far_operations import FarOperations
from bottomless_server.manifest.operations.operation_room import OperationRoom
from bottomless_server.manifest.operations.steps import RegisteredKind, Runner, Steps
from bottomless_server.runtime.base.end import end_tasks
from bottomless_server.runtime.base.endless import endless
from bottomless_server.stores.operations import (
    OPERATIONS_KEY,
    Operation,
    OperationStore,
    new_operation,
)

log = structlog.get_logger(__name__)

_LOOK_COUNT: Final = 1_024
"""Operations looked at in one pass: some of them others work on, or are long and find no place."""
_LEFT_COUNT_MAX: Final = 64
"""How many operations that this release cannot carry out are read at every pass."""
_UNKNOWN_MS: Final = 60_000
"""After so long what this release cannot carry out is looked at again, where much of it waits."""


class Operations:
    """The operations of this installation, as this process enters and carries them out."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._store = OperationStore(context.coordination)
        self._room = OperationRoom(context, self._store)
        self._far = FarOperations(context)
        self._kept: set[str] = set()
        """Finished operations that our clock calls due, and that go when it is believed."""
        self._over: int | None = None
        """The time up to which things are over, as this pass found; None before it asked."""
        self._turns = Turns()
        self._steps = Steps(context, self._store, self._turns, self._may_go_on)
        self._working: dict[str, asyncio.Task[bool]] = {}
        self._news = asyncio.Event()
        self._whole_look_at = 0
        """When to look at the whole queue next, by `Context.elapsed`."""
        self.only: str | None = None
        """The one kind that may go on while coordination is not to be believed."""

    def register(
        self, kind: str, runner: Runner, *, endless: bool = False, long: bool = False
    ) -> None:
        """Say who carries out operations of a kind.

        A step that meets `Unavailable`, or what only a later release can read, is tried again for
        ever, with backoff. Any other error makes the operation fail; one that is `endless` is tried again whatever it met, because
        giving up would leave it half done. One that is `long` may take hours, and leaves places
        to others.
        """
        assert kind not in self._steps.kinds
        if long:
            self._turns.long_kinds.add(kind)
        self._steps.kinds[kind] = RegisteredKind(runner, endless)

    def new(
        self,
        kind: str,
        *,
        tenant: str,
        stream_id: StreamId | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> Operation:
        """An operation for `stores.operations.entered`, to be entered with other changes.

        Call `make_room` before, and `wake` after it is entered.
        """
        context = self._context
        # Sorts by its time, and cannot be guessed from it.
        uid = f"{context.clock():012x}{context.new_uid()[12:]}"
        return new_operation(
            uid, kind, context.clock(), tenant=tenant, stream_id=stream_id, arguments=arguments
        )

    async def begin_for(
        self, record: StreamRecord, kind: str, *, arguments: Mapping[str, Any] | None = None
    ) -> Operation:
        """Begin an operation about one stream; the stream's tenant may ask what became of it."""
        return await self.begin(
            kind, tenant=record.tenant, stream_id=record.stream_id, arguments=arguments
        )

    async def begin(
        self,
        kind: str,
        *,
        tenant: str,
        stream_id: StreamId | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> Operation:
        """Enter an operation that starts at once.

        Raises:
            Overloaded: too many are not finished.
            CoordinationUnavailable, CoordinationUnknown: of the latter nothing may be left, or
                an operation that nobody knows the id of; the same again is safe, as steps are.
        """
        await self.make_room()
        operation = self.new(kind, tenant=tenant, stream_id=stream_id, arguments=arguments)
        await self._store.enter(operation)
        self.wake()
        return operation

    async def make_room(self) -> None:
        """Forget the oldest finished operations where there are too many.

        Raises:
            Overloaded: they are not finished.
        """
        await self._room.make()

    async def find(self, operation_id: str) -> Operation:
        """Find an operation by its id, of whatever tenant.

        Raises:
            NotFound: there is none, or it was finished long ago.
        """
        return await self._store.find(operation_id)

    async def find_of(self, tenant: str, operation_id: str) -> Operation:
        """Find an operation of a tenant; another tenant's is answered like one that is not there.

        Raises:
            NotFound
        """
        return await self._store.find_of(tenant, operation_id)

    async def listed(
        self, tenant: str, before: str | None, count: int
    ) -> tuple[list[Operation], str | None]:
        """A page of a tenant's operations, as `OperationStore.listed` has it.

        Raises:
            CoordinationUnavailable
        """
        return await self._store.listed(tenant, before, count)

    def wake(self) -> None:
        """Look at the queue now."""
        self._news.set()

    async def run(self) -> None:
        """Carry out what is due, for ever; cancelled, it leaves everything as the last steps did."""
        try:
            await endless("manifest-operations", self._pass_once)
        finally:
            await end_tasks(*self._working.values())

    async def _pass_once(self) -> float:
        self._news.clear()
        interval_ms = self._context.settings.manifest_operation_interval_ms
        elapsed = self._context.elapsed()
        whole = elapsed >= self._whole_look_at
        if whole:
            self._whole_look_at = elapsed + interval_ms
        try:
            await self.make_pass(whole=whole)
        except StoreError as error:
            log.warning("operations cannot be looked at", error=str(error))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(interval_ms / 1000):
                await self._news.wait()
        return 0

    async def make_pass(self, *, whole: bool = True) -> None:
        """Begin to work on what is due now and nobody works on.

        One that is not `whole` leaves those out that were found with another process before.
        """
        context, turns = self._context, self._turns
        self._over = None
        if self._kept and await self._is_over(0):
            self._kept.clear()
        count = _LOOK_COUNT + len(self._kept)
        dues = await context.coordination.due(OPERATIONS_KEY, context.clock(), count)
        turns.begin(whole=whole)
        left: list[Due] = []
        for due in dues:
            operation_id = due.member.decode("ascii")
            kind = turns.known_kind(operation_id)
            if operation_id in self._kept or turns.is_taken(operation_id):
                continue
            if not self._may_go_on(kind):
                continue
            if not turns.has_place():
                turns.waits(dues[-1].due_at)
                break
            if kind is not None and not turns.has_place_for(kind):
                turns.waits(due.due_at)
            elif not await self._look_at(due):
                left.append(due)
        await self._begin_far()
        if len(left) >= _LEFT_COUNT_MAX:
            # A later release may know them. They keep their time, but not the places of all others.
            later = context.clock() + _UNKNOWN_MS
            await queue_later(context.coordination, [due._replace(due_at=later) for due in left])

    async def _begin_far(self) -> None:
        """Begin with those whose time a clock that was ahead has put off."""
        for operation in await self._far.find():
            kind = operation.kind
            if self._turns.is_taken(operation.operation_id) or not self._may_go_on(kind):
                continue
            if kind in self._steps.kinds and self._turns.has_place_for(kind):
                self._begin(operation)

    async def _is_over(self, due_at: int) -> bool:
        if self._over is None:
            self._over = await self._context.time.over()
        return self._over > 0 and due_at <= self._over

    def _may_go_on(self, kind: str | None) -> bool:
        return kind is None or self.only is None or kind == self.only

    async def _look_at(self, due: Due) -> bool:
        """Begin with one that is due, or forget it; False if this release cannot carry it out."""
        operation_id = due.member.decode("ascii")
        try:
            operation = await self._store.find(operation_id)
        except NotFound:
            await self._context.coordination.settle([due])
            return True
        except Corrupt as error:
            log.warning("an operation cannot be read", operation=operation_id, error=str(error))
            return False
        if not self._may_go_on(operation.kind):
            self._turns.remember(operation_id, operation.kind)
        elif operation.finished:
            # It goes for ever, so the time has to be a believed one.
            if await self._is_over(due.due_at):
                await self._store.forget(due)
            else:
                self._kept.add(operation_id)
        elif operation.kind not in self._steps.kinds:
            log.error("an operation of a kind that is not known", kind=operation.kind)
            return False
        elif self._turns.has_place_for(operation.kind):
            self._begin(operation)
        else:
            self._turns.remember(operation_id, operation.kind)
            self._turns.waits(due.due_at)
        return True

    async def settled(self) -> None:
        """Wait until nothing is under way in this process; for tests and for the stop."""
        while self._working:
            await asyncio.gather(*self._working.values(), return_exceptions=True)

    def _begin(self, operation: Operation) -> None:
        task = asyncio.create_task(self._steps.work(operation), name=operation.operation_id)
        self._working[operation.operation_id] = task
        self._turns.take(operation.operation_id, operation.kind)

        def ended(task: asyncio.Task[bool]) -> None:
            del self._working[operation.operation_id]
            moved = not task.cancelled() and task.result()
            self._turns.give_back(operation.operation_id, moved=moved)
            # Somebody may have waited for this one's place.
            self._news.set()

        task.add_done_callback(ended)
