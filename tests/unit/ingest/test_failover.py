"""When a node that follows a stream claims it: the decisions, and what is bounded of them."""

from dataclasses import replace

import pytest
from support.guards import remove

from bottomless.model.config import ReplicationConfig, StreamConfig
from bottomless.model.names import NodeId, StreamId
from bottomless.model.stream import NOBODY, StreamRecord, StreamState
from bottomless_server.node.core.failover import (
    CLAIM_COUNT_MAX,
    DIED_MS,
    LOOK_COUNT_MAX,
    LOOK_MS,
    RANK_MS,
    REST_MS,
    SILENT_MS,
    Outcome,
    Standing,
    Watch,
    rank,
    standing,
)
from unit.ingest.harness import NAME, STREAM

A, B, C, D = (NodeId(letter * 32) for letter in "abcd")
RECORD = replace(
    StreamRecord(STREAM, NAME, "default", StreamState.ACTIVE, 0, StreamConfig()),
    config=StreamConfig(replication=ReplicationConfig(replicas=3)),
    home=A,
    members=(A, B, C, D),
    in_sync=(A, B, C),
    dirty=True,
)


def a_watch(*stream_ids: StreamId, silent: bool = True) -> Watch:
    watch = Watch(B)
    for stream_id in stream_ids or (STREAM,):
        watch.heard(stream_id, -SILENT_MS if silent else 0)
    return watch


def streams(count: int) -> list[StreamId]:
    return [StreamId(f"0198d2a4-5b1e-7c3a-9a51-{number:012x}") for number in range(count)]


@pytest.mark.parametrize(
    ("record", "home_live", "says"),
    [
        (RECORD, True, Standing.LED),
        (RECORD, False, Standing.HEIR),
        (replace(RECORD, home=B), False, Standing.OURS),
        (replace(RECORD, home=B, dirty=False), False, Standing.CLOSED),
        (replace(RECORD, in_sync=(A, C)), False, Standing.CLOSED),
        (replace(RECORD, dirty=False), False, Standing.CLOSED),
        (replace(RECORD, home=NOBODY, in_sync=()), False, Standing.CLOSED),
        (replace(RECORD, members=(A, C)), False, Standing.GONE),
        (replace(RECORD, state=StreamState.DELETING), False, Standing.GONE),
    ],
)
def test_what_a_record_says_to_a_node_that_follows(
    record: StreamRecord, home_live: bool, says: Standing
) -> None:
    assert standing(record, B, home_live=home_live) is says


def test_each_node_in_sync_has_its_own_turn_and_each_begins_with_some_streams() -> None:
    records = [replace(RECORD, stream_id=one) for one in streams(100)]
    turns = [{rank(record, B), rank(record, C)} for record in records]
    assert turns == [{0, 1}] * 100
    assert {rank(record, B) for record in records} == {0, 1}


def test_a_stream_is_looked_at_when_its_owner_was_silent_for_a_while() -> None:
    watch = a_watch(silent=False)
    assert watch.due(SILENT_MS - 1) == []
    assert watch.due(SILENT_MS) == [STREAM]
    watch.heard(STREAM, 10)
    assert watch.due(SILENT_MS) == []


def test_of_a_stream_whose_home_lives_the_lease_is_looked_at_and_the_record_seldom() -> None:
    watch = a_watch()
    watch.looked(STREAM, RECORD, 0, home_live=True)
    assert watch.nodes(0) == {A, C, D}
    assert watch.due(LOOK_MS) == []
    assert watch.due(REST_MS) == [STREAM]
    assert watch.next_claim() is None


def test_a_home_that_lost_its_lease_has_the_record_read_and_the_stream_claimed_in_turn() -> None:
    watch = a_watch()
    watch.looked(STREAM, RECORD, 0, home_live=True)
    watch.dead({A}, 1_000)
    assert watch.due(1_000) == [STREAM]
    watch.looked(STREAM, RECORD, 1_000, home_live=False)
    at = 1_000 + rank(RECORD, B) * RANK_MS
    assert watch.next_claim() == at
    assert watch.due(at) == []
    assert watch.begin_claims(at - 1) == []
    assert watch.begin_claims(at) == [STREAM]


def test_a_stream_is_looked_at_when_another_node_dies_that_may_have_been_given_it() -> None:
    watch = a_watch()
    watch.looked(STREAM, RECORD, 0, home_live=True)
    watch.dead(set(), 500)
    watch.dead({C}, 1_000)
    assert watch.due(1_000 + DIED_MS - 1) == []
    assert watch.due(1_000 + DIED_MS) == [STREAM]
    given = replace(RECORD, home=C)
    watch.looked(STREAM, given, 1_000 + DIED_MS, home_live=False)
    assert watch.next_claim() is not None


def test_a_node_that_stays_dead_has_no_stream_looked_at_again() -> None:
    watch = a_watch()
    watch.looked(STREAM, RECORD, 0, home_live=True)
    watch.dead({C}, 1_000)
    watch.looked(STREAM, RECORD, 3_000, home_live=True)
    watch.dead({C}, 4_000)
    assert watch.due(3_000 + REST_MS - 1) == []
    watch.dead(set(), 5_000)
    watch.dead({C}, 6_000)
    assert watch.due(6_000 + DIED_MS) == [STREAM]


