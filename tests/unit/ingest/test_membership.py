"""How many nodes hold a stream, and how many are to."""

from collections.abc import Collection
from typing import Final

import pytest
from support.guards import remove

from bottomless.model.config import ReplicationConfig, StreamConfig
from bottomless.model.names import NodeId
from bottomless.model.stream import StreamRecord, StreamState
from bottomless_server.ingest.replicas.membership import Membership
from bottomless_server.node.core.replica_waits import Do, Holders, Step
from bottomless_server.protocol.replica import Place
from unit.ingest.harness import NAME, STREAM

A, B, C, D, E = (NodeId(letter * 32) for letter in "abcde")
ALL: Final = Holders(A, (A, B, C), (A, B, C), 2)


def a_config(replicas: int) -> StreamConfig:
    return StreamConfig(replication=ReplicationConfig(replicas=replicas))


def membership(replicas: int, *free: NodeId) -> Membership:
    async def choose(record: StreamRecord, kept: Collection[NodeId]) -> tuple[NodeId, ...]:
        others = [node for node in free if node not in kept]
        return tuple(others[: record.config.replication.replicas - len(kept)])

    record = StreamRecord(STREAM, NAME, "default", StreamState.ACTIVE, 0, a_config(replicas))
    return Membership(record, choose)


async def test_as_many_as_wanted_stay() -> None:
    three = membership(3, D)
    assert three.is_right(ALL)
    assert await three.next(ALL) is None


async def test_others_are_taken_in_as_far_as_there_are_any() -> None:
    alone = Holders(A, (A,), (A,), 2)
    assert not membership(3).is_right(alone)
    assert await membership(3).next(alone) is None
    assert await membership(3, B, C, D).next(alone) == (A, B, C)
    assert await membership(3, B).next(alone) == (A, B)


async def test_who_is_out_of_sync_goes_first_and_who_is_in_it_is_evicted_before() -> None:
    two = membership(3, D)
    two.configure(a_config(2))
    assert not two.is_right(ALL)
    assert await two.next(Holders(A, (A, B, C), (A, C), 2)) == (A, C)
    assert await two.next(ALL) == Step(Do.EVICT, C)
    doubted = Holders(A, (A, B, C), (A, B), 2, frozenset({C}))
    assert await two.next(doubted) == Step(Do.EVICT, C)


FOUR: Final = Holders(A, (A, B, C, D), (A, B), 2)


def without_a_lease(of: Membership, *nodes: NodeId) -> None:
    of.looked(nodes, 1_000, 500)
    of.looked(nodes, 1_500, 500)


async def test_a_member_without_a_lease_for_long_is_replaced_after_another_has_everything() -> None:
    three = membership(3, A, B, C, D)
    three.looked([C], 1_000, 500)
    three.looked([C], 1_499, 500)
    assert three.is_right(ALL)
    three.looked([C], 1_500, 500)
    assert not three.is_right(ALL)
    assert await three.next(ALL) == (A, B, C, D)
    # The one that comes has nothing yet, and the disk of the other one may come back.
    assert await three.next(FOUR) is None
    assert await three.next(Holders(A, (A, B, C, D), (A, B, C, D), 2)) == Step(Do.EVICT, C)
    assert await three.next(Holders(A, (A, B, C, D), (A, B, D), 2)) == (A, B, D)
    assert three.is_right(Holders(A, (A, B, D), (A, B, D), 2))


async def test_who_has_a_lease_again_in_time_stays() -> None:
    three = membership(3, A, B, C, D)
    three.looked([C], 1_000, 500)
    three.looked([], 1_400, 500)
    three.looked([C], 1_600, 500)
    assert three.is_right(ALL)


async def test_nobody_goes_for_whom_nobody_comes() -> None:
    three = membership(3)
    without_a_lease(three, C)
    assert await three.next(ALL) is None


