"""Super streams whose partitions lie on several nodes, and on several drives."""

from dataclasses import replace
from typing import Any

import orjson
import pytest
from support.drives import a_table, register, take_away
from support.manifest import NODE, Crash, ManifestHarness
from support.rebuilding import agree, rebuild
from unit.manifest.test_manifest_api import running
from unit.manifest.test_super_growth import FIVE, Growing
from unit.manifest.test_super_registry import NAME, THREE, a_harness, named, super_objects

from bottomless.errors import Corrupt, NotServed
from bottomless.formats.stream_record import REPLICAS, SERVED, TIERS
from bottomless.model.config import ReplicationConfig, StreamConfig, parse_config
from bottomless.model.names import NodeId, StreamName
from bottomless.model.stream import StreamRecord
from bottomless_server.coordination.base import Changes
from bottomless_server.manifest.mutators.mutator import Mutators
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.recovery.bucket_streams import look_at_some
from bottomless_server.manifest.registry.registry import Registry
from bottomless_server.manifest.removal.drive_loss import DriveLoss
from bottomless_server.manifest.removal.drive_retirement import DriveRetirement
from bottomless_server.node.core.in_sync import Refusal, Refused, with_member, without_member
from bottomless_server.stores.node_facts import NodeFacts, encode_facts, facts_key
from bottomless_server.stores.streams import node_key, stream_key
from bottomless_server.stores.supers import super_key

EVENTS = "/v1/super-streams/events"
B, C, D = (NodeId(letter * 32) for letter in "bcd")
ASKED: dict[str, Any] = {
    "replication": {"replicas": 3},
    "tiers": [{"drive": "default", "max_age": "1D"}, {"drive": "d7"}],
}
PLACED = parse_config(ASKED, tiered=True)


async def with_drives(**settings: object) -> ManifestHarness:
    harness = ManifestHarness(**settings)
    harness.use_drives(await a_table(harness.drive, 7))
    await register(harness.drive, 7)
    return harness


async def configs(harness: ManifestHarness, count: int = 3) -> list[StreamConfig]:
    registry = Registry(harness.context)
    return [(await registry.find(named(index))).config for index in range(count)]


async def test_what_is_said_of_a_super_stream_counts_for_each_partition() -> None:
    harness = await with_drives()
    async with running(harness) as service:
        made = await service.public.put(EVENTS, json={"partitions": 3, **ASKED})
        assert made.status_code == 201, made.text
        assert made.json()["replication"] == {"replicas": 3, "min_in_sync": None}
        assert [tier["drive"] for tier in made.json()["tiers"]] == ["default", "d7"]
        again = await service.public.put(EVENTS, json={"partitions": 3, **ASKED})
        assert (again.status_code, again.json()) == (200, made.json())
        other = {"partitions": 3, **ASKED, "replication": {"replicas": 2}}
        differs = (await service.public.put(EVENTS, json=other)).json()
        assert differs["differences"] == ["/replication/replicas"]
        assert await configs(harness) == [PLACED] * 3

        patch = {"replication": None, "tiers": [{"drive": "d7"}]}
        changed = await service.public.patch(EVENTS, json=patch, headers={"if-match": "*"})
        assert changed.status_code == 200, changed.text
        assert changed.json()["replication"]["replicas"] == 1
        listed = (await service.public.get("/v1/super-streams")).json()["items"]
        assert listed[0]["tiers"] == changed.json()["tiers"]
    assert await configs(harness) == [parse_config({"tiers": [{"drive": "d7"}]}, tiered=True)] * 3


async def test_where_nothing_is_said_the_server_says_how_many_nodes_hold_a_partition() -> None:
    harness = await with_drives(manifest_replicas=3)
    async with running(harness) as service:
        made = await service.public.put(EVENTS, json={"partitions": 3})
        assert made.json()["replication"]["replicas"] == 3
        assert (await service.public.put(EVENTS, json={"partitions": 3})).status_code == 200
        single = {"partitions": 1, "replication": {"replicas": 1}}
        alone = await service.public.put("/v1/super-streams/alone", json=single)
        assert alone.json()["replication"]["replicas"] == 1
    assert [one.replication.replicas for one in await configs(harness)] == [3] * 3


