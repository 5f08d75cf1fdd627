"""What a later release wrote, or what is damaged, beside what is sound: it ends nothing for others.

All walks were tested with records of this very release, so that one value which did not decode
ended the page, or the question, for everything on it and after it. Each test here has one such
value beside sound ones.
"""

from functools import partial
from typing import Any

import pytest
from support.api_keys import a_harness, create, is_good, nobody_checks
from support.manifest import (
    NEIGHBOUR,
    NODE,
    OF_OTHERS,
    SERVES_NONE,
    STREAM,
    ManifestHarness,
    a_record,
    damage_a_neighbour,
    of_a_later_release,
)
from support.object_keys import fragment_key
from support.rebuilding import put, put_registry, rebuild
from unit.manifest.test_garbage import collect
from unit.manifest.test_manifest_api import Service, running
from unit.manifest.test_operations import OperationsHarness, work

from bottomless.model.api_key import KeyId
from bottomless.model.consumer import StoredOffset
from bottomless.model.names import Reference, StreamId, StreamName, Uid
from bottomless_server.coordination.base import Changes
from bottomless_server.manifest.consumers.consumer_snapshots import ConsumerSnapshots
from bottomless_server.manifest.keys.key_upkeep import KeyUpkeep
from bottomless_server.manifest.keys.keys import Keys
from bottomless_server.manifest.mutators.mutator import Mutators
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.recovery.home_operations import (
    ACCEPT_GAP,
    TAKEOVER,
    register_home_operations,
)
from bottomless_server.manifest.registry.registry import Registry
from bottomless_server.manifest.removal.retention_operations import (
    RETENTION,
    TRIM,
    register_retention,
)
from bottomless_server.manifest.streams.verify import VERIFY, register_verify
from bottomless_server.stores.consumers import ConsumerOffsets, consumer_key
from bottomless_server.stores.generation import check_generation
from bottomless_server.stores.keys import key_key
from bottomless_server.stores.operations import OPERATIONS_KEY, operation_key


@pytest.mark.parametrize("which", OF_OTHERS)
async def test_a_list_names_what_it_cannot_read_beside_its_items(which: str) -> None:
    async with running(ManifestHarness(SERVES_NONE)) as service:
        await look_at_a_list(service, which)


async def look_at_a_list(service: Service, which: str) -> None:
    ids = {}
    for name in ("a", "b", "c"):
        answer = await service.public.put(f"/v1/streams/{name}")
        ids[name] = answer.json()["stream_id"]
    await OF_OTHERS[which](service.harness, StreamId(ids["b"]))

    listed = (await service.public.get("/v1/streams")).json()
    assert [item["name"] for item in listed["items"]] == ["a", "c"]
    assert listed["unreadable"] == [{"name": "b", "stream_id": ids["b"], "code": "data-corrupt"}]
    assert listed["next_page_token"] is None

    assert await named_in_pages_of_one(service, "/v1/streams", "name") == ["a", "b", "c"]

    alone = await service.public.get("/v1/streams/b")
    assert (alone.status_code, alone.json()["code"]) == (502, "data-corrupt")


async def named_in_pages_of_one(service: Service, path: str, member: str) -> list[Any]:
    names: list[Any] = []
    query = "?limit=1"
    while True:
        page = (await service.public.get(f"{path}{query}")).json()
        names += [one[member] for one in (*page["items"], *page["unreadable"])]
        if page["next_page_token"] is None:
            return names
        query = f"?limit=1&page_token={page['next_page_token']}"


@pytest.mark.parametrize("which", OF_OTHERS)
async def test_a_question_for_many_names_is_answered_for_the_others(which: str) -> None:
    harness = ManifestHarness(SERVES_NONE)
    await harness.streams.create(a_record())
    await damage_a_neighbour(harness, count=0)
    await OF_OTHERS[which](harness)
    names = [a_record(name=StreamName(name)).full_name for name in ("orders", "damaged")]

    assert await Registry(harness.context).find_many(names) == {names[0]: STREAM}