def test_an_owner_that_is_heard_again_in_time_is_not_claimed_from() -> None:
    watch = a_watch()
    watch.looked(STREAM, RECORD, 0, home_live=False)
    watch.heard(STREAM, 1)
    assert watch.next_claim() is None


def test_a_stream_that_was_given_to_this_node_is_claimed_without_a_turn() -> None:
    watch = Watch(B)
    watch.given(STREAM, 5)
    assert watch.due(5) == [STREAM]
    watch.looked(STREAM, replace(RECORD, home=B), 5, home_live=False)
    assert watch.begin_claims(5) == [STREAM]


def test_who_may_not_claim_goes_on_watching_and_who_is_no_member_does_not() -> None:
    watch = a_watch()
    watch.looked(STREAM, replace(RECORD, in_sync=(A, C)), 0, home_live=False)
    assert watch.next_claim() is None
    assert watch.due(REST_MS) == [STREAM]
    watch.looked(STREAM, replace(RECORD, members=(A, C)), 0, home_live=False)
    assert len(watch) == 0


def test_a_stream_that_is_gone_is_watched_no_more() -> None:
    watch = a_watch()
    watch.looked(STREAM, None, 0, home_live=False)
    assert len(watch) == 0


def claiming() -> Watch:
    watch = a_watch()
    watch.looked(STREAM, RECORD, 0, home_live=False)
    assert watch.begin_claims(1_000) == [STREAM]
    return watch


def test_a_stream_is_not_followed_while_it_is_claimed() -> None:
    watch = claiming()
    assert watch.is_held_back(STREAM)
    watch.heard(STREAM, 1_001)
    watch.forget(STREAM)
    watch.looked(STREAM, RECORD, 1_001, home_live=True)
    assert watch.is_held_back(STREAM)
    watch.claimed(STREAM, Outcome.OWNED, 1_002)
    assert not watch.is_held_back(STREAM)
    assert len(watch) == 0


def test_a_claim_that_was_refused_is_followed_by_another_look() -> None:
    watch = claiming()
    watch.claimed(STREAM, Outcome.REFUSED, 1_000)
    assert not watch.is_held_back(STREAM)
    assert watch.due(1_000 + LOOK_MS) == [STREAM]


def test_a_claim_without_a_reply_is_settled_before_the_stream_is_followed() -> None:
    watch = claiming()
    watch.claimed(STREAM, Outcome.UNKNOWN, 1_000)
    assert watch.is_held_back(STREAM)
    # Nobody has it: another claim decides, and one that is refused does not.
    watch.looked(STREAM, RECORD, 2_000, home_live=False)
    assert watch.begin_claims(3_000) == [STREAM]
    watch.claimed(STREAM, Outcome.REFUSED, 3_000)
    assert watch.is_held_back(STREAM)
    # Its home has its lease back, which the claim's EXEC watched.
    watch.looked(STREAM, RECORD, 4_000, home_live=True)
    assert not watch.is_held_back(STREAM)


def test_a_claim_for_somebody_who_asked_is_settled_as_well() -> None:
    watch = Watch(B)
    watch.unsettled(STREAM, 0)
    assert watch.is_held_back(STREAM)
    assert watch.due(LOOK_MS - 1) == []
    assert watch.due(LOOK_MS) == [STREAM]
    watch.looked(STREAM, RECORD, LOOK_MS, home_live=True)
    assert not watch.is_held_back(STREAM)


def test_without_its_guard_a_stream_is_followed_while_a_claim_may_land(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(monkeypatch, "no following while a claim may land", lambda *_: False)
    watch = claiming()
    watch.claimed(STREAM, Outcome.UNKNOWN, 1_000)
    assert not watch.is_held_back(STREAM)


def test_of_a_thousand_streams_so_many_are_looked_at_and_claimed_at_once_and_each_has_its_turn() -> (
    None
):
    watch = a_watch(*streams(1_000))
    claimed: list[StreamId] = []
    now = 0
    while len(watch):
        due = watch.due(now)
        assert len(due) <= LOOK_COUNT_MAX
        for stream_id in due:
            watch.looked(stream_id, replace(RECORD, stream_id=stream_id), now, home_live=False)
        while begun := watch.begin_claims(now):
            assert len(begun) <= CLAIM_COUNT_MAX
            assert watch.next_claim() is None or len(begun) < CLAIM_COUNT_MAX
            claimed += begun
            for stream_id in begun:
                watch.claimed(stream_id, Outcome.OWNED, now)
        now += LOOK_MS
    assert sorted(claimed) == streams(1_000)


def test_a_claim_that_fails_again_and_again_keeps_no_other_stream_waiting() -> None:
    first, *others = streams(CLAIM_COUNT_MAX + 1)
    watch = a_watch(first, *others)
    claimed = set[StreamId]()
    for now in range(0, 20_000, LOOK_MS):
        for stream_id in watch.due(now):
            watch.looked(stream_id, replace(RECORD, stream_id=stream_id), now, home_live=False)
        for stream_id in watch.begin_claims(now):
            failed = stream_id == first
            claimed |= set[StreamId]() if failed else {stream_id}
            watch.claimed(stream_id, Outcome.REFUSED if failed else Outcome.OWNED, now)
    assert claimed == set(others)
    assert len(watch) == 1
