"""A rebuild of coordination, from a process's start to its end, on the stores of one test."""

from bottomless.formats.checks import crc32c
from bottomless.formats.stream_record import encode_registry
from bottomless.model.names import TENANT_DEFAULT
from bottomless.model.stream import StreamRecord
from bottomless.stores.generation import check_generation
from bottomless.stores.operations import OPERATIONS_KEY, OperationStore
from bottomless_server.manifest.operations import Again, Operations
from bottomless_server.manifest.rebuild import Rebuild
from support.manifest import World
from support.object_keys import registry_key


async def put(world: World, object_key: str, data: bytes) -> None:
    await world.drive.put(object_key, [data], crc32c(data))


async def put_registry(world: World, record: StreamRecord) -> None:
    key = registry_key(record.stream_id, record.registry_version, tenant=record.tenant)
    await put(world, key, encode_registry(record))


async def nothing() -> None:
    pass


async def rebuild(world: World) -> dict[str, object]:
    """One process from its start to the end of the rebuild."""
    operations = Operations(world.context)
    rebuilding = Rebuild(world.context, operations, nothing, stream_count=1)
    operation = await rebuilding.begin(TENANT_DEFAULT)
    store = OperationStore(world.coordination)
    while isinstance(outcome := await rebuilding.step(world.context, operation), Again):
        operation = await store.move(operation, 0, 0, progress=dict(outcome.progress))
    await store.forget(
        (await world.coordination.due(OPERATIONS_KEY, 2**52, 10))[0]
        if not outcome.result["deleted_streams"]
        else next(
            due
            for due in await world.coordination.due(OPERATIONS_KEY, 2**52, 10)
            if due.member.decode() == operation.operation_id
        )
    )
    world.streams.generation = await check_generation(world.drive, world.coordination)
    return dict(outcome.result)