async def test_operations_that_cannot_be_read_or_are_not_known_stop_no_others() -> None:
    harness = OperationsHarness()
    coordination = harness.manifest.coordination
    process = harness.process()
    for n in range(200):
        later = await process.begin("of a later release", tenant="default")
        if n % 2:
            key = operation_key(later.operation_id)
            coordination.write(Changes({key: b'{"format":99}'}))
    begun = await process.begin("count", tenant="default", arguments={"to": 1})

    for _ in range(5):
        await work(process)

    assert (await process.find(begun.operation_id)).finished
    # They are not lost: a release that knows them finds them in the queue.
    assert await coordination.member_count(OPERATIONS_KEY) == 201


@pytest.mark.parametrize("which", OF_OTHERS)
async def test_what_a_later_release_has_begun_with_its_stream_is_left_to_it(which: str) -> None:
    """Two releases run side by side, and whichever looks first carries an operation out: the older
    one said that it had failed for good."""
    harness = ManifestHarness(SERVES_NONE)
    await damage_a_neighbour(harness, count=0)
    await OF_OTHERS[which](harness)
    context = harness.context
    operations, mutators = Operations(context), Mutators(context)
    register_verify(operations)
    register_retention(operations, mutators)
    register_home_operations(operations, mutators, Registry(context))
    begun = [
        await operations.begin(kind, tenant="default", stream_id=NEIGHBOUR, arguments=arguments)
        for kind, arguments in OF_ONE_STREAM.items()
    ]

    await work(operations)

    for one in begun:
        found = await operations.find(one.operation_id)
        assert (found.kind, found.state, found.progress) == (one.kind, "running", {})
        assert found.error is not None
        assert found.error["code"] == "data-corrupt"
    await mutators.aclose()


OF_ONE_STREAM: dict[str, dict[str, Any]] = {
    VERIFY: {"checksums": False},
    TRIM: {"before_offset": 0, "allow_empty": False},
    RETENTION: {},
    TAKEOVER: {"home": NODE, "epoch": 1},
    ACCEPT_GAP: {"next_offset": 10},
}


@pytest.mark.parametrize("which", OF_OTHERS)
async def test_garbage_of_a_stream_whose_record_cannot_be_read_is_left_and_said(which: str) -> None:
    harness = ManifestHarness(SERVES_NONE)
    await harness.open()
    await damage_a_neighbour(harness, count=0)
    await OF_OTHERS[which](harness)
    mine, other = (fragment_key(one, 50, Uid("e" * 32)) for one in (STREAM, NEIGHBOUR))
    for key in (mine, other):
        await put(harness, key, b"something")

    result = await collect(harness)

    assert result["skipped"] == [{"stream_id": NEIGHBOUR, "code": "data-corrupt"}]
    assert result["orphan_count"] == 1
    assert harness.drive.has(other)


async def test_a_rebuild_goes_on_over_records_that_cannot_be_read() -> None:
    harness = ManifestHarness(SERVES_NONE)
    harness.streams.generation = await check_generation(harness.drive, harness.coordination)
    await harness.streams.create(a_record())
    await put_registry(harness, a_record())
    await of_a_later_release(harness, STREAM)
    # Coordination went back to a time before the bucket's generation.
    harness.coordination.write(Changes({"bottomless:generation": None}))

    result = await rebuild(harness)

    assert result["streams"] == 1
    assert (await harness.record()).name == "orders"
    assert await harness.streams.find(a_record().full_name) == STREAM


def keep(stored: StoredOffset, _: StoredOffset | None) -> StoredOffset:
    return stored


