"""A manifest service that serves leaderless streams reads their records everywhere.

Which features are served is said once, in app.py; each of these paths has a decoder of its own below it.
"""

from dataclasses import replace

from support.leaderless import a_leaderless_harness, a_leaderless_record, a_leaderless_stream
from support.manifest import STREAM
from support.object_keys import registry_key
from support.rebuilding import put_registry
from unit.manifest.test_garbage import collect
from unit.manifest.test_manifest_api import running

from bottomless.model.stream import StreamState
from bottomless_server.manifest.recovery.bucket_streams import look_at_some
from bottomless_server.manifest.registry.registry import Registry
from bottomless_server.stores.streams import DELETES_KEY


async def test_it_is_listed_and_described() -> None:
    harness = await a_leaderless_harness()
    await a_leaderless_stream(harness)
    async with running(harness) as service:
        listed = (await service.public.get("/v1/streams")).json()
        assert ([item["name"] for item in listed["items"]], listed["unreadable"]) == (
            ["orders"],
            [],
        )
        assert (await service.public.get("/v1/streams/orders")).status_code == 200


async def test_it_has_consumers() -> None:
    harness = await a_leaderless_harness()
    await a_leaderless_stream(harness)
    async with running(harness) as service:
        answer = await service.public.put(
            "/v1/streams/orders/consumers/billing/offset", json={"next_offset": 0}
        )
        assert answer.status_code == 200, answer.text


async def test_its_registry_objects_replace_each_other() -> None:
    harness = await a_leaderless_harness()
    record = await a_leaderless_stream(harness)
    registry = Registry(harness.context)
    await registry.ensure_object(record)
    changed = replace(record, registry_version=2)
    await harness.streams.update(STREAM, lambda _: changed)

    await registry.ensure_object(changed)

    (due,) = await harness.coordination.due(DELETES_KEY, 2**52, 10)
    assert due.member == registry_key(STREAM, 1).encode()


async def test_what_is_left_of_a_deleted_one_is_garbage() -> None:
    harness = await a_leaderless_harness()
    tombstone = a_leaderless_record(state=StreamState.DELETING)
    await put_registry(harness, tombstone)

    result = await collect(harness)

    assert result["orphan_count"] == 1
    assert result["unknown_prefix_count"] == 0


async def test_a_rebuild_can_read_it() -> None:
    harness = await a_leaderless_harness()
    await put_registry(harness, a_leaderless_record())

    assert await look_at_some(harness.drive, harness.context.served, {})