async def test_no_partition_has_a_policy_of_drives_that_are_not_there() -> None:
    harness = await with_drives()
    tiers = {"tiers": [{"drive": "default", "max_age": "1D"}, {"drive": "d8"}]}
    async with running(harness) as service:
        made = await service.public.put(EVENTS, json={"partitions": 3, **tiers})
        assert (await service.public.get(EVENTS)).status_code == 404
        await service.public.put(EVENTS, json={"partitions": 3})
        changed = await service.public.patch(EVENTS, json=tiers, headers={"if-match": "*"})
    for answer in (made, changed):
        assert (answer.status_code, answer.json()["code"]) == (422, "drive-unknown")
        assert [one["pointer"] for one in answer.json()["errors"]] == ["/tiers/1/drive"]
    assert await configs(harness) == [StreamConfig()] * 3


async def test_partitions_that_come_by_growth_are_as_those_that_there_are() -> None:
    process = Growing(a_harness(manifest_close_ms=0))
    await process.registry.supers.declare(NAME, THREE._replace(config=PLACED))
    record, operation = await process.grow()
    assert (operation, record.config) == (None, PLACED)
    assert await configs(process.harness, 5) == [PLACED] * 5


async def test_a_change_beside_a_growth_reaches_the_partitions_that_come() -> None:
    """The new ones were entered with what was said before; nobody finds them so."""
    process = Growing(a_harness(manifest_close_ms=0))
    await process.registry.supers.declare(NAME, THREE)
    harness = process.harness
    # The first EXEC alone, as a crash after it leaves it.
    harness.fuse.left = 1
    with pytest.raises(Crash):
        await process.grow(FIVE)
    harness.fuse.left = None
    later = Growing(harness)
    await later.registry.supers.update(NAME, lambda _: PLACED)
    await later.finish()
    assert len((await later.find()).partitions) == 5
    assert await configs(harness, 5) == [PLACED] * 5


async def test_wherever_a_change_is_cut_off_whoever_finds_it_ends_it_in_all_partitions() -> None:
    ends = set()
    for place in range(1_000):
        harness = a_harness()
        await Registry(harness.context).supers.declare(NAME, THREE)
        harness.fuse.left = place
        try:
            await Registry(harness.context).supers.update(NAME, lambda _: PLACED)
        except Crash:
            harness.fuse.left = None
        else:
            assert place > 5
            break
        # In another process, as after a crash.
        record = await Registry(harness.context).supers.find(NAME)
        assert await configs(harness) == [record.config] * 3
        assert (await super_objects(harness))[-1] == record
        ends.add(record.config == PLACED)
    assert ends == {True, False}


async def test_a_rebuild_brings_partitions_back_with_nodes_and_drives() -> None:
    harness = ManifestHarness()
    await agree(harness, 1)
    registry = Registry(harness.context)
    registry.generation = 1
    record, _ = await registry.supers.declare(NAME, THREE._replace(config=PLACED))
    stream_id = record.partitions[1].stream_id

    def held(one: StreamRecord) -> StreamRecord:
        return replace(one, members=(NODE, B), registry_version=one.registry_version + 1)

    await registry.ensure_object(await harness.streams.update(stream_id, held))
    harness.coordination.lose()
    await rebuild(harness)
    after = Registry(harness.context)
    after.generation = 2
    assert (await after.supers.find(NAME)).config == PLACED
    assert await configs(harness) == [PLACED] * 3
    assert (await harness.streams.load(stream_id)).members == (NODE, B)