async def test_lists_of_keys_and_consumers_name_what_they_cannot_read_beside_their_items() -> None:
    async with running(ManifestHarness(SERVES_NONE)) as service:
        coordination, public = service.harness.coordination, service.public
        stream_id = (await public.put("/v1/streams/orders")).json()["stream_id"]
        ids = [
            (await public.post("/v1/keys", json={"scopes": ["read"]})).json()["key_id"]
            for _ in range(3)
        ]
        offsets = ConsumerOffsets(coordination)
        for name in map(Reference, ("a", "b", "c")):
            stored = StoredOffset(name, 0, 1, 1)
            await offsets.change(stream_id, name, partial(keep, stored), 1)
        damaged = {key_key(KeyId(ids[1])): b"{}", consumer_key(stream_id, Reference("b")): b"\xff"}
        coordination.write(Changes(damaged))

        for path, member, names in (
            ("/v1/keys", "key_id", sorted(ids)),
            ("/v1/streams/orders/consumers", "consumer", ["a", "b", "c"]),
        ):
            bad = ids[1] if member == "key_id" else "b"
            listed = (await public.get(path)).json()
            assert [one[member] for one in listed["items"]] == [n for n in names if n != bad]
            assert listed["unreadable"] == [{member: bad, "code": "data-corrupt"}]
            assert await named_in_pages_of_one(service, path, member) == names
            alone = await public.get(f"{path}/{bad}")
            assert (alone.status_code, alone.json()["code"]) == (502, "data-corrupt")


async def test_a_key_that_cannot_be_read_keeps_no_other_one_good_that_was_revoked() -> None:
    """Walks over keys were tested with sound records alone, and the first that did not decode ended
    them: a key revoked before coordination went back stayed good where it stood after that one."""
    harness = await a_harness()
    keys = Keys(harness.context)
    issued = []
    for _ in range(3):
        issued.append(await create(keys))
        harness.clock.now += 10
    bad, *others = sorted(issued, key=lambda one: one.key.key_id)
    before = harness.coordination.copy()
    for one in others:
        await keys.revoke(one.key.key_id, nobody_checks)
    harness.coordination.put_back(before)
    value = b'{"format":99}'
    harness.coordination.write(Changes({key_key(bad.key.key_id): value}))

    upkeep = KeyUpkeep(harness.context, keys)
    await upkeep.make_pass()

    assert not any([await is_good(harness, one.credential) for one in others])
    assert await harness.coordination.get(key_key(bad.key.key_id)) == value
    assert harness.context.counts.unreadable_keys == 1
    # It is not begun anew by every pass, which would list all keys each time.
    harness.drive.list = None  # type: ignore[assignment, method-assign]
    await upkeep.make_pass()


@pytest.mark.parametrize("is_known", [True, False], ids=["was readable before", "never was"])
async def test_a_consumer_that_cannot_be_read_keeps_no_other_one_out_of_snapshots(
    is_known: bool,
) -> None:
    """Snapshots were tested with sound offsets alone: one that did not decode ended all of its
    stream's, and a rebuild put every consumer back to before."""
    harness = await a_harness()
    record = a_record()
    await harness.streams.create(record)
    await put_registry(harness, record)
    offsets, snapshots = ConsumerOffsets(harness.coordination), ConsumerSnapshots(harness.context)
    audit, billing = Reference("audit"), Reference("billing")

    async def commit(consumer: Reference, next_offset: int) -> None:
        stored = StoredOffset(consumer, next_offset, harness.clock.now, next_offset)
        await offsets.change(STREAM, consumer, partial(keep, stored), harness.clock.now)

    await commit(audit, 10)
    await commit(billing, 10)
    if is_known:
        await snapshots.make_pass()
    value = b'{"format":99}'
    harness.coordination.write(Changes({consumer_key(STREAM, audit): value}))
    for next_offset in (20, 30):
        harness.clock.now += 1_000
        await commit(billing, next_offset)
        await snapshots.make_pass()

    assert await harness.coordination.get(consumer_key(STREAM, audit)) == value
    assert harness.context.counts.unreadable_consumers == 2
    harness.coordination.lose()
    await rebuild(harness)
    restored = {one.consumer: one.next_offset for one in await offsets.all(STREAM)}
    assert restored == {billing: 30} | ({audit: 10} if is_known else {})