async def test_an_operator_has_a_member_replaced_that_lives() -> None:
    three = membership(3, A, B, C, D)
    three.replace(B)
    three.looked([], 0, 500)
    assert await three.next(ALL) == (A, B, C, D)
    assert await three.next(Holders(A, (A, B, C, D), (A, B, C, D), 2)) == Step(Do.EVICT, B)
    three.forget([B])
    assert three.is_right(ALL)


async def test_who_catches_up_holds_nothing_back_once_fewer_are_wanted() -> None:
    """It may never have everything."""
    three = membership(3, A, B, C, D)
    without_a_lease(three, C)
    three.configure(a_config(2))
    assert await three.next(FOUR) == (A, B, C)
    assert await three.next(Holders(A, (A, B, C), (A, B), 2)) == (A, B)
    assert three.is_right(Holders(A, (A, B), (A, B), 2))


async def test_without_its_guard_a_member_goes_before_another_has_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(
        monkeypatch, "who comes has everything before the one goes that it replaces", lambda _: True
    )
    three = membership(3, A, B, C, D)
    without_a_lease(three, C)
    assert await three.next(FOUR) == (A, B, D)


HALF: Final = Place(0, 500)


def halted(of: Membership, *nodes: NodeId, away: Collection[NodeId] = ()) -> None:
    """Nothing more is heard of nodes that lack something, for as long as one without a lease is waited for."""
    for now in (1_000, 1_500):
        of.looked(away, now, 500, dict.fromkeys(nodes, HALF))


async def test_a_node_that_does_not_catch_up_gives_its_place_to_one_that_comes_for_the_same() -> (
    None
):
    """B has no lease, and D was taken in for it."""
    three = membership(3, A, B, C, D, E)
    without_a_lease(three, B)
    waits = Holders(A, (A, B, C, D), (A, C), 2)
    three.looked([B], 2_000, 500, {D: HALF})
    three.looked([B], 2_400, 500, {D: Place(0, 600)})
    three.looked([B], 2_899, 500, {D: Place(0, 600)})
    assert await three.next(waits) is None
    three.looked([B], 2_900, 500, {D: Place(0, 600)})
    assert await three.next(waits) == (A, B, C, E)
    three.forget([D])
    assert await three.next(Holders(A, (A, B, C, E), (A, C), 2)) is None
    assert await three.next(Holders(A, (A, B, C, E), (A, C, E), 2)) == (A, C, E)


async def test_a_member_that_fell_out_and_does_not_catch_up_goes_after_another_has_everything() -> (
    None
):
    three = membership(3, A, B, C, D)
    out = Holders(A, (A, B, C), (A, B), 2)
    assert three.is_right(out)
    halted(three, C)
    assert not three.is_right(out)
    assert await three.next(out) == (A, B, C, D)
    assert await three.next(Holders(A, (A, B, C, D), (A, B), 2)) is None
    assert await three.next(Holders(A, (A, B, C, D), (A, B, D), 2)) == (A, B, D)


async def test_who_does_not_catch_up_is_named_as_such_also_where_nobody_else_could_come() -> None:
    three = membership(3)
    out = Holders(A, (A, B, C), (A, B), 2)
    three.looked([], 1_000, 500, {C: HALF})
    assert three.stalled(out) == ()
    three.looked([], 1_500, 500, {C: HALF})
    assert three.stalled(out) == (C,)
    assert three.stalled(Holders(A, (A, B, C), (A, B, C), 2)) == ()
    three.looked([C], 1_600, 500, {C: HALF})
    assert three.stalled(out) == ()
    three.looked([], 1_700, 500, {C: Place(0, 600)})
    assert three.stalled(out) == ()


async def test_a_log_whose_end_nobody_knows_for_a_while_has_not_gone_on() -> None:
    """Its node lives, has it opened, and answers no body."""
    three = membership(3, A, B, C, D)
    out = Holders(A, (A, B, C), (A, B), 2)
    for now, end in ((1_000, HALF), (1_200, None), (1_400, HALF), (1_499, None)):
        three.looked([], now, 500, {C: end})
        assert three.is_right(out)
    three.looked([], 1_500, 500, {C: HALF})
    assert await three.next(out) == (A, B, C, D)
    three.looked([], 1_600, 500, {C: Place(0, 600)})
    assert three.is_right(out)


