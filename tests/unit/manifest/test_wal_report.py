"""What an operator is told of WAL objects: which there are, and what keeps the oldest."""

from support.leaderless import (
    OTHER_INSTANCE,
    WalWriter,
    a_leaderless_harness,
    a_leaderless_stream,
    publish_all,
)
from support.manifest import NEIGHBOUR, STREAM
from support.rebuilding import put
from unit.manifest.test_manifest_api import running

from bottomless.formats.keys import wal_key
from bottomless.model.names import Uid
from bottomless_server.coordination.base import Changes
from bottomless_server.leaderless.tail import shard_of
from bottomless_server.manifest.leaderless.wal_report import describe_wal
from bottomless_server.stores import wal


async def test_instances_with_their_objects_and_what_holds_the_oldest() -> None:
    harness = await a_leaderless_harness()
    await a_leaderless_stream(harness)
    await a_leaderless_stream(harness, NEIGHBOUR, "neighbour")
    writer = WalWriter(harness)
    await writer.begin()
    await writer.flush(STREAM, NEIGHBOUR)
    harness.clock.now += 1_000
    await writer.flush(STREAM)
    await publish_all(harness)
    await writer.release()

    told = await describe_wal(harness.context)

    (instance,) = told["instances"]
    assert (told["instance_count"], told["objects"]) == (1, 2)
    assert told["bytes"] == instance["bytes"] > 0
    assert (instance["state"], instance["objects"], instance["url"]) == (
        "live",
        2,
        "http://ingest-0",
    )
    assert (instance["deleted"], instance["settled"], instance["reserved"]) == (0, 2, 1_024)
    assert instance["oldest_at"] == "1970-01-01T00:16:40.000Z"
    assert instance["keep_until"] is None
    held = instance["held"]
    assert (held["sequence"], held["stream_count"]) == (0, 1)
    assert held["shards"] == [shard_of(NEIGHBOUR)]
    assert held["stream_ids"] == [NEIGHBOUR]


async def test_a_dead_one_one_that_cannot_be_read_and_one_that_is_forgotten() -> None:
    harness = await a_leaderless_harness()
    await a_leaderless_stream(harness)
    writer, other = WalWriter(harness), WalWriter(harness, OTHER_INSTANCE)
    for one in (writer, other):
        await one.begin()
    await writer.lapse()
    harness.coordination.write(Changes({wal.instance_key(OTHER_INSTANCE): b"damaged"}))
    await put(harness, wal_key(Uid("e" * 32), 7), b"late")

    told = await describe_wal(harness.context)

    found = {one["instance"]: one for one in told["instances"]}
    states = {instance: one["state"] for instance, one in found.items()}
    assert states == {
        writer.instance: "dead",
        OTHER_INSTANCE: "unreadable",
        Uid("e" * 32): "forgotten",
    }
    assert found[writer.instance]["held"] is None
    assert found[Uid("e" * 32)]["bytes"] == 4


async def test_it_is_asked_for_over_http() -> None:
    harness = await a_leaderless_harness()
    async with running(harness) as service:
        answer = await service.public.get("/v1/admin/wal")
    assert answer.status_code == 200
    assert answer.json() == {"instance_count": 0, "objects": 0, "bytes": 0, "instances": []}
