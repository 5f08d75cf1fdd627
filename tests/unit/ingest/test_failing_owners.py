"""Three nodes that hold a stream, one of which lives and cannot go on: its disk fails, or its log is damaged."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from support.guards import remove

from bottomless.errors import Corrupt, Unavailable
from bottomless.model.config import ReplicationConfig, StreamConfig
from bottomless.model.names import StreamId
from bottomless_server.ingest.local.appender import LocalAppender
from bottomless_server.ingest.local.core.failing import FailingLogs
from bottomless_server.ingest.local.giving import Giving
from bottomless_server.ingest.local.opening import Opener
from bottomless_server.ingest.replicas.node_peers import NodePeer
from bottomless_server.ingest.replicas.opening import Found, LogFiles
from bottomless_server.node.core.failover import heirs
from bottomless_server.node.core.following import Held
from bottomless_server.node.core.in_sync import Refusal, Refused
from bottomless_server.node.core.ownership import OwnedElsewhere
from bottomless_server.protocol.paths import of_stream
from bottomless_server.protocol.transfer import TRANSFER
from bottomless_server.stores.streams import node_key
from unit.ingest.harness import STREAM, IngestHarness, broken_disk
from unit.ingest.replica_services import Node, ThreeServices

T = TypeVar("T")

STEP_DOWN_MS = 20_000
VALUES = ("first of all", "1", "2")
LATE_MS = 60_000
"""A machine that is busy lets nobody hear of a round that is late."""


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[ThreeServices]:
    made = ThreeServices(tmp_path, step_down_ms=STEP_DOWN_MS, ingest_replica_commit_ms=LATE_MS)
    await made.start()
    yield made
    await made.aclose()


@pytest.fixture
async def patient(tmp_path: Path) -> AsyncIterator[ThreeServices]:
    """Three that give nothing away by themselves since a round is late."""
    made = await ThreeServices(tmp_path).start()
    yield made
    await made.aclose()


async def filled(three: ThreeServices) -> list[Node]:
    """The owner, and two that are in sync with it."""
    for number, value in enumerate(VALUES):
        assert await three.append(three.nodes[0], value) == number
    await three.until_all_in_sync()
    await three.until_same_files(*three.nodes)
    return three.nodes


async def restarted_with_a_damaged_log(
    three: ThreeServices, node: Node, *, in_a_chunk: bool = False
) -> None:
    """By default nothing can be told of it; or a byte is wrong of a record that was long synced."""

    def damage() -> None:
        (segment,) = node.harness.segments()
        data = bytearray(segment.read_bytes())
        data[data.index(b"first of all")] ^= 1 if in_a_chunk else 0
        segment.write_bytes(data if in_a_chunk else b"x" * 100)

    await restarted(three, node, damage)


async def restarted(
    three: ThreeServices, node: Node, meanwhile: Callable[[], None] = lambda: None
) -> None:
    """Have a node begin once more, at the address that it had."""
    await done(three, node.harness.aclose())
    meanwhile()
    before = node.harness
    node.harness = IngestHarness(before.data_dir, before=before)
    node.address.harness = node.harness
    await node.harness.start()


async def done(three: ThreeServices, work: Coroutine[Any, Any, T]) -> T:
    """What something returns; time goes on meanwhile."""
    doing = asyncio.create_task(work)
    while not doing.done():
        await three.step()
    return await doing


async def test_an_owner_whose_log_is_damaged_gives_the_stream_to_one_that_has_everything(
    three: ThreeServices,
) -> None:
    a, b, c = await filled(three)
    b.renews = c.renews = False
    await restarted_with_a_damaged_log(three, a)
    b.renews = c.renews = True
    heir = await three.until_owned_by(b, c)
    assert await three.append(b if heir is c else c, "3") == 3
    assert await three.values(heir) == [b"first of all", b"1", b"2", b"3"]


async def test_an_owner_whose_disk_fails_gives_the_stream_to_one_that_has_everything(
    three: ThreeServices,
) -> None:
    a, b, c = await filled(three)
    a.harness.files.faults["fdatasync"] += [broken_disk()] * 100_000

    async def is_given() -> bool:
        appending = asyncio.create_task(a.append("3"))
        while not appending.done():
            await three.step()
        return (await three.record()).home != a.node_id

    await three.until(is_given)
    heir = await three.until_owned_by(b, c)
    a.harness.files.faults.clear()
    await three.append(heir, "4")
    # Between them lies what was tried meanwhile, of which nobody had an answer that it is stored.
    first, second, third, *_, last = await three.values(heir)
    assert [first, second, third, last] == [b"first of all", b"1", b"2", b"4"]


async def heir_and_other(three: ThreeServices) -> tuple[Node, Node]:
    """The node that is given the stream before the other one, as long as both are well."""
    nodes = {node.node_id: node for node in await filled(three)}
    heir, other = heirs(await three.record())
    return nodes[heir], nodes[other]


async def test_a_held_round_goes_with_its_stream_to_no_node_whose_disk_fails(
    tmp_path: Path,
) -> None:
    """The one that fails is to be waited for, since all three have to have each record."""
    three = await ThreeServices(tmp_path).start()
    heir, other = await heir_and_other(three)
    a = three.nodes[0]
    floor = StreamConfig(replication=ReplicationConfig(replicas=3, min_in_sync=3))
    await three.first.streams.update(STREAM, lambda record: replace(record, config=floor))
    await a.harness.service.configs.take_up()
    heir.harness.files.faults["fdatasync"] += [broken_disk()] * 100_000
    appending = asyncio.create_task(a.append("3"))
    appender = a.harness.service.streams.find(STREAM)
    assert appender is not None

    async def is_known() -> bool:
        return heir.node_id in appender.failing

    await three.until(is_known)
    giving = asyncio.create_task(a.harness.service.replicas.transfers.step_down(STREAM))
    while not giving.done():
        await three.step()
    await giving
    assert (await three.record()).home == other.node_id
    await three.until_owned_by(other)
    heir.harness.files.faults.clear()
    while not appending.done():
        await three.step()
    await three.aclose()


@pytest.mark.parametrize("removed", [False, True])
async def test_a_drain_gives_a_stream_to_no_node_whose_disk_fails_while_another_one_lives(
    three: ThreeServices, monkeypatch: pytest.MonkeyPatch, removed: bool
) -> None:
    """Of an idle stream nobody evicts it; and without the guard it is first in the order of the stream."""
    heir, other = await heir_and_other(three)
    monkeypatch.setattr(LocalAppender, "failing", (heir.node_id,))
    if removed:
        remove(monkeypatch, "who is given a stream before others", lambda targets, *_: targets)
    giving = asyncio.create_task(three.first.service.replicas.transfers.give_all())
    while not giving.done():
        await three.step()
    await giving
    assert (await three.record()).home == (heir if removed else other).node_id


async def test_a_member_that_began_with_a_damaged_log_goes_on_with_what_it_was_sent(
    three: ThreeServices,
) -> None:
    a, b, c = await filled(three)
    await restarted_with_a_damaged_log(three, b)
    assert await three.append(a, "3") == 3
    await three.until_same_files(a, b, c)
    await three.until_all_in_sync()
    # What comes here is passed on.
    assert await three.append(b, "4") == 4
    await three.cut_off(a)
    await three.cut_off(c)
    assert await three.until_owned_by(b) is b


async def test_a_damaged_log_of_another_nodes_stream_counts_as_failing_when_it_is_given_to_this_node(
    three: ThreeServices,
) -> None:
    """Else it is counted, and a line is logged each minute, for as long as the stream is idle."""
    a, b, c = await filled(three)
    # Its owner does not reach it, and so does not fill it again.
    b.address.gone = True
    await restarted_with_a_damaged_log(three, b)
    streams = b.harness.service.streams

    async def is_left_to_its_owner() -> bool:
        return not streams.unopened() and not streams.failing(0)

    await three.until(is_left_to_its_owner)
    giving = asyncio.create_task(a.harness.service.replicas.transfers.give(STREAM, b.node_id))
    while not giving.done():
        await three.step()
    await giving
    heir = await three.until_owned_by(a, c)
    assert await three.append(heir, "3") == 3


async def test_a_log_that_is_made_anew_while_its_owner_is_asked_for_is_not_damaged(
    three: ThreeServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a stream that was given to this node meanwhile would be given away at once."""
    _, b, _ = await filled(three)
    b.address.gone = True
    await restarted_with_a_damaged_log(three, b)
    streams = b.harness.service.streams

    async def nobody_says(_: StreamId) -> None:
        pass

    monkeypatch.setattr(streams.others, "look_for", nobody_says)
    with pytest.raises(Corrupt):
        await streams.get(STREAM)

    async def made_anew_meanwhile(stream_id: StreamId) -> None:
        shutil.rmtree(b.harness.segments()[0].parent)
        streams.note_followed(stream_id)

    monkeypatch.setattr(streams.others, "look_for", made_anew_meanwhile)
    with pytest.raises(OwnedElsewhere):
        await streams.get(STREAM)
    assert not streams.failing(0)


