"""Creating super streams, over every coordination store, while others take one of their names."""

import asyncio
from dataclasses import replace

import pytest
from support.manifest import a_record

from bottomless.errors import Exists, NotFound
from bottomless.model.config import StreamConfig
from bottomless.model.names import FullName, StreamId, StreamName, SuperId
from bottomless.model.routing import SEED, Strategy
from bottomless.model.stream import PartitionOf, StreamRecord, StreamState
from bottomless.model.super_stream import Layout, Partition, SuperRecord, SuperState
from bottomless_server.coordination.base import Changes, IndexFull, Values
from bottomless_server.stores.streams import GENERATION_KEY, Streams
from bottomless_server.stores.supers import Supers, room_for_partitions
from contracts.conftest import Shared

_COUNT = 5
_ROUNDS = 8
NAME = FullName("default", StreamName("events"))


def an_id(number: int) -> StreamId:
    return StreamId(f"0198d2a4-5b1e-7c3a-9a51-{number:012x}")


def a_super(number: int) -> tuple[SuperRecord, list[StreamRecord]]:
    """A super stream called `events`, with ids of this number, and its partitions."""
    places = tuple(
        Partition(index, an_id(100 * number + index), StreamName(f"events-{index}"))
        for index in range(_COUNT)
    )
    record = SuperRecord(
        SuperId(an_id(100 * number + 99)),
        NAME.name,
        NAME.tenant,
        SuperState.ACTIVE,
        0,
        Strategy.HASH,
        SEED,
        (Layout(1, _COUNT, 0),),
        places,
        StreamConfig(),
        generation=3,
    )
    partitions = [
        StreamRecord(
            one.stream_id,
            one.name,
            NAME.tenant,
            StreamState.ACTIVE,
            0,
            StreamConfig(),
            generation=3,
            partition_of=PartitionOf(record.super_id, one.index),
        )
        for one in places
    ]
    return record, partitions


@pytest.fixture
async def stores(shared: Shared) -> tuple[Streams, Supers]:
    def change(_: Values) -> tuple[Changes, None]:
        return Changes({GENERATION_KEY: b'{"generation":3,"bucket":true}'}), None

    await shared.coordination.transact([GENERATION_KEY], change)
    streams = Streams(shared.coordination)
    streams.generation = 3
    return streams, Supers(shared.coordination, streams)


async def create(supers: Supers, number: int, count_max: int = 1_000) -> bool:
    record, partitions = a_super(number)
    try:
        await supers.create(record, partitions, room_for_partitions(partitions, count_max))
    except Exists:
        return False
    return True


async def test_of_many_that_create_one_at_once_one_does(stores: tuple[Streams, Supers]) -> None:
    streams, supers = stores
    made = await asyncio.gather(*(create(supers, number) for number in range(_ROUNDS)))
    assert sum(made) == 1
    record, partitions = a_super(made.index(True))
    assert await supers.load(await supers.find(NAME)) == record
    assert [await streams.load(one.stream_id) for one in partitions] == partitions
    named = await streams.names("default", StreamState.ACTIVE, b"", 100)
    assert [one.stream_id for one in named] == [one.stream_id for one in partitions]
    assert [one.name for one in await supers.names("default", b"", 100)] == ["events"]


async def test_one_name_that_is_taken_meanwhile_leaves_nothing_of_it(
    stores: tuple[Streams, Supers],
) -> None:
    streams, supers = stores
    taken = replace(a_record(), name=StreamName("events-3"), generation=3)

    async def take() -> bool:
        try:
            await streams.create(taken)
        except Exists:
            return False
        return True

    made = await asyncio.gather(create(supers, 0), take(), create(supers, 1))
    assert sum(made) == 1
    named = await streams.names("default", StreamState.ACTIVE, b"", 100)
    assert len(named) == (1 if made[1] else _COUNT)
    if made[1]:
        with pytest.raises(NotFound):
            await supers.find(NAME)


async def test_what_has_no_room_as_a_whole_leaves_nothing(stores: tuple[Streams, Supers]) -> None:
    streams, supers = stores
    await streams.create(replace(a_record(), generation=3))
    with pytest.raises(IndexFull):
        await create(supers, 0, _COUNT)
    assert len(await streams.names("default", StreamState.ACTIVE, b"", 100)) == 1
    assert await create(supers, 0, _COUNT + 1)
