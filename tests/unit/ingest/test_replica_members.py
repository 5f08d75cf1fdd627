"""RP8 in small: nodes that hold a stream come, go and are replaced while it takes appends."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from bottomless.model.config import ReplicationConfig, StreamConfig
from bottomless.model.names import NodeId
from bottomless.model.stream import StreamRecord
from bottomless_server.protocol.held import HELD, decode_held
from bottomless_server.protocol.members import MEMBERS, MemberChange, encode_members_asked
from bottomless_server.protocol.paths import of_stream
from bottomless_server.protocol.transfer import TRANSFER, encode_transfer_asked
from unit.ingest.harness import STREAM, broken_disk, problem
from unit.ingest.replica_services import Node, ThreeServices


@asynccontextmanager
async def services(path: Path, **given: Any) -> AsyncIterator[ThreeServices]:
    three = await ThreeServices(path, **given).start()
    try:
        yield three
    finally:
        await three.aclose()


async def ask(owner: Node, change: MemberChange, node: Node) -> httpx.Response:
    body = encode_members_asked(change, node.node_id)
    return await owner.harness.internal.post(of_stream(MEMBERS, STREAM), json=body)


async def done(owner: Node, change: MemberChange, node: Node) -> None:
    answer = await ask(owner, change, node)
    assert answer.status_code == 200, answer.text


async def until_in_sync(three: ThreeServices, *nodes: Node) -> StreamRecord:
    """Return when exactly these nodes hold the stream, and have everything."""
    wanted = {node.node_id for node in nodes}

    async def are() -> bool:
        record = await three.record()
        return set(record.members) == set(record.in_sync) == wanted

    await three.until(are)
    return await three.record()


async def until_alone(three: ThreeServices) -> None:
    async def is_alone() -> bool:
        return not (await three.record()).members

    await three.until(is_alone)


async def shared(three: ThreeServices) -> tuple[Node, Node, Node]:
    """The owner of a stream that two are to hold, the other one, and the one that is free."""
    owner, *others = three.nodes
    assert await three.append(owner, "0") == 0
    members = (await three.record()).members
    (other,) = (node for node in others if node.node_id in members)
    (free,) = (node for node in others if node is not other)
    await until_in_sync(three, owner, other)
    return owner, other, free


async def test_a_node_is_taken_in_and_another_one_let_go(tmp_path: Path) -> None:
    async with services(tmp_path, replicas=2) as three:
        owner, other, free = await shared(three)
        for _ in range(2):
            await done(owner, "add", free)
        record = await until_in_sync(three, owner, other, free)
        assert record.config.replication.replicas == 3
        assert await three.append(owner, "1") == 1
        await three.until_same_files(owner, other, free)
        for _ in range(2):
            await done(owner, "remove", other)
        record = await until_in_sync(three, owner, free)
        assert record.config.replication.replicas == 2
        assert await three.append(owner, "2") == 2
        await three.until_same_files(owner, free)
        assert problem(await ask(owner, "remove", owner)) == (409, "home-live")


async def test_a_stream_of_one_node_is_given_a_second_one_and_loses_it_again(
    tmp_path: Path,
) -> None:
    async with services(tmp_path, replicas=1) as three:
        owner, second, _ = three.nodes
        assert await three.append(owner, "0") == 0
        await done(owner, "add", second)
        await until_in_sync(three, owner, second)
        assert await three.append(owner, "1") == 1
        await three.until_same_files(owner, second)
        await done(owner, "remove", second)
        await until_alone(three)
        assert await three.append(owner, "2") == 2
        assert await three.values(owner) == [b"0", b"1", b"2"]


async def test_a_node_that_is_let_go_at_the_floor_stays(tmp_path: Path) -> None:
    async with services(tmp_path) as three:
        owner, b, c = three.nodes
        assert await three.append(owner, "0") == 0
        await three.until_all_in_sync()
        c.address.gone = True
        assert await three.append(owner, "1") == 1
        assert problem(await ask(owner, "remove", b)) == (409, "not-in-sync")
        assert b.node_id in (await three.record()).members
        await done(owner, "remove", c)
        await until_in_sync(three, owner, b)


async def patched(three: ThreeServices, replicas: int) -> None:
    config = StreamConfig(replication=ReplicationConfig(replicas=replicas))
    await three.first.streams.update(STREAM, partial(replace, config=config))


async def test_a_stream_goes_from_one_node_to_three_and_back(tmp_path: Path) -> None:
    async with services(tmp_path, replicas=1) as three:
        owner, b, c = three.nodes
        assert await three.append(owner, "0") == 0
        await patched(three, 3)
        await owner.harness.service.configs.take_up()
        assert await three.append(owner, "1") == 1
        await until_in_sync(three, owner, b, c)
        await three.until_same_files(owner, b, c)
        await patched(three, 1)
        await owner.harness.service.configs.take_up()
        await until_alone(three)
        assert await three.append(owner, "2") == 2
        assert await three.values(owner) == [b"0", b"1", b"2"]


async def test_a_node_without_a_lease_is_replaced_by_one_that_lives(tmp_path: Path) -> None:
    async with services(tmp_path, replicas=2, ingest_replica_replace_ms=5_000) as three:
        owner, other, free = await shared(three)
        await three.cut_off(other)
        record = await until_in_sync(three, owner, free)
        assert record.config.replication.replicas == 2
        assert await three.append(owner, "1") == 1
        await three.until_same_files(owner, free)


async def test_a_node_that_lives_and_does_not_catch_up_is_replaced_by_another_one(
    tmp_path: Path,
) -> None:
    async with services(tmp_path, replicas=2, ingest_replica_replace_ms=5_000) as three:
        owner, other, free = await shared(three)
        one_is_enough = StreamConfig(replication=ReplicationConfig(replicas=2, min_in_sync=1))
        await three.first.streams.update(
            STREAM, lambda record: replace(record, config=one_is_enough)
        )
        await owner.harness.service.configs.take_up()
        other.harness.files.faults["fdatasync"] += [broken_disk()] * 100_000
        assert await three.append(owner, "1") == 1
        record = await until_in_sync(three, owner, free)
        assert record.config.replication.replicas == 2
        assert await three.append(owner, "2") == 2
        await three.until_same_files(owner, free)
        other.harness.files.faults.clear()


async def test_an_owner_says_who_does_not_catch_up_where_nobody_can_take_its_place(
    tmp_path: Path,
) -> None:
    async with services(tmp_path, ingest_replica_replace_ms=5_000) as three:
        owner, b, c = three.nodes
        assert await three.append(owner, "0") == 0
        await three.until_all_in_sync()

        async def said() -> tuple[NodeId, ...]:
            answer = await owner.harness.internal.get(of_stream(HELD, STREAM))
            return decode_held(answer.json()).stalled

        assert await said() == ()
        c.harness.files.faults["fdatasync"] += [broken_disk()] * 100_000
        assert await three.append(owner, "1") == 1

        async def is_named() -> bool:
            return await said() == (c.node_id,)

        await three.until(is_named)
        record = await three.record()
        assert set(record.members) == {one.node_id for one in three.nodes}
        assert set(record.in_sync) == {owner.node_id, b.node_id}
        c.harness.files.faults.clear()


async def test_the_log_of_a_former_member_goes_once_object_storage_has_all_of_it(
    tmp_path: Path,
) -> None:
    async with services(tmp_path, replicas=2) as three:
        owner, other, free = await shared(three)
        giving, disk = other.harness.service.giving, other.harness.service.context.disk
        assert not await giving.part_with(STREAM)
        await done(owner, "replace", other)
        await until_in_sync(three, owner, free)
        assert await three.append(owner, "1") == 1
        # Its task has the files until nothing was sent for long.
        assert not await giving.part_with(STREAM)
        await other.harness.service.replicas.following.let_go(STREAM)
        assert not await giving.part_with(STREAM)
        assert other.files()
        assert disk.held

        def published(record: StreamRecord) -> StreamRecord:
            return replace(record, published_next=1, version=record.version + 1)

        await three.first.streams.update(STREAM, published)
        assert await giving.part_with(STREAM)
        assert (other.files(), disk.held) == ({}, 0)
        # It may hold the stream again.
        await done(owner, "add", other)
        await until_in_sync(three, owner, other, free)
        assert await three.append(owner, "2") == 2
        await three.until_same_files(owner, other, free)


async def test_a_node_that_lives_is_replaced_if_an_operator_says_so(tmp_path: Path) -> None:
    async with services(tmp_path, replicas=2) as three:
        owner, other, free = await shared(three)
        await done(owner, "replace", other)
        await until_in_sync(three, owner, free)
        assert await three.append(owner, "1") == 1
        await three.until_same_files(owner, free)


async def test_a_stream_of_one_node_leaves_it_for_another_that_has_everything(
    tmp_path: Path,
) -> None:
    async with services(tmp_path, replicas=1) as three:
        owner = three.nodes[0]
        assert await three.append(owner, "0") == 0
        for _ in range(2):
            await done(owner, "replace", owner)
        assert await three.append(owner, "1") == 1

        async def has_two() -> bool:
            return len((await three.record()).in_sync) == 2

        await three.until(has_two)
        record = await three.record()
        assert record.config.replication.replicas == 1
        (heir,) = (one for one in three.nodes if one.node_id in {*record.in_sync} - {owner.node_id})
        given = await owner.harness.internal.post(
            of_stream(TRANSFER, STREAM), json=encode_transfer_asked(heir.node_id)
        )
        assert given.status_code == 200, given.text
        assert await three.append(owner, "2") == 2
        await until_alone(three)
        record = await three.record()
        assert (record.home, record.members, record.config.replication.replicas) == (
            heir.node_id,
            (),
            1,
        )
        assert await three.values(heir) == [b"0", b"1", b"2"]


async def test_the_answer_of_an_append_says_how_many_nodes_have_it(tmp_path: Path) -> None:
    async with services(tmp_path, replicas=1) as three:
        owner, second, third = three.nodes
        first = await owner.append("0")
        assert "replicas" not in first.json()
        await done(owner, "add", second)
        await until_in_sync(three, owner, second)
        assert (await owner.append("1")).json()["replicas"] == 2
        # A node that passes the request on says what the owner says.
        assert (await third.append("2")).json()["replicas"] == 2


async def test_a_stream_with_half_a_commit_on_its_disk_is_not_given_away(tmp_path: Path) -> None:
    async with services(tmp_path, replicas=2) as three:
        owner, other, _ = await shared(three)
        appender = owner.harness.service.streams.find(STREAM)
        assert appender is not None
        epoch = appender.claim.epoch
        appender.is_bound = lambda: True  # type: ignore[method-assign]
        given = await owner.harness.internal.post(
            of_stream(TRANSFER, STREAM), json=encode_transfer_asked(other.node_id)
        )
        assert problem(given) == (503, "not-owner")
        assert problem(await ask(owner, "replace", owner)) == (503, "not-owner")
        # It was not even stopped for that.
        assert (await three.record()).epoch == epoch
        assert await three.append(owner, "1") == 1