async def test_a_node_that_dies_and_comes_again_all_the_time_does_not_catch_up() -> None:
    three = membership(3, A, B, C, D)
    out = Holders(A, (A, B, C), (A, B), 2)
    for now, away in ((1_000, []), (1_200, [C]), (1_300, []), (1_500, [C])):
        three.looked(away, now, 500, {C: None if away else HALF})
        assert three.is_right(out)
    three.looked([], 1_600, 500, {C: HALF})
    assert await three.next(out) == (A, B, C, D)


async def test_who_does_not_catch_up_stays_where_there_is_nobody_else() -> None:
    three = membership(3, A, B, C, D)
    halted(three, D, away=[B])
    assert await three.next(Holders(A, (A, B, C, D), (A, C), 2)) is None
    assert await three.next(Holders(A, (A, C, D), (A, C), 2)) == (A, C, D, B)


async def test_of_several_that_do_not_catch_up_all_stay_where_there_is_nobody_else() -> None:
    """The owner may be the one that is cut off."""
    two = membership(2, A, B, C)
    halted(two, B, C)
    both = Holders(A, (A, B, C), (A,), 1)
    assert await two.next(both) is None
    two.looked([], 1_600, 500, {B: HALF, C: Place(0, 600)})
    assert await two.next(both) is None
    assert await two.next(Holders(A, (A, B, C), (A, C), 1)) == (A, C)


async def test_who_did_not_catch_up_is_taken_in_again_where_nobody_else_is_left() -> None:
    three = membership(3, C, D, E)
    halted(three, D)
    assert await three.next(Holders(A, (A, B, D), (A, B), 2)) == (A, B, D, C)
    three.forget([D])
    assert await three.next(Holders(A, (A, B), (A, B), 2)) == (A, B, C)
    one = membership(3, D)
    halted(one, D)
    one.forget([D])
    assert await one.next(Holders(A, (A, B), (A, B), 2)) == (A, B, D)


async def test_those_that_did_not_catch_up_come_again_in_their_turn() -> None:
    """One of them may have been mended since: here E, once it had its turn."""
    two = membership(2, C, D, E)
    stuck, others = B, list[NodeId]()
    for now in range(1_000, 8_000, 1_000):
        two.looked([], now, 500, {B: HALF, stuck: HALF})
        two.looked([], now + 500, 500, {B: HALF, stuck: HALF})
        members = await two.next(Holders(A, tuple(dict.fromkeys((A, B, stuck))), (A,), 1))
        assert members is not None
        assert not isinstance(members, Step)
        if stuck != B:
            two.forget([stuck])
        stuck = members[-1]
        others.append(stuck)
    assert others == [C, D, E, C, D, E, C]


async def test_without_its_guard_a_node_that_does_not_catch_up_is_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(monkeypatch, "another node for one that does not catch up", lambda *_: False)
    three = membership(3, A, B, C, D, E)
    without_a_lease(three, B)
    halted(three, D, away=[B])
    assert await three.next(Holders(A, (A, B, C, D), (A, C), 2)) is None


async def test_another_node_holds_what_one_node_is_to_hold_while_its_owner_gives_way() -> None:
    one = membership(1, B, C)
    alone = Holders(A, (A,), (A,), 1)
    assert one.is_right(alone)
    one.give_way()
    assert one.replicas == 1
    assert not one.is_right(alone)
    assert await one.next(alone) == (A, B)
    assert one.is_right(Holders(A, (A, B), (A,), 1))
    # Whoever owns it then wants one.
    assert await membership(1, C).next(Holders(B, (A, B), (B,), 1)) == (B,)


async def test_where_nobody_chooses_nobody_is_taken_in() -> None:
    record = StreamRecord(STREAM, NAME, "default", StreamState.ACTIVE, 0, a_config(3))
    alone = Holders(A, (A,), (A,), 2)
    assert Membership(record, None).is_right(alone)
    assert await Membership(record, None).next(alone) is None