@pytest.mark.parametrize("feature", [REPLICAS, TIERS])
async def test_a_release_that_lacks_a_feature_names_it_and_touches_nothing(feature: str) -> None:
    harness = await with_drives()
    supers = Registry(harness.context).supers
    record, _ = await supers.declare(NAME, THREE._replace(config=PLACED))
    plain, _ = await supers.declare(NAME._replace(name=StreamName("plain")), THREE)
    keys = [super_key(record.super_id), *(stream_key(one.stream_id) for one in record.partitions)]
    before = await harness.coordination.get_many(keys)
    harness.streams.served = SERVED - {feature}
    async with running(harness) as service:
        listed = (await service.public.get("/v1/super-streams")).json()
        assert [one["name"] for one in listed["items"]] == [plain.name]
        assert [one["name"] for one in listed["unreadable"]] == [record.name]
        for answer in (
            await service.public.get(EVENTS),
            await service.public.put(EVENTS, json={"partitions": 3}),
            await service.public.patch(
                EVENTS, json={"labels": {"a": "b"}}, headers={"if-match": "*"}
            ),
            await service.public.delete(EVENTS),
        ):
            assert answer.status_code >= 500
            assert f"its feature {feature} is not served" in answer.json()["detail"]
    assert await harness.coordination.get_many(keys) == before
    plain_record = await harness.coordination.get(super_key(plain.super_id))
    assert plain_record is not None
    assert orjson.loads(plain_record)["format"] == 1


@pytest.mark.parametrize("feature", [REPLICAS, TIERS])
async def test_a_release_that_lacks_a_feature_lets_no_rebuild_begin(feature: str) -> None:
    harness = ManifestHarness()
    await agree(harness, 1)
    registry = Registry(harness.context)
    registry.generation = 1
    await registry.supers.declare(NAME, THREE._replace(config=PLACED))
    # Registry objects of partitions would be refused too.
    keys = [facts.object_key async for facts in harness.drive.list("default/")]
    await harness.drive.delete([key for key in keys if "/stream." in key])
    assert await look_at_some(harness.drive, SERVED, {})
    with pytest.raises(NotServed, match=f"super object .* feature {feature} is not served"):
        await look_at_some(harness.drive, SERVED - {feature}, {})


async def an_owned_partition(replicas: int = 3, **changes: object) -> ManifestHarness:
    """One that the node owns, which two others hold too."""
    harness = ManifestHarness()
    config = StreamConfig(replication=ReplicationConfig(replicas=replicas))
    supers = Registry(harness.context).supers
    record, _ = await supers.declare(NAME, THREE._replace(config=config))
    owned = {"home": NODE, "owner_url": "unix:///a.sock", "dirty": True, "epoch": 1}
    held = {**owned, "members": (NODE, B, C), "in_sync": (NODE, B, C), **changes}
    await harness.streams.update(
        record.partitions[0].stream_id,
        lambda one: replace(one, **held),  # type: ignore[arg-type]
    )
    facts = encode_facts(NodeFacts("unix:///d.sock", "", "0.1.0"))
    harness.coordination.write(Changes({node_key(D): b"x", facts_key(D): facts}))
    return harness


@pytest.mark.parametrize(
    ("replicas", "method", "node", "status"),
    [
        (3, "PUT", D, 409),
        (3, "PUT", B, 202),
        (4, "PUT", D, 202),
        (3, "DELETE", B, 409),
        (3, "DELETE", D, 202),
        (2, "DELETE", B, 202),
    ],
)
async def test_how_many_nodes_hold_a_partition_is_said_of_its_super_stream(
    replicas: int, method: str, node: NodeId, status: int
) -> None:
    """A place that is free may be given to a node, and one too many may be let go."""
    harness = await an_owned_partition(replicas)
    async with running(harness) as service:
        answer = await service.public.request(method, f"/v1/streams/events-0/replicas/{node}")
    assert answer.status_code == status, answer.text
    if status == 409:
        assert answer.json()["code"] == "partition-of-super-stream"
        assert harness.owners.changed == []


async def test_its_owner_changes_no_number_of_a_partition_either() -> None:
    harness = await an_owned_partition()
    record = await harness.streams.find_record(named(0))
    for change, node in ((with_member, D), (without_member, C)):
        with pytest.raises(Refused) as caught:
            change(record, NODE, 1, node)
        assert caught.value.refusal is Refusal.OF_SUPER
    four = replace(
        record, config=StreamConfig(replication=ReplicationConfig(replicas=4)), config_version=2
    )
    more = with_member(four, NODE, 1, D)
    assert (more.members, more.config) == ((NODE, B, C, D), four.config)
    fewer = without_member(replace(more, config=record.config), NODE, 1, D)
    assert (fewer.members, fewer.config) == (record.members, record.config)


