"""Processes that rebuild the coordination of one test, of which any may stop at any request to a store.

A process is a task here. Who is paused goes on later, not knowing what happened meanwhile, as after
SIGSTOP or a slow answer; who is ended is gone for good.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any

from bottomless.errors import NotFound, StoreError
from bottomless.model.consumer import StoredOffset
from bottomless.model.names import TENANT_DEFAULT, Reference, StreamId
from bottomless.model.object_facts import ObjectFacts
from bottomless.model.stream import StreamRecord, is_unknown_epoch
from bottomless_server.coordination.base import Changes
from bottomless_server.manifest.keys.keys import Issued, Keys
from bottomless_server.manifest.mutators.retention import trim
from bottomless_server.manifest.mutators.sessions import begin, intend
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.operations.steps import Again, Done
from bottomless_server.manifest.recovery.rebuild import Rebuild
from bottomless_server.manifest.streams.deletion import KIND as DELETION
from bottomless_server.manifest.tree.committer import Committer
from bottomless_server.node.core.ownership import LocalView, claim, reserve
from bottomless_server.stores.consumers import ConsumerOffsets
from bottomless_server.stores.generation import check_generation
from bottomless_server.stores.operations import Operation, OperationState, OperationStore
from bottomless_server.stores.streams import delete_later
from support.api_keys import HOUR_MS, create, nobody_checks
from support.manifest import NODE, OWNER, STREAM, ManifestHarness
from support.rebuilding import a_harness, firsts, nothing

_READS = ("get", "get_many", "members", "due", "due_at", "transact", "settle")


class Pause:
    """Where one process stands still: before its n-th request to a store, of those like a pattern."""

    def __init__(self, at: int, like: str) -> None:
        self._left = at
        self._like = re.compile(like)
        self.asleep = asyncio.Event()
        self._woken = asyncio.Event()
        self.request = ""
        """What it was about to ask."""

    async def pass_by(self, request: str) -> None:
        if not self._like.match(request):
            return
        self._left -= 1
        if self._left == -1:
            self.request = request
            self.asleep.set()
            await self._woken.wait()

    def wake(self) -> None:
        self._woken.set()


_MINE: ContextVar[Pause | None] = ContextVar("pause", default=None)


def let_pause(manifest: ManifestHarness) -> None:
    """From now on whatever runs with a `Pause` of its own passes by it with each request."""
    for name in _READS:
        setattr(manifest.coordination, name, _passing(getattr(manifest.coordination, name), name))
    for name in ("get", "put", "delete"):
        setattr(manifest.drive, name, _passing(getattr(manifest.drive, name), name))
    real = manifest.drive.list

    async def listing(prefix: str, after: str = "") -> AsyncIterator[ObjectFacts]:
        await _pass_by(f"list {prefix}")
        async for one in real(prefix, after):
            yield one

    manifest.drive.list = listing  # type: ignore[assignment, method-assign]


def _passing(real: Callable[..., Awaitable[Any]], name: str) -> Callable[..., Awaitable[Any]]:
    async def call(*arguments: Any, **named: Any) -> Any:
        await _pass_by(f"{name} {arguments[0]}")
        return await real(*arguments, **named)

    return call


async def _pass_by(request: str) -> None:
    pause = _MINE.get()
    if pause is not None:
        await pause.pass_by(request)


async def carry_out(manifest: ManifestHarness, operation: Operation | None = None) -> Operation:
    """Ask for a rebuild, unless that was done, and do its steps as long as nobody else does.

    Raises:
        StoreError: this process cannot go on with it.
    """
    rebuilding = Rebuild(manifest.context, Operations(manifest.context), nothing, stream_count=1)
    if operation is None:
        operation = await rebuilding.begin(TENANT_DEFAULT)
    store, now = OperationStore(manifest.coordination), manifest.clock.now
    while isinstance(outcome := await rebuilding.step(manifest.context, operation), Again):
        operation = await store.move(operation, 0, now, progress=dict(outcome.progress))
    if isinstance(outcome, Done):
        end, told = OperationState.SUCCEEDED, dict(outcome.result)
    else:
        end, told = OperationState.FAILED, {}
    return await store.move(operation, now + HOUR_MS, now, state=end, result=told)


@asynccontextmanager
async def paused(
    manifest: ManifestHarness, at: int, work: Callable[[], Awaitable[Any]], like: str = ""
) -> AsyncIterator[tuple[Pause, "asyncio.Task[Any]"] | None]:
    """A process that is paused at one of its requests; None where it ended before that."""
    pause = Pause(at, like)

    async def process() -> Any:
        _MINE.set(pause)
        return await work()

    task = asyncio.create_task(process())
    asleep = asyncio.create_task(pause.asleep.wait())
    await asyncio.wait({task, asleep}, return_when=asyncio.FIRST_COMPLETED)
    try:
        yield (pause, task) if pause.asleep.is_set() else None
    finally:
        for one in (task, asleep):
            one.cancel()
        await asyncio.gather(task, asleep, return_exceptions=True)


async def goes_on(pause: Pause, task: "asyncio.Task[Any]") -> Any:
    """Who was paused wakes up, and does all that it still can; its result, None if it was refused."""
    pause.wake()
    with suppress(StoreError):
        return await task
    return None


class RebuildHarness:
    """A stream with its home, a consumer and an API key, and the list of what they were told."""

    def __init__(self, manifest: ManifestHarness, key: Issued) -> None:
        self.manifest = manifest
        self.published = [0, 10, 20]
        self.good = key
        self.replaced: list[Issued] = []

    @classmethod
    async def begin(cls) -> "RebuildHarness":
        manifest = await a_harness(0, 10, 20)
        harness = cls(manifest, await create(Keys(manifest.context)))
        let_pause(manifest)
        return harness

    def lose(self) -> None:
        """Coordination is empty, and every process knows it."""
        self.manifest.coordination.lose()
        self.manifest.streams.generation = None

    async def has_generation(self) -> bool:
        """Whether coordination may be believed again; then every process does."""
        try:
            generation = await check_generation(self.manifest.drive, self.manifest.coordination)
        except StoreError:
            return False
        self.manifest.streams.generation = generation
        return True

    async def recover(self) -> None:
        """Have a rebuild brought to its end, unless only that was not noted."""
        if not await self.has_generation():
            await self.rebuild()

    async def rebuild(self) -> Operation:
        """A process that nobody pauses goes on with a rebuild, until one succeeds."""
        for _ in range(3):
            done = await carry_out(self.manifest)
            if done.state is OperationState.SUCCEEDED:
                break
        assert done.state is OperationState.SUCCEEDED
        assert await self.has_generation()
        return done

    async def trim(self) -> None:
        """Remove the first fragment."""
        committer = await Committer.open(self.manifest.context, STREAM)
        await trim(self.manifest.context, committer, 10, allow_empty=False)

    async def live(self) -> Operation:
        """The home goes on, and is lost and found; a secret leaks; a consumer commits."""
        manifest = self.manifest

        def own(record: StreamRecord) -> StreamRecord:
            end = record.published_next
            local = LocalView(end, False, record.epoch, record.version, end)
            return claim(record, NODE, OWNER, local, home_held=False)

        record = await manifest.record()
        if is_unknown_epoch(record.epoch):
            record = await manifest.streams.update(STREAM, own)
        for _ in range(2):
            end = self.published[-1] + 10
            await manifest.streams.update(
                STREAM, partial(reserve, epoch=record.epoch, next_offset=end + 10)
            )
            await self._publish(end, record.epoch)
            self.published.append(end)
        manifest.clock.now += HOUR_MS
        self.replaced.append(self.good)
        self.good = await Keys(manifest.context).rotate(self.good.key.key_id, 0, nobody_checks)
        billing = Reference("billing")
        commit = StoredOffset(billing, 17, manifest.clock.now, manifest.clock.now)
        offsets = ConsumerOffsets(manifest.coordination)
        await offsets.change(STREAM, billing, lambda _: commit, manifest.clock.now)
        manifest.coordination.write(Changes(queued=[delete_later("default/x/data/old", 5)]))
        stream_id = StreamId("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c99")
        return await Operations(manifest.context).begin(DELETION, tenant="x", stream_id=stream_id)

    async def _publish(self, first_offset: int, epoch: int) -> None:
        manifest = self.manifest
        committer = await Committer.open(manifest.context, STREAM)
        await begin(manifest.context, committer, "s1")
        [uid] = await intend(manifest.context, committer, "s1", [first_offset])
        info = await manifest.put_fragment(
            uid, first_offset, epoch=epoch, timestamp=1_000 + first_offset
        )
        assert await committer.register("s1", [info]) == ()
        await committer.flush()

    def seen(self) -> Any:
        """All that coordination holds."""
        stored = self.manifest.coordination.copy()
        return (
            {key: kept.value for key, kept in stored.values.items()},
            {key: queue for key, queue in stored.queues.items() if queue},
            {key: index for key, index in stored.indexes.items() if index},
        )

    async def all_is_there(self) -> None:
        """What was published is, and the last secret alone is good."""
        assert await firsts(self.manifest) == self.published
        keys = Keys(self.manifest.context).records
        try:
            record = await keys.find(self.good.key.key_id)
        except NotFound as error:
            raise AssertionError("an API key is gone") from error
        assert record.key.secrets == self.good.key.secrets