async def test_a_question_does_not_make_a_damaged_log_one_that_is_whole(
    three: ThreeServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a stream of this node that nobody asks for would be given away by nobody."""
    _, b, _ = await filled(three)
    b.address.gone = True
    await restarted_with_a_damaged_log(three, b)
    service = b.harness.service
    await service.replicas.step_down.stop()

    async def nobody_says(_: StreamId) -> None:
        pass

    monkeypatch.setattr(service.streams.others, "look_for", nobody_says)
    with pytest.raises(Corrupt):
        await service.streams.get(STREAM)
    with pytest.raises(Unavailable):
        await service.replicas.following.held(STREAM)
    assert service.streams.failing(0) == service.streams.unopened() == [STREAM]


async def test_without_its_guard_a_damaged_log_of_another_nodes_stream_fails_for_ever(
    three: ThreeServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch, "no failing of streams that are another node's", lambda _: False)
    _, b, _ = await filled(three)
    b.address.gone = True
    await restarted_with_a_damaged_log(three, b)
    streams, step_down = b.harness.service.streams, b.harness.service.replicas.step_down

    async def is_found() -> bool:
        return STREAM in streams.failing(0)

    await three.until(is_found)
    await step_down.look()
    assert (streams.unopened(), streams.failing(0)) == ([STREAM], [STREAM])


async def began_alone_with_a_damaged_log(three: ThreeServices) -> tuple[Node, Node]:
    """A node that was started again, and another one; the owner died before it had opened that log, and the
    other one has no lease for a while."""
    a, b, c = await filled(three)
    await three.cut_off(a)
    await restarted_with_a_damaged_log(three, b, in_a_chunk=True)
    c.renews = False
    three.first.time.advance(60_000)
    await b.harness.lease.renew()
    b.harness.service.replicas.failover.given(STREAM)
    return b, c


async def test_a_member_whose_log_is_damaged_leaves_the_stream_to_one_that_has_it_whole(
    patient: ThreeServices,
) -> None:
    """Both others may be let go: the dead one may be the first, and with a floor of two it would be the only
    one; nothing is acknowledged then before a third node is back."""
    b, c = await began_alone_with_a_damaged_log(patient)
    streams = b.harness.service.streams

    async def is_found() -> bool:
        return STREAM in streams.unopened()

    await patient.until(is_found)
    assert not streams.owns(STREAM)
    floor = StreamConfig(replication=ReplicationConfig(replicas=3, min_in_sync=1))
    await patient.first.streams.update(STREAM, lambda record: replace(record, config=floor))
    c.renews = True
    assert await patient.until_owned_by(b, c) is c
    assert await patient.append(c, "3") == 3

    async def is_back() -> bool:
        return {b.node_id, c.node_id} <= set((await patient.record()).in_sync)

    # It was let go, set aside and filled again.
    await patient.until(is_back)
    await patient.until_same_files(b, c)


async def held_with_a_damaged_log_of_the_heir(three: ThreeServices) -> tuple[Node, Node]:
    """An owner, and the only other one that lives, whose log is damaged; it is in sync and is not let go,
    since three are to have each record, and its owner has asked it to open that log."""
    a, b, c = await filled(three)
    await set_floor(three, 3)
    await three.cut_off(c)
    await restarted_with_a_damaged_log(three, b, in_a_chunk=True)
    appending = asyncio.create_task(a.append("held"))
    appender = a.harness.service.streams.find(STREAM)
    assert appender is not None

    async def is_refused() -> bool:
        is_alone = await three.first.coordination.get(node_key(c.node_id)) is None
        return b.node_id in appender.failing and is_alone

    await three.until(is_refused)
    giving = asyncio.create_task(a.harness.service.replicas.transfers.step_down(STREAM))
    while not (giving.done() and appending.done()):
        await three.step()
    await giving
    return a, b


async def set_floor(three: ThreeServices, min_in_sync: int) -> None:
    """So many are to have a record before it is acknowledged."""
    floor = StreamConfig(replication=ReplicationConfig(replicas=3, min_in_sync=min_in_sync))
    await three.first.streams.update(STREAM, lambda record: replace(record, config=floor))
    for node in three.nodes:
        await node.harness.service.configs.take_up()


async def test_a_member_whose_log_is_damaged_gives_a_stream_back_that_it_is_given(
    patient: ThreeServices,
) -> None:
    """Its record names this node as the home before it is claimed."""
    a, b = await held_with_a_damaged_log_of_the_heir(patient)
    assert await patient.until_owned_by(a, b) is a
    # Whoever may be let go is filled again.
    await set_floor(patient, 1)
    await patient.append(a, "last")
    await patient.until_same_files(a, b)
    assert (await patient.values(a))[::4] == [b"first of all", b"last"]


async def test_a_member_whose_log_is_damaged_gives_a_stream_back_that_it_was_given_before_its_start(
    patient: ThreeServices,
) -> None:
    """It is the home when it begins, as if it had been the owner before."""
    a, b, c = await filled(patient)
    b.address.gone = True
    await done(patient, a.harness.service.replicas.transfers.give(STREAM, b.node_id))
    await restarted_with_a_damaged_log(patient, b, in_a_chunk=True)
    heir = await patient.until_owned_by(a, b, c)
    assert heir is not b
    assert await patient.append(heir, "3") == 3


async def test_an_owner_whose_log_is_damaged_goes_on_where_nobody_else_has_everything(
    patient: ThreeServices,
) -> None:
    """To whom it would leave the stream, nobody could say."""
    a, b, c = await filled(patient)
    await set_floor(patient, 1)
    await patient.cut_off(b)
    await patient.cut_off(c)
    assert await patient.append(a, "3") == 3
    assert (await patient.record()).in_sync == (a.node_id,)
    await restarted_with_a_damaged_log(patient, a, in_a_chunk=True)
    assert await patient.until_owned_by(a) is a
    assert await patient.append(a, "4") == 4


async def test_a_member_whose_log_is_damaged_is_given_no_stream(patient: ThreeServices) -> None:
    """It has to say so before the stream stands still."""
    heir, other = await heir_and_other(patient)
    a = patient.nodes[0]
    appender = a.harness.service.streams.find(STREAM)
    await restarted_with_a_damaged_log(patient, heir, in_a_chunk=True)
    transfers = a.harness.service.replicas.transfers
    with pytest.raises(Refused) as refused:
        await done(patient, transfers.give(STREAM, heir.node_id))
    assert refused.value.refusal is Refusal.NOT_IN_SYNC
    assert a.harness.service.streams.find(STREAM) is appender
    assert await done(patient, transfers.give(STREAM)) == other.node_id


async def test_a_drain_waits_for_no_node_that_hangs_while_another_one_answers(
    patient: ThreeServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process lives and renews its lease, as one whose disk hangs."""
    heir, other = await heir_and_other(patient)
    hangs = asyncio.Event()

    async def held(_: StreamId) -> Held:
        await hangs.wait()
        return Held()

    get = NodePeer.get

    async def patient_get(peer: NodePeer, path: str, _: float) -> Any:
        return await get(peer, path, 600.0)

    monkeypatch.setattr(heir.harness.service.replicas.following, "held", held)
    monkeypatch.setattr(NodePeer, "get", patient_get)
    await done(patient, patient.first.service.replicas.transfers.give_all())
    assert (await patient.record()).home == other.node_id
    hangs.set()


async def test_a_drain_does_not_tell_a_node_that_has_said_nothing(
    patient: ThreeServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each stream would wait for that once more; the node finds by itself what it was given."""
    heir, other = await heir_and_other(patient)
    told: list[str] = []
    post = NodePeer.post

    async def noted(peer: NodePeer, path: str, *rest: Any) -> bytes:
        told.append(path)
        return await post(peer, path, *rest)

    monkeypatch.setattr(NodePeer, "post", noted)
    heir.address.gone = other.address.gone = True
    await done(patient, patient.first.service.replicas.transfers.give_all())
    assert (await patient.record()).home in (heir.node_id, other.node_id)
    assert of_stream(TRANSFER, STREAM) not in told
    heir.address.gone = other.address.gone = False
    await patient.until_owned_by(heir, other)


async def test_no_log_is_read_while_a_stream_is_being_given(
    patient: ThreeServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither that of the next owner, which was just started, nor that of the last one, which follows next,
    nor one that was not followed for a while."""
    a, b, c = await filled(patient)
    await restarted(patient, b)
    await c.harness.service.replicas.following.let_go(STREAM)
    seen: list[str] = []
    find, is_sound, hand_over = LogFiles.find, Opener.is_sound, Giving.hand_over

    def noted_find(files: LogFiles, *found: Any, **how: Any) -> Found:
        if not how.get("verified", True):
            seen.append("read")
        return find(files, *found, **how)

    async def noted_is_sound(opener: Opener, stream_id: StreamId) -> bool:
        seen.append("read")
        return await is_sound(opener, stream_id)

    async def noted_hand_over(giving: Giving, stream_id: StreamId, give: Any) -> None:
        seen.append("stopped")
        await hand_over(giving, stream_id, give)

    monkeypatch.setattr(LogFiles, "find", noted_find)
    monkeypatch.setattr(Opener, "is_sound", noted_is_sound)
    monkeypatch.setattr(Giving, "hand_over", noted_hand_over)
    owner = a
    for number, heir in enumerate((b, c, a, b)):
        await done(patient, owner.harness.service.replicas.transfers.give(STREAM, heir.node_id))
        assert await patient.until_owned_by(heir) is heir
        assert await patient.append(heir, "next") == len(VALUES) + number
        await patient.until_all_in_sync()
        owner = heir
    assert seen == ["read", *["stopped"] * 4]


@pytest.mark.parametrize("is_given", [False, True])
async def test_without_its_guard_a_member_goes_on_with_a_log_that_is_damaged(
    patient: ThreeServices, monkeypatch: pytest.MonkeyPatch, is_given: bool
) -> None:
    remove(
        monkeypatch,
        "the checksums of a log before this node goes on with it",
        lambda *_: False,
    )
    if is_given:
        a, b = await held_with_a_damaged_log_of_the_heir(patient)
        assert await patient.until_owned_by(a, b) is b
    else:
        b, _ = await began_alone_with_a_damaged_log(patient)
        assert await patient.until_owned_by(b) is b


async def test_a_stream_that_was_given_to_a_node_that_dies_at_once_is_gone_on_with(
    three: ThreeServices,
) -> None:
    a, b, c = await filled(three)
    await three.cut_off(c)
    assert await three.append(a, "3") == 3
    assert c.node_id not in (await three.record()).in_sync
    await three.cut_off(b)
    await a.harness.service.replicas.transfers.give(STREAM, b.node_id)
    assert (await three.record()).home == b.node_id
    # Nobody asks for it, and nobody has followed it since.
    assert await three.until_owned_by(a) is a


def test_a_log_counts_as_failing_when_it_fails_again_after_a_while() -> None:
    failing = FailingLogs()
    failing.failed(STREAM, 1_000)
    assert failing.lasting(5_000) == []
    failing.failed(STREAM, 6_000)
    assert failing.lasting(5_000) == [STREAM]
    failing.drop(STREAM)
    failing.failed(STREAM, 20_000)
    assert failing.lasting(5_000) == []


def test_damage_counts_at_once() -> None:
    failing = FailingLogs()
    failing.failed(STREAM, 1_000, for_good=True)
    assert failing.lasting(5_000) == [STREAM]
