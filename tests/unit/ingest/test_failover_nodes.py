"""Three nodes that hold a stream: another one goes on when its owner is away, or gives it away."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.guards import remove
from support.waiting import eventually

from bottomless.errors import Code, Unavailable
from bottomless.model.config import ReplicationConfig, StreamConfig
from bottomless.model.names import StreamId
from bottomless_server.ingest.local.streams import OwnedStreams
from bottomless_server.node.core.ownership import OwnedElsewhere
from bottomless_server.node.owner import Owner
from bottomless_server.protocol.held import HELD
from bottomless_server.protocol.members import MEMBERS, encode_members_asked
from bottomless_server.protocol.parts import LAYOUT
from bottomless_server.protocol.paths import of_stream
from bottomless_server.protocol.replica import NODE_HEADER
from bottomless_server.protocol.tail import CLOSE
from bottomless_server.protocol.transfer import TRANSFER, encode_transfer_asked
from unit.ingest.harness import STREAM, problem
from unit.ingest.replica_services import Node, ThreeServices


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[ThreeServices]:
    made = await ThreeServices(tmp_path).start()
    yield made
    await made.aclose()


async def filled(three: ThreeServices, count: int = 3) -> tuple[Node, Node, Node]:
    """The owner, and two that are in sync with it."""
    owner, *others = three.nodes
    for number in range(count):
        assert await three.append(owner, str(number)) == number
    await three.until_all_in_sync()
    return owner, others[0], others[1]


async def test_another_node_goes_on_when_the_lease_of_the_owner_is_gone(
    three: ThreeServices,
) -> None:
    """RP1 in small."""
    owner, b, c = await filled(three)
    await three.cut_off(owner)
    heir = await three.until_owned_by(b, c)
    record = await three.record()
    assert record.home == heir.node_id
    assert record.epoch > 1
    # Through a node that only follows: it is passed on.
    other = c if heir is b else b
    assert await three.append(other, "3") == 3
    assert await three.values(heir) == [b"0", b"1", b"2", b"3"]
    await three.until_same_files(heir, other)


async def asked_for_less(three: ThreeServices) -> None:
    """A PATCH of the floor, and each owner looks as it does several times in a lease."""
    config = StreamConfig(replication=ReplicationConfig(replicas=3, min_in_sync=1))
    await three.first.streams.update(STREAM, lambda record: replace(record, config=config))
    for node in three.nodes:
        await node.harness.service.configs.take_up()


async def test_the_last_node_of_three_goes_on_once_the_floor_is_lowered(
    three: ThreeServices,
) -> None:
    """It shows nothing before that of what it found: too few nodes have it."""
    owner, b, c = await filled(three)
    b.address.gone, b.renews = True, False
    await three.cut_off(owner)
    heir = await three.until_owned_by(c)

    async def is_held() -> bool:
        """Whether one was let go, and the next one may not be."""
        return len((await three.record()).in_sync) == 2

    await three.until(is_held)
    assert heir.harness.appender.log.committed_next == 0
    await asked_for_less(three)
    assert await three.append(heir, "3") == 3
    assert (await three.record()).in_sync == (heir.node_id,)
    assert await three.values(heir) == [b"0", b"1", b"2", b"3"]


async def test_a_floor_is_lowered_for_a_round_that_is_held_of_a_stream_in_object_storage(
    three: ThreeServices,
) -> None:
    owner, b, c = await filled(three)
    owner.harness.appender.note_published(3, 1)
    b.address.gone = c.address.gone = True
    appending = asyncio.create_task(owner.append("3"))

    async def is_held() -> bool:
        return len((await three.record()).in_sync) == 2

    await three.until(is_held)
    await asked_for_less(three)

    async def is_answered() -> bool:
        return appending.done()

    await three.until(is_answered)
    assert (await appending).json()["first_offset"] == 3
    assert (await three.record()).in_sync == (owner.node_id,)


async def test_an_owner_that_comes_back_follows_the_one_that_went_on(three: ThreeServices) -> None:
    owner, b, c = await filled(three)
    await three.cut_off(owner)
    heir = await three.until_owned_by(b, c)
    assert await three.append(heir, "3") == 3
    owner.address.gone, owner.renews = False, True
    await three.until_all_in_sync()
    assert await three.append(owner, "4") == 4
    await three.until_same_files(owner, b, c)
    assert (await three.record()).home == heir.node_id


async def test_a_transfer_has_another_node_go_on_at_once(three: ThreeServices) -> None:
    """RP7 in small, a move."""
    owner, _, c = await filled(three)
    replicas = owner.harness.service.replicas
    assert await replicas.transfers.give(STREAM, c.node_id) == c.node_id
    assert await three.until_owned_by(owner, c) is c
    assert not owner.harness.service.streams.owns(STREAM)
    assert await three.append(owner, "3") == 3
    await three.until_all_in_sync()
    assert await three.append(owner, "4") == 4
    assert await three.values(c) == [b"0", b"1", b"2", b"3", b"4"]
    await three.until_same_files(owner, c)


async def test_a_node_owns_at_once_what_it_passed_requests_on_for_just_before(
    three: ThreeServices,
) -> None:
    owner, _, c = await filled(three)
    # No time goes on from here: nothing is forgotten by its age, and nobody let go for being late.
    assert (await c.append("3")).json()["first_offset"] == 3
    await owner.harness.service.replicas.transfers.give(STREAM, c.node_id)
    await eventually(lambda: c.harness.service.streams.owns(STREAM))
    assert await three.append(owner, "4") == 4


async def test_a_node_takes_what_is_passed_on_to_it_before_it_is_told_that_it_owns_a_stream(
    three: ThreeServices,
) -> None:
    owner, _, c = await filled(three)
    # Without time, as above.
    assert (await c.append("3")).json()["first_offset"] == 3

    c.address.gone = True
    await owner.harness.service.replicas.transfers.give(STREAM, c.node_id)
    c.address.gone = False
    assert not c.harness.service.streams.owns(STREAM)
    appending = asyncio.create_task(owner.append("4"))

    async def is_answered() -> bool:
        return appending.done()

    await three.until(is_answered)
    assert appending.result().status_code == 200, appending.result().text


async def test_an_opening_of_before_does_not_keep_a_node_from_what_it_is_given(
    three: ThreeServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read the record before the stream was given away, and says so after it was told."""
    owner, _, c = await filled(three)
    has_read, goes_on = asyncio.Event(), asyncio.Event()
    require_claimable = Owner.require_claimable

    async def slow(of_node: Owner, stream_id: StreamId) -> None:
        try:
            await require_claimable(of_node, stream_id)
        except OwnedElsewhere:
            if of_node.node_id == c.node_id:
                has_read.set()
                await goes_on.wait()
            raise

    monkeypatch.setattr(Owner, "require_claimable", slow)
    streams = c.harness.service.streams
    opening = asyncio.create_task(streams.get(STREAM))
    await has_read.wait()
    ended = asyncio.Event()

    async def told(of_node: OwnedStreams, stream_id: StreamId) -> object:
        asyncio.get_running_loop().call_soon(goes_on.set)
        try:
            return await get_given(of_node, stream_id)
        finally:
            ended.set()

    get_given = OwnedStreams.get_given
    monkeypatch.setattr(OwnedStreams, "get_given", told)
    # No time goes on from here, so nothing is forgotten by its age.
    await owner.harness.service.replicas.transfers.give(STREAM, c.node_id)
    await ended.wait()
    assert streams.owns(STREAM)
    with pytest.raises(OwnedElsewhere):
        await opening


