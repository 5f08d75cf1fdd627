"""A super stream called `events`, on the harness of ingest."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import httpx

from bottomless.client.tables import frames_body
from bottomless.formats.batch import decode_frames
from bottomless.formats.chunk import batches_of, split_chunks
from bottomless.model.config import StreamConfig
from bottomless.model.names import TENANT_DEFAULT, FullName, StreamId, StreamName, SuperId
from bottomless.model.routing import SEED, Strategy
from bottomless.model.rows import Rows
from bottomless.model.stream import PartitionOf, StreamRecord, StreamState
from bottomless.model.super_stream import Layout, Partition, SuperRecord, SuperState
from bottomless_server.ingest.local.appender import LocalAppender
from bottomless_server.protocol.parts import PARTS, PARTS_MEDIA_TYPE, PartAsked
from bottomless_server.protocol.paths import of_stream
from bottomless_server.protocol.tail import CHUNKS, ChunksAsked
from bottomless_server.stores.supers import room_for_partitions
from unit.ingest.harness import STREAM, IngestHarness

EVENTS = StreamName("events")
FULL_EVENTS = FullName(TENANT_DEFAULT, EVENTS)
ROUTE = f"/v1/super-streams/{EVENTS}/records"
SUPER_ID = SuperId("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c99")
ALONE = StreamConfig()
"""Of partitions that lie on one node each."""
TEN = [f"hello{number}" for number in range(1, 11)]


def an_id(index: int) -> StreamId:
    return StreamId(f"0198d2a4-5b1e-7c3a-9a51-{index + 1:012x}")


def a_super(count: int, binding_keys: Sequence[str] | None = None) -> SuperRecord:
    """A super stream of so many partitions, by its first layout."""
    return SuperRecord(
        SUPER_ID,
        EVENTS,
        TENANT_DEFAULT,
        SuperState.ACTIVE,
        0,
        Strategy.HASH if binding_keys is None else Strategy.KEY,
        SEED,
        (Layout(1, count, 0),),
        tuple(a_place(index, binding_keys) for index in range(count)),
        StreamConfig(),
    )


def a_place(index: int, binding_keys: Sequence[str] | None = None) -> Partition:
    name = StreamName(f"{EVENTS}-{index}")
    return Partition(
        index, an_id(index), name, None if binding_keys is None else binding_keys[index]
    )


def a_partition(place: Partition, config: StreamConfig = ALONE) -> StreamRecord:
    return StreamRecord(
        place.stream_id,
        place.name,
        TENANT_DEFAULT,
        StreamState.ACTIVE,
        0,
        config,
        partition_of=PartitionOf(SUPER_ID, place.index),
    )


async def declare_super(
    harness: IngestHarness,
    count: int = 3,
    binding_keys: Sequence[str] | None = None,
    config: StreamConfig = ALONE,
) -> None:
    record = replace(a_super(count, binding_keys), config=config)
    partitions = [a_partition(place, config) for place in record.partitions]
    await harness.supers.create(record, partitions, room_for_partitions(partitions, 1_000))


async def grow(harness: IngestHarness, count: int, at: int, *, tells: bool = True) -> None:
    """What manifest does for more partitions, between its two EXECs and with them; unless it `tells`
    owners, none of them has answered, and their leases are over."""
    await harness.supers.update(SUPER_ID, lambda one: replace(one, state=SuperState.GROWING))
    record = await harness.supers.load(SUPER_ID)
    layout = Layout(record.layouts[-1].version + 1, count, at)
    for place in record.partitions if tells else ():
        partition = await harness.service.owners.at(place.stream_id)
        await partition.fence_layouts(layout.version)
    new = [a_place(index) for index in range(len(record.partitions), count)]
    for place in new:
        await harness.streams.create(a_partition(place))
    await harness.supers.update(
        SUPER_ID,
        lambda one: replace(
            one,
            state=SuperState.ACTIVE,
            layouts=(*one.layouts, layout),
            partitions=(*one.partitions, *new),
        ),
    )


async def send(harness: IngestHarness, keys: Sequence[str], **headers: object) -> httpx.Response:
    """Append a record for each key, whose value is its number and its key."""
    records = [{"value": f"{number} {key}", "key": key} for number, key in enumerate(keys)]
    named = {name.replace("_", "-"): str(value) for name, value in headers.items()}
    return await harness.client.post(ROUTE, json={"records": records}, headers=named)


async def send_part(
    harness: IngestHarness, index: int | None, layout: int, size: int = 1
) -> httpx.Response:
    """Send a part to a partition as another node does; without an index to a stream that is none."""
    path = of_stream(PARTS, STREAM if index is None else an_id(index))
    return await harness.internal.post(
        path,
        params=PartAsked(layout).params(),
        content=frames_body(Rows([b"x" * size], [0], [b"hello2"])),
        headers={"content-type": PARTS_MEDIA_TYPE},
    )


async def values(harness: IngestHarness, index: int) -> list[str]:
    """The values of all records of a partition, in their order."""
    path = of_stream(CHUNKS, an_id(index))
    answer = await harness.internal.get(path, params=ChunksAsked(0).params())
    assert answer.status_code == 200, answer.text
    rows: list[Any] = []
    for header, chunk in split_chunks(answer.content):
        for batch in decode_frames(batches_of(header, chunk)):
            rows += batch.to_pylist()
    return [row["value"].decode() for row in rows]


async def all_values(harness: IngestHarness, count: int = 3) -> list[str]:
    return sorted([value for index in range(count) for value in await values(harness, index)])


def appender_of(harness: IngestHarness, index: int) -> LocalAppender:
    found = harness.service.streams.find(an_id(index))
    assert found is not None
    return found