async def test_a_partition_that_several_nodes_too_many_hold_is_let_go_by_each() -> None:
    """Its super stream wants two fewer: each goes by itself, and the number stays what it says."""
    harness = await an_owned_partition(1, members=(NODE, B, C), in_sync=(NODE,))
    record = await harness.streams.find_record(named(0))
    fewer = without_member(record, NODE, 1, C)
    assert (fewer.members, fewer.config) == ((NODE, B), record.config)
    alone = without_member(fewer, NODE, 1, B)
    assert (alone.members, alone.config) == ((), record.config)


async def test_a_super_stream_of_which_a_partition_is_damaged_stays_as_it_is() -> None:
    """A change could not reach all partitions, and nobody would find the super stream any more."""
    harness = a_harness()
    record, _ = await Registry(harness.context).supers.declare(NAME, THREE)
    key = stream_key(record.partitions[1].stream_id)
    harness.coordination.write(Changes({key: b"damaged"}))
    with pytest.raises(Corrupt):
        await Registry(harness.context).supers.update(NAME, lambda _: PLACED)
    # In another process.
    assert await Registry(harness.context).supers.find(NAME) == record


async def test_a_drive_that_a_policy_names_which_has_not_reached_partitions_is_in_use() -> None:
    """A process died after the record, and whoever finds the super stream next hands it on."""
    harness = await with_drives()
    await Registry(harness.context).supers.declare(NAME, THREE)
    harness.fuse.left = 1
    with pytest.raises(Crash):
        await Registry(harness.context).supers.update(NAME, lambda _: PLACED)
    harness.fuse.left = None
    operations = Operations(harness.context)
    operation = await DriveRetirement(harness.context, operations).begin("d7", "default")
    harness.clock.now += 120_000
    await operations.make_pass()
    await operations.settled()
    ended = await operations.find(operation.operation_id)
    assert ended.error is not None, ended.result
    assert "has a policy that names it" in ended.error["detail"]


async def test_the_loss_of_a_drive_names_a_super_stream_once_and_none_of_its_partitions() -> None:
    """It named each partition, whose policy nobody can change, and not the super stream; and nothing where
    the change of a policy had not reached the partitions yet."""
    harness = await with_drives()
    supers = Registry(harness.context).supers
    declared = await supers.declare(NAME, THREE)
    await supers.declare(NAME._replace(name=StreamName("placed")), THREE._replace(config=PLACED))
    await supers.declare(NAME._replace(name=StreamName("elsewhere")), THREE)
    # The change of the super record alone, as a crash after it leaves it.
    harness.fuse.left = 1
    with pytest.raises(Crash):
        await supers.update(NAME, lambda _: PLACED)
    harness.fuse.left = None
    partitions = [
        await harness.streams.load(place.stream_id) for place in declared.record.partitions
    ]
    assert [one.config.tiers for one in partitions] == [(), (), ()]
    damaged = await supers.declare(NAME._replace(name=StreamName("damaged")), THREE)
    await take_away(harness.context.drives, 7)
    key = super_key(damaged.record.super_id)
    await harness.coordination.transact([key], lambda _: (Changes({key: b"{}"}), None))

    operations = Operations(harness.context)
    loss = DriveLoss(harness.context, operations, Mutators(harness.context))
    operation = await loss.begin("d7", "d7", "default")
    harness.clock.now += 120_000
    await operations.make_pass()
    await operations.settled()

    ended = await operations.find(operation.operation_id)
    assert ended.result is not None, ended.error
    assert sorted(ended.result["named_by_policy"]) == [NAME.name, "placed"]
    assert ended.result["named_by_policy_count"] == 2
    assert ended.result["left"] == [damaged.record.super_id]