async def test_of_a_node_that_gave_one_stream_away_the_others_are_remembered(
    three: ThreeServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[StreamId] = []
    require_claimable = Owner.require_claimable

    async def counted(of_node: Owner, stream_id: StreamId) -> None:
        asked.append(stream_id)
        await require_claimable(of_node, stream_id)

    _, _, c = await filled(three)
    streams = c.harness.service.streams
    monkeypatch.setattr(Owner, "require_claimable", counted)
    for forgotten in (StreamId("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2cff"), STREAM):
        streams.others.forget(forgotten)
        for _ in range(2):
            with pytest.raises(OwnedElsewhere):
                await streams.get(STREAM)
    assert asked == [STREAM, STREAM]


async def test_a_node_that_was_given_a_stream_finds_it_without_being_told(
    three: ThreeServices,
) -> None:
    owner, _, c = await filled(three)
    c.address.gone = True
    await owner.harness.service.replicas.transfers.give(STREAM, c.node_id)
    assert (await three.record()).home == c.node_id
    c.address.gone = False
    await three.until_owned_by(c)
    assert await three.append(owner, "3") == 3


async def test_a_stream_is_not_given_to_a_node_that_does_not_live(three: ThreeServices) -> None:
    owner, _, c = await filled(three)
    c.renews = False
    three.first.time.advance(60_000)
    for node in (owner, three.nodes[1]):
        await node.harness.lease.renew()
    path, body = of_stream(TRANSFER, STREAM), encode_transfer_asked(c.node_id)
    answer = await owner.harness.internal.post(path, json=body)
    assert problem(answer) == (409, "not-in-sync")
    assert owner.harness.service.streams.owns(STREAM)
    assert await three.append(owner, "3") == 3


@pytest.mark.parametrize("guarded", [True, False])
async def test_what_another_node_is_asked_that_had_this_address_changes_nothing_here(
    three: ThreeServices, guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, b, c = await filled(three)
    if not guarded:
        remove(monkeypatch, "the node that is meant", lambda *_: None)
    transfer, members = of_stream(TRANSFER, STREAM), of_stream(MEMBERS, STREAM)
    before = await three.record()
    for meant in ("e" * 32, owner.node_id):
        headers = {NODE_HEADER: meant}
        refused = guarded and meant != owner.node_id
        client = owner.harness.internal
        said = await client.get(of_stream(HELD, STREAM), headers=headers)
        assert said.status_code == (503 if refused else 200), said.text
        asked = encode_members_asked("remove", b.node_id)
        changed = await client.post(members, json=asked, headers=headers)
        given = await client.post(transfer, json=encode_transfer_asked(c.node_id), headers=headers)
        if refused:
            assert problem(changed) == problem(given) == (503, "peer-unavailable")
            assert await three.record() == before
        else:
            assert (await three.record()).home == c.node_id
            break


@pytest.mark.parametrize("guarded", [True, False])
async def test_a_stop_that_another_node_is_asked_which_had_this_address_stops_nothing_here(
    three: ThreeServices, guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deletion takes the answer for the word of the owner, which may acknowledge on."""
    owner, _, _ = await filled(three)
    if not guarded:
        remove(monkeypatch, "the node that is meant", lambda *_: None)
    client, close = owner.harness.internal, of_stream(CLOSE, STREAM)
    said = await client.post(close, headers={NODE_HEADER: "e" * 32})
    assert said.status_code == (503 if guarded else 200), said.text
    assert owner.harness.service.streams.owns(STREAM) is guarded
    said = await client.post(close, headers={NODE_HEADER: owner.node_id})
    assert said.status_code == 200, said.text
    assert not owner.harness.service.streams.owns(STREAM)


async def test_of_a_layout_the_node_that_is_meant_is_told(three: ThreeServices) -> None:
    owner, _, _ = await filled(three)
    client, layout = owner.harness.internal, of_stream(LAYOUT, STREAM)
    refused = await client.put(layout, json={"layout": 2}, headers={NODE_HEADER: "e" * 32})
    assert problem(refused) == (503, "peer-unavailable")
    heard = await client.put(layout, json={"layout": 2}, headers={NODE_HEADER: owner.node_id})
    assert heard.status_code == 200, heard.text


async def test_a_drain_leaves_no_stream_to_wait_for_this_node(three: ThreeServices) -> None:
    """RP7 in small, a drain."""
    owner, b, c = await filled(three)
    await owner.harness.service.replicas.transfers.give_all()
    heir = await three.until_owned_by(b, c)
    assert await three.append(heir, "3") == 3


async def test_a_claim_without_a_reply_is_made_again_before_the_stream_is_followed(
    three: ThreeServices,
) -> None:
    owner, b, c = await filled(three)
    # It was claimed, and the bucket cannot be told yet: nobody may write under that epoch.
    for node in (b, c):
        node.harness.manifest.knows_homes = False
    await three.cut_off(owner)

    async def is_claimed() -> bool:
        return (await three.record()).epoch > 1

    await three.until(is_claimed)
    home = (await three.record()).home
    heir = b if home == b.node_id else c
    await three.until_held_back(heir)
    assert not heir.harness.service.streams.owns(STREAM)
    for node in (b, c):
        node.harness.manifest.knows_homes = True
    assert await three.until_owned_by(b, c) is heir
    assert await three.append(heir, "3") == 3
    assert await three.values(heir) == [b"0", b"1", b"2", b"3"]


async def test_after_coordination_was_away_streams_stay_with_owners_that_live(
    three: ThreeServices,
) -> None:
    """RP5 in small: cut from coordination."""
    owner, b, c = await filled(three)
    for node in three.nodes:
        node.renews = False
    three.first.time.advance(20_000)
    b.renews = c.renews = True
    for _ in range(25):
        # The owner renews its lease a moment later than the others.
        await three.step()
        for node in (b, c):
            await node.harness.service.replicas.failover.look()
    owner.renews = True
    assert await three.append(b, "3") == 3
    record = await three.record()
    assert (record.home, record.epoch) == (owner.node_id, 1)


async def held(three: ThreeServices) -> tuple[Node, Node]:
    """An owner with a round that nobody else has, since both others are silent; and one of them."""
    owner, b, c = await filled(three)
    b.address.gone = c.address.gone = True
    appending = asyncio.create_task(owner.append("3"))

    async def is_written() -> bool:
        return owner.harness.appender.log.synced_next == 4

    await three.until(is_written)
    appending.cancel()
    return owner, b


async def test_a_round_that_is_held_is_not_given_away(three: ThreeServices) -> None:
    owner, b = await held(three)
    giving = asyncio.create_task(owner.harness.service.replicas.transfers.give(STREAM, b.node_id))

    async def is_refused() -> bool:
        return giving.done()

    await three.until(is_refused)
    with pytest.raises(Unavailable) as refused:
        await giving
    assert refused.value.code is Code.NOT_OWNER
    assert (await three.record()).home == owner.node_id


async def test_without_its_guard_a_round_that_is_held_is_given_away(
    three: ThreeServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch, "all of the log in a transfer", lambda _: None)
    owner, _ = await held(three)
    others = three.nodes[1:]
    for node in others:
        # Whoever it is given to may claim it, and opens no other log before the bucket knows.
        node.harness.manifest.knows_homes = False
    giving = asyncio.create_task(owner.harness.service.replicas.transfers.give(STREAM))

    async def is_given() -> bool:
        return (await three.record()).home != owner.node_id

    await three.until(is_given)
    assert all(owner.files() != node.files() for node in others)
    giving.cancel()


async def test_an_owner_that_reaches_nobody_gives_its_place_to_one_that_lives(
    tmp_path: Path,
) -> None:
    """RP5 in small: cut from all other nodes."""
    three = await ThreeServices(tmp_path, step_down_ms=5_000).start()
    try:
        await gives_its_place(three)
    finally:
        await three.aclose()


async def gives_its_place(three: ThreeServices) -> None:
    owner, b = await held(three)
    c = three.nodes[2]

    async def is_given() -> bool:
        return (await three.record()).home != owner.node_id

    await three.until(is_given)
    b.address.gone = c.address.gone = False
    heir = await three.until_owned_by(b, c)
    first = await three.append(heir, "4")
    # The round that was held is there or not, as whoever went on had it.
    held_back = [b"3"] if first == 4 else []
    assert await three.values(heir) == [b"0", b"1", b"2", *held_back, b"4"]
    await three.until_same_files(owner, b, c)


async def test_a_node_whose_disk_is_full_is_let_go_and_counted_in_when_it_has_room(
    three: ThreeServices,
) -> None:
    """RP6, full."""
    owner, _, c = await filled(three)
    use = c.harness.service.context.disk
    assert use.held > 0
    bytes_max, use.bytes_max = use.bytes_max, 0
    assert await three.append(owner, "3") == 3
    assert c.node_id not in (await three.record()).in_sync
    use.bytes_max = bytes_max
    await three.until_all_in_sync()
    await three.until_same_files(*three.nodes)
    # What follows here counts on after a start, before its owner has asked for it.
    again = await c.harness.after_crash().start()
    assert again.service.context.disk.held == use.held
    await again.aclose()
