"""A rebuild of coordination, from a process's start to its end, on the stores of one test."""

from collections.abc import Awaitable, Callable
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final

from bottomless.formats.checks import crc32c
from bottomless.formats.keys import generation_key
from bottomless.formats.stream_record import SERVED, encode_registry
from bottomless.model.names import TENANT_DEFAULT
from bottomless.model.stream import EpochStart, StreamRecord
from bottomless_server.coordination.base import Changes, Coordination
from bottomless_server.manifest.mutators.sessions import begin, intend
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.operations.steps import Again, Done
from bottomless_server.manifest.recovery.rebuild import KIND, Rebuild
from bottomless_server.manifest.tree.committer import Committer
from bottomless_server.stores.generation import check_generation
from bottomless_server.stores.operations import OPERATIONS_KEY, OperationStore, new_operation
from bottomless_server.stores.rebuild_step import RebuildStep
from bottomless_server.stores.streams import DELETES_KEY, GENERATION_KEY
from support.manifest import NODE, STREAM, Fault, ManifestHarness, a_record
from support.object_keys import registry_key


async def put(harness: ManifestHarness, object_key: str, data: bytes) -> None:
    await harness.drive.put(object_key, [data], crc32c(data))


_WAIT_COUNT_MAX: Final = 1_000
"""A rebuild may wait for each drive in turn, and no longer than that is away."""


async def put_registry(harness: ManifestHarness, record: StreamRecord) -> None:
    key = registry_key(record.stream_id, record.registry_version, tenant=record.tenant)
    await put(harness, key, encode_registry(record))


async def nothing() -> None:
    pass


async def rebuild(
    harness: ManifestHarness, when_it_waits: Callable[[], Awaitable[None]] | None = None
) -> dict[str, object]:
    """One process from its start to the end of the rebuild; `when_it_waits` is called where it waits
    for a drive."""
    operations = Operations(harness.context)
    rebuilding = Rebuild(harness.context, operations, nothing, stream_count=1)
    operation = await rebuilding.begin(TENANT_DEFAULT)
    store = OperationStore(harness.coordination)
    wait_count = 0
    while isinstance(outcome := await rebuilding.step(harness.context, operation), Again):
        if outcome.due_at and when_it_waits is not None:
            await when_it_waits()
            wait_count += 1
            assert wait_count < _WAIT_COUNT_MAX, f"a rebuild waits for ever: {outcome.progress}"
        operation = await store.move(operation, 0, 0, progress=dict(outcome.progress))
    assert isinstance(outcome, Done)
    await store.forget(
        next(
            due
            for due in await harness.coordination.due(OPERATIONS_KEY, 2**52, 100)
            if due.member.decode() == operation.operation_id
        )
    )
    harness.streams.generation = await check_generation(harness.drive, harness.coordination)
    return dict(outcome.result)


async def a_step(coordination: Coordination, generation: int) -> RebuildStep:
    """A step of a rebuild to a generation that is under way, as far as coordination knows."""
    operation = new_operation("9" * 32, KIND, 0, tenant="x", arguments={"generation": generation})
    await OperationStore(coordination).enter(operation)
    return RebuildStep(generation, operation)


async def agree(harness: ManifestHarness, generation: int) -> None:
    """Let bucket and coordination have a generation, as at the end of a rebuild."""
    key, value = generation_key(generation), b'{"generation":%d}' % generation
    if not harness.drive.has(key):
        await put(harness, key, value)
    confirmed = b'{"generation":%d,"bucket":true}' % generation
    harness.coordination.write(Changes({GENERATION_KEY: confirmed}))
    harness.streams.generation = await check_generation(harness.drive, harness.coordination)


async def publish(
    harness: ManifestHarness, *first_offsets: int, epoch: int = 1, in_vain: bool = False
) -> None:
    """Publish real fragments of ten records each; or put them and their root, and die of the EXEC."""
    committer = await Committer.open(harness.context, STREAM)
    await begin(harness.context, committer, "s1")
    uids = await intend(harness.context, committer, "s1", first_offsets)
    infos = [
        await harness.put_fragment(uid, first, epoch=epoch, timestamp=1_000 + first)
        for uid, first in zip(uids, first_offsets, strict=True)
    ]
    assert await committer.register("s1", infos) == ()
    harness.coordination.faults = [Fault.UNAVAILABLE] if in_vain else []
    await committer.flush()


async def next_owner(harness: ManifestHarness) -> None:
    """Another owner begins at the end of what is published."""

    def take(record: StreamRecord) -> StreamRecord:
        start = EpochStart(record.epoch + 1, record.published_next)
        return replace(record, epoch=start.epoch, epochs=(*record.epochs, start))

    await harness.streams.update(STREAM, take)


async def a_harness(
    *first_offsets: int, fanout: int = 2, served: AbstractSet[str] = SERVED
) -> ManifestHarness:
    """A bucket with one stream at home on NODE, and what it has published."""
    harness = ManifestHarness(served, manifest_fanout=fanout)
    harness.streams.generation = await check_generation(harness.drive, harness.coordination)
    record = a_record(home=NODE)
    await harness.streams.create(record)
    await put_registry(harness, record)
    if first_offsets:
        await publish(harness, *first_offsets)
    return harness


async def firsts(harness: ManifestHarness) -> list[int]:
    return [leaf.first_offset for leaf in await harness.leaves()]


async def doomed(harness: ManifestHarness) -> set[str]:
    dues = await harness.coordination.due(DELETES_KEY, 2**52, 1_000)
    return {due.member.decode() for due in dues}
