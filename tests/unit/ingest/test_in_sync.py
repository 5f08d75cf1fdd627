"""Who may own a stream with replicas, and who is counted: the table of decisions."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product

import pytest
from support.guards import remove

from bottomless.errors import Fenced, StoreError, Unavailable
from bottomless.model.config import ReplicationConfig, StreamConfig
from bottomless.model.limits import REPLICA_COUNT_MAX
from bottomless.model.names import NodeId
from bottomless.model.stream import (
    NOBODY,
    EpochStart,
    StreamRecord,
    StreamState,
    check_record,
    epoch_at,
)
from bottomless_server.node.core import in_sync, ownership
from bottomless_server.node.core.in_sync import (
    Refusal,
    Refused,
    admit,
    all_have,
    claim,
    evict,
    leave_clean,
    may_append,
    may_be_admitted,
    reserve,
    set_members,
    take_over,
    transfer,
    with_member,
    without_member,
)
from bottomless_server.node.core.ownership import LocalView, OwnedElsewhere
from unit.ingest.harness import NAME, STREAM

A, B, C, D = (NodeId(letter * 32) for letter in "abcd")
WANTED = StreamConfig(replication=ReplicationConfig(replicas=3))
FRESH = StreamRecord(STREAM, NAME, "default", StreamState.ACTIVE, 0, WANTED)
EMPTY = LocalView(0, empty=True)
CLAIMED = claim(FRESH, A, "a:1", EMPTY, [C, B, A], home_held=False)
BOTH = admit(CLAIMED, A, 1, B)
ALL = reserve(admit(BOTH, A, 1, C), A, 1, 10)
HAS_ALL = LocalView(10, empty=False, epoch=1)


def test_who_claims_a_clean_stream_is_in_sync_alone_and_chooses_the_members() -> None:
    assert (CLAIMED.members, CLAIMED.in_sync) == ((A, B, C), (A,))
    assert (CLAIMED.home, CLAIMED.epoch) == (A, 1)
    assert not may_append(CLAIMED)
    assert may_append(BOTH)


def test_a_node_in_sync_claims_a_dirty_stream_whose_home_is_silent() -> None:
    claimed = claim(ALL, B, "b:1", HAS_ALL, home_held=False)
    assert (claimed.home, claimed.epoch, claimed.dirty) == (B, 2, True)
    assert (claimed.in_sync, claimed.members) == (ALL.in_sync, ALL.members)
    assert claimed.epochs[-1].first_offset == 10


def claimed_by_one_that_died() -> StreamRecord:
    """B followed under the first epoch; C claimed after it, and died before B heard of that."""
    return claim(ALL, C, "c:1", HAS_ALL, home_held=False)


def test_a_node_in_sync_without_a_record_goes_on_though_two_owners_died_before_they_wrote() -> None:
    """All three were in sync when all was published. B claimed after A, and C never heard of that."""
    start = EpochStart(5, 1_000)
    record = replace(ALL, epoch=5, epochs=(start,), published_next=1_000, reserved_next=2_000)
    begun = LocalView(0, empty=True, epoch=5, published_next=1_000)
    died = claim(record, B, "b:1", begun, home_held=False)
    claimed = claim(died, C, "c:1", begun, home_held=False)
    assert (claimed.epoch, claimed.home) == (7, C)
    assert claimed.epochs == (EpochStart(7, 1_000),)
    # Also where B had a round that nobody was shown.
    longer = LocalView(1_003, False, 5, 0, 1_000, epochs=(start,))
    died = claim(record, B, "b:1", longer, home_held=False)
    claimed = claim(died, C, "c:1", begun, home_held=False)
    assert claimed.epochs == (EpochStart(7, 1_000),)


def test_a_node_whose_log_is_gone_goes_on_with_nothing() -> None:
    record = replace(ALL, epoch=5, published_next=1_000, reserved_next=2_000)
    lost = LocalView(0, empty=True)
    before = LocalView(0, empty=True, epoch=5, published_next=900)
    for local, node in product((lost, before), (A, C)):
        with pytest.raises(Unavailable, match="its disk lost data"):
            claim(record, node, "c:1", local, home_held=False)
    # Of a stream that lies at its home alone nobody but the newest epoch says so.
    alone = replace(record, members=(), in_sync=())
    known = LocalView(0, empty=True, epoch=4, published_next=1_000)
    with pytest.raises(Unavailable, match="its disk lost data"):
        claim(alone, A, "a:1", known, home_held=False)
    assert claim(alone, A, "a:1", replace(known, epoch=5), home_held=False).epoch == 6


def test_the_log_of_a_node_in_sync_stays_when_others_claimed_in_between() -> None:
    record = claimed_by_one_that_died()
    assert not ownership.is_outdated(record, B, HAS_ALL)
    assert claim(record, B, "b:1", HAS_ALL, home_held=False).epoch == 3
    # Of a clean stream all is published, and whoever claims it begins after that.
    assert ownership.is_outdated(replace(record, dirty=False), B, HAS_ALL)


def test_without_its_guard_the_only_log_with_everything_is_set_aside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(monkeypatch, "the log of a node that holds a stream", lambda *_: False)
    assert ownership.is_outdated(claimed_by_one_that_died(), B, HAS_ALL)


def test_an_epoch_that_began_with_what_nobody_else_had_is_gone_with_its_owner() -> None:
    """C had a round that the others lack, claimed, and lost its disk: found by chaos."""
    record = claim(ALL, C, "c:1", LocalView(10, empty=False, epoch=1), home_held=False)
    assert [one.first_offset for one in record.epochs] == [0, 10]
    claimed = claim(record, B, "b:1", LocalView(7, empty=False, epoch=1), home_held=False)
    check_record(claimed)
    assert claimed.epochs == (EpochStart(1, 0), EpochStart(3, 7))


def goes_on_with_more_than_the_owner_in_between() -> StreamRecord:
    """A sent a round to C alone and died; B claimed without it, and died before anybody heard of that."""
    between = claim(ALL, B, "b:1", LocalView(7, empty=False, epoch=1), home_held=False)
    log = LocalView(10, empty=False, epoch=1, epochs=(EpochStart(1, 0),))
    claimed = claim(between, C, "c:1", log, home_held=False)
    check_record(claimed)
    return claimed


def test_the_record_has_the_epochs_of_the_log_that_goes_on() -> None:
    """What is uploaded of it has the epochs of its chunks."""
    claimed = goes_on_with_more_than_the_owner_in_between()
    assert claimed.epochs == (EpochStart(1, 0), EpochStart(3, 10))
    assert epoch_at(claimed, 9) == 1


def test_without_that_an_epoch_that_wrote_nothing_stands_for_what_was_written_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(monkeypatch, "the epochs of the log that goes on", lambda claimed, _: claimed.epochs)
    assert epoch_at(goes_on_with_more_than_the_owner_in_between(), 9) == 2


def test_what_the_record_knows_of_before_the_log_begins_stays() -> None:
    log = LocalView(10, empty=False, epoch=1, epochs=(EpochStart(1, 4),))
    record = replace(ALL, epoch=3, epochs=(EpochStart(0, 0), EpochStart(2, 6)))
    claimed = claim(record, C, "c:1", log, home_held=False)
    assert claimed.epochs == (EpochStart(0, 0), EpochStart(1, 4), EpochStart(4, 10))
    published = claim(replace(record, published_next=4), C, "c:1", log, home_held=False)
    assert published.epochs == (EpochStart(1, 4), EpochStart(4, 10))


def test_nobody_else_claims_a_dirty_stream() -> None:
    with pytest.raises(Unavailable):
        claim(evict(ALL, A, 1, B), B, "b:1", HAS_ALL, home_held=False)
    with pytest.raises(Unavailable):
        claim(ALL, D, "d:1", HAS_ALL, home_held=False)


@pytest.mark.parametrize("node", [B, D])
def test_whoever_asks_is_told_where_a_stream_is_whose_home_lives(node: NodeId) -> None:
    with pytest.raises(OwnedElsewhere) as elsewhere:
        claim(ALL, node, "x:1", HAS_ALL, home_held=True)
    assert elsewhere.value.owner_url == "a:1"


ONE = StreamRecord(
    STREAM,
    NAME,
    "default",
    StreamState.ACTIVE,
    0,
    StreamConfig(),
    epoch=3,
    reserved_next=100,
    epochs=(EpochStart(3, 0),),
)


def outcome_of(claiming: Callable[[], StreamRecord]) -> object:
    """What became of a claim: the record, or what was raised and says."""
    try:
        return claiming()
    except StoreError as error:
        return type(error), error.code, vars(error).get("owner_url"), str(error)


@pytest.mark.parametrize("dirty", [False, True])
@pytest.mark.parametrize("home", [None, A, B, NOBODY])
def test_a_stream_with_one_replica_is_claimed_as_if_there_were_none(
    dirty: bool, home: NodeId | None
) -> None:
    """Also by who is chosen for others: it has no members, so its record is what it was."""
    outcomes = set()
    for state, owner_url, published, view, held in product(
        StreamState,
        [None, "a:1", "b:1"],
        [0, 10],
        [EMPTY, HAS_ALL, LocalView(10, empty=False, epoch=3), LocalView(10, False, 4, 1, 10)],
        [False, True],
    ):
        record = replace(
            ONE, state=state, dirty=dirty, home=home, owner_url=owner_url, published_next=published
        )
        plain, ours = (
            outcome_of(partial(one, record, A, "a:1", view, home_held=held and home != A))
            for one in (ownership.claim, in_sync.claim)
        )
        assert ours == plain
        outcomes.add(type(plain))
    assert tuple in outcomes
    assert (StreamRecord in outcomes) == (home in (None, A) or not dirty)


def test_the_home_claims_under_its_own_lease() -> None:
    assert claim(ALL, A, "a:1", HAS_ALL, home_held=True).epoch == 2


@pytest.mark.parametrize("next_offset", [4, 2_000_000])
def test_a_log_that_ends_where_it_cannot_is_no_log_to_claim_with(next_offset: int) -> None:
    published = replace(ALL, published_next=5)
    view = LocalView(next_offset, empty=False, epoch=1)
    with pytest.raises(Unavailable):
        claim(published, B, "b:1", view, home_held=False)


def test_eviction_leaves_enough() -> None:
    two = evict(ALL, A, 1, C)
    assert two.in_sync == (A, B)
    assert evict(two, A, 1, C) == two
    assert refusal_of(lambda: evict(two, A, 1, B)) is Refusal.AT_THE_FLOOR


def test_only_members_are_admitted_and_only_who_is_not_in_sync_leaves() -> None:
    assert admit(ALL, A, 1, B) == ALL
    assert refusal_of(lambda: admit(ALL, A, 1, D)) is Refusal.NOT_A_MEMBER
    assert refusal_of(lambda: set_members(ALL, A, 1, [A, B])) is Refusal.IN_SYNC
    many = [NodeId(f"{number:032x}") for number in range(REPLICA_COUNT_MAX)]
    assert refusal_of(lambda: set_members(CLAIMED, A, 1, [A, *many])) is Refusal.TOO_MANY
    assert set_members(evict(ALL, A, 1, C), A, 1, [D, B, A]).members == (A, B, D)


def test_a_transfer_keeps_the_epoch_and_ends_what_the_old_owner_may() -> None:
    given = transfer(ALL, A, 1, B, "b:1", live=True)
    assert (given.home, given.owner_url, given.epoch) == (B, "b:1", 1)
    for change in (admit, evict):
        assert refusal_of(lambda change=change: change(given, A, 1, C)) is Refusal.NOT_HOME
    assert refusal_of(lambda: reserve(given, A, 1, 11)) is Refusal.NOT_HOME
    assert claim(given, B, "b:1", HAS_ALL, home_held=True).epoch == 2


def test_a_transfer_goes_to_a_living_node_that_has_everything() -> None:
    assert refusal_of(lambda: transfer(ALL, A, 1, B, "b:1", live=False)) is Refusal.NOT_LIVE
    two = evict(ALL, A, 1, C)
    assert refusal_of(lambda: transfer(two, A, 1, C, "c:1", live=True)) is Refusal.NOT_IN_SYNC


def test_an_owner_of_the_past_changes_nothing() -> None:
    newer = claim(ALL, B, "b:1", HAS_ALL, home_held=False)
    for change in (admit, evict):
        with pytest.raises(Fenced):
            change(newer, A, 1, C)
    with pytest.raises(Fenced):
        leave_clean(newer, A, 1, 10)


def test_a_stop_leaves_a_stream_clean_when_all_is_published() -> None:
    published = replace(ALL, published_next=10)
    assert not leave_clean(published, A, 1, 10).dirty


def test_a_takeover_waits_for_nobody_only_if_nobody_lives_who_has_everything() -> None:
    fenced = replace(ALL, epoch=2)
    assert refusal_of(lambda: take_over(ALL, fenced, [C])) is Refusal.IN_SYNC_LIVE
    assert take_over(ALL, fenced, [D]).in_sync == ()
    named = take_over(ALL, fenced, [D], B)
    assert (named.in_sync, named.home, named.epoch) == ((B,), B, 2)
    assert refusal_of(lambda: take_over(ALL, fenced, [], D)) is Refusal.NOT_A_MEMBER


def test_an_operator_takes_a_node_in_and_as_many_are_wanted_then() -> None:
    more = with_member(ALL, A, 1, D)
    assert (more.members, more.in_sync) == ((A, B, C, D), (A, B, C))
    assert more.config.replication.replicas == 4
    assert more.config_version == ALL.config_version + 1
    assert with_member(more, A, 1, D) == more
    alone = replace(ALL, config=StreamConfig(), members=(), in_sync=())
    assert with_member(alone, A, 1, A) == alone
    two = with_member(alone, A, 1, B)
    assert (two.members, two.in_sync) == ((A, B), (A,))
    assert two.config.replication.replicas == 2
    # Where one is missing, it takes the place that is free.
    lacking = set_members(evict(ALL, A, 1, C), A, 1, [A, B])
    assert with_member(lacking, A, 1, D).config == ALL.config
    nine = replace(ALL, members=tuple(NodeId(f"{n}" * 32) for n in range(9)))
    assert refusal_of(lambda: with_member(nine, A, 1, D)) is Refusal.TOO_MANY


def test_an_operator_lets_a_node_go_and_as_many_are_wanted_as_are_left() -> None:
    fewer = without_member(ALL, A, 1, C)
    assert (fewer.members, fewer.in_sync) == ((A, B), (A, B))
    assert fewer.config.replication.replicas == 2
    assert without_member(fewer, A, 1, C) == fewer
    alone = without_member(fewer, A, 1, B)
    assert (alone.members, alone.in_sync) == ((), ())
    assert alone.config.replication.replicas == 1
    assert refusal_of(lambda: without_member(ALL, A, 1, A)) is Refusal.HOME


def test_no_node_in_sync_goes_without_which_too_few_have_everything() -> None:
    """Two of three have everything: the third has to catch up before one of them may go."""
    without_c = evict(ALL, A, 1, C)
    assert refusal_of(lambda: without_member(without_c, A, 1, B)) is Refusal.AT_THE_FLOOR
    assert without_member(without_c, A, 1, C).in_sync == (A, B)
    strict = StreamConfig(replication=ReplicationConfig(replicas=3, min_in_sync=3))
    of_three = replace(ALL, config=strict)
    assert refusal_of(lambda: without_member(of_three, A, 1, C)) is Refusal.AT_THE_FLOOR


def test_a_round_is_done_when_all_have_it() -> None:
    assert all_have([A, B], {A: 3, B: 4}, 3)
    assert not all_have([A, B], {A: 3, B: 2}, 3)
    assert not all_have([A, B], {A: 3}, 3)


def test_a_member_is_admitted_with_everything_or_to_an_empty_log() -> None:
    assert may_be_admitted(3, 3)
    assert not may_be_admitted(2, 3)
    assert not may_be_admitted(None, 3)
    assert may_be_admitted(None, None)


def test_a_stream_that_had_no_replicas_lies_at_its_home_alone() -> None:
    """Its configuration asks for them while it is in use."""
    alone = replace(ALL, members=(), in_sync=())
    assert claim(alone, A, "a:1", HAS_ALL, home_held=True).home == A
    with pytest.raises(Unavailable):
        claim(alone, B, "b:1", HAS_ALL, home_held=False)
    assert refusal_of(lambda: set_members(alone, A, 1, [B, C])) is Refusal.IN_SYNC
    wider = set_members(alone, A, 1, [A, B])
    assert (wider.members, wider.in_sync) == ((A, B), (A,))


def test_a_stream_that_wants_no_replicas_any_more_says_nothing_of_them() -> None:
    one = evict(evict(replace(ALL, config=StreamConfig()), A, 1, C), A, 1, B)
    assert one.is_replicated
    assert not set_members(one, A, 1, [A]).is_replicated
    clean = replace(one, dirty=False, published_next=10)
    assert not claim(clean, A, "a:1", HAS_ALL, home_held=True).is_replicated


def refusal_of(change: object) -> Refusal:
    assert callable(change)
    with pytest.raises(in_sync.Refused) as refused:
        change()
    assert isinstance(refused.value, Refused)
    return refused.value.refusal
