"""Who of a consumer group holds which partition: decisions, without a store."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.guards import remove

from bottomless.errors import Code, Corrupt, NotFound, Overloaded, WrongOffset
from bottomless.model.names import Reference
from bottomless_server.core.consumer_group import (
    MEMBER_COUNT_MAX,
    ConsumerGroup,
    GroupMember,
    MemberId,
    Strategy,
    decode_group,
    encode_group,
)
from bottomless_server.manifest.consumers.core.groups import (
    REVOKE_MS,
    activate,
    differs,
    grow,
    held_by,
    join,
    leave,
    new_group,
    plan,
    release,
    release_overdue,
    require_strategy,
    revoked_from,
)

BILLING = Reference("billing")
STRATEGIES = st.sampled_from(list(Strategy))


def a_group(partition_count: int = 1, strategy: Strategy = Strategy.STICKY) -> ConsumerGroup:
    return grow(new_group("stream", BILLING, strategy, 0, 0), partition_count, 0)


def a_member(name: str, number: int = 0) -> GroupMember:
    return GroupMember(MemberId(f"id-{name}-{number}"), Reference(name), 0, 30_000)


def joined(group: ConsumerGroup, *names: str, now: int = 0) -> ConsumerGroup:
    for name in names:
        group = join(group, a_member(name), now)
        group.check()
    return group


def holders(group: ConsumerGroup) -> list[str | None]:
    names = {one.member_id: str(one.name) for one in group.members}
    return [None if one.holder is None else names[one.holder] for one in group.partitions]


def settled(group: ConsumerGroup) -> ConsumerGroup:
    """The group once everybody has released what was revoked."""
    return release_overdue(group, 2**52)


def test_who_joined_first_holds_a_stream_and_the_others_wait() -> None:
    group = joined(a_group(), "b", "a", "c")

    assert holders(group) == ["b"]
    assert group.partitions[0].generation == 1
    assert not held_by(group, "id-a-0")


def test_the_next_one_who_joined_follows_at_once_with_a_higher_generation() -> None:
    group = leave(joined(a_group(), "b", "a", "c"), MemberId("id-b-0"), 0)

    assert holders(group) == ["a"]
    assert group.partitions[0].generation == 2


def test_a_third_member_makes_two_others_release_only_what_moves() -> None:
    before = settled(joined(a_group(6), "a", "b"))
    group = join(before, a_member("c"), 1_000)

    assert Counter(holders(group)) == {"a": 3, "b": 3}, "nobody has given over anything yet"
    moving = [one for one in group.partitions if one.following == "id-c-0"]
    assert len(moving) == 2
    assert {one.revoke_at for one in moving} == {1_000 + REVOKE_MS}
    staying = [one for one in group.partitions if one.following is None]
    assert staying == [
        one for one in before.partitions if one.number in {x.number for x in staying}
    ]


def test_what_is_released_goes_to_who_follows() -> None:
    group = join(joined(a_group(2), "a"), a_member("b"), 0)
    (asked,) = revoked_from(group, "id-a-0")

    after = release(group, asked.number, MemberId("id-a-0"), asked.generation)

    assert after.partitions[asked.number].holder == "id-b-0"
    assert after.partitions[asked.number].generation == group.counter + 1
    assert Counter(holders(after)) == {"a": 1, "b": 1}


def test_a_late_or_doubled_release_changes_nothing() -> None:
    group = join(joined(a_group(2), "a"), a_member("b"), 0)
    (asked,) = revoked_from(group, "id-a-0")
    after = release(group, asked.number, MemberId("id-a-0"), asked.generation)

    assert release(after, asked.number, MemberId("id-a-0"), asked.generation) == after
    assert release(after, asked.number, MemberId("id-b-0"), asked.generation) == after
    assert release(after, 7, MemberId("id-b-0"), 1) == after


def test_what_is_not_released_is_taken_at_its_time_and_not_before() -> None:
    group = join(joined(a_group(2), "a"), a_member("b"), 1_000)

    assert release_overdue(group, 1_000 + REVOKE_MS - 1) == group
    assert Counter(holders(release_overdue(group, 1_000 + REVOKE_MS))) == {"a": 1, "b": 1}


def test_another_change_gives_no_more_time_to_who_has_to_release() -> None:
    group = join(joined(a_group(4), "a"), a_member("b"), 1_000)
    later = join(group, a_member("c"), 9_000)

    times = {one.revoke_at for one in group.partitions if one.revoke_at}
    kept = [one.revoke_at for one in later.partitions if one.revoke_at in times]
    assert len(kept) == 2


def test_who_comes_again_under_its_name_gets_its_place_and_its_partitions() -> None:
    before = settled(joined(a_group(4), "a", "b"))
    group = join(before, a_member("a", 2), 0)
    group.check()

    assert holders(group) == holders(before)
    assert [one.name for one in group.members] == ["a", "b"]
    assert held_by(group, "id-a-0") == {}
    old = {one.generation for one in held_by(before, "id-a-0").values()}
    new = {one.generation for one in held_by(group, "id-a-2").values()}
    assert min(new) > max(old)


def test_what_was_revoked_from_who_comes_again_is_free_at_once() -> None:
    group = join(joined(a_group(2), "a"), a_member("b"), 0)

    again = join(group, a_member("a", 2), 0)

    again.check()
    assert Counter(holders(again)) == {"a": 1, "b": 1}
    assert all(one.following is None for one in again.partitions)


def test_a_group_that_everybody_left_remembers_its_generations() -> None:
    group = leave(joined(a_group(2), "a"), MemberId("id-a-0"), 700)

    assert holders(group) == [None, None]
    assert group.empty_since == 700
    again = joined(group, "b")
    assert min(one.generation for one in again.partitions) > group.counter
    assert again.empty_since is None


def test_generations_of_a_later_generation_of_the_store_are_above_all_others() -> None:
    first = joined(new_group_of(1), "a")
    second = joined(new_group_of(2), "a")

    assert second.partitions[0].generation > first.partitions[0].generation + 2**39


def new_group_of(store_generation: int) -> ConsumerGroup:
    return grow(new_group("stream", BILLING, Strategy.STICKY, store_generation, 0), 1, 0)


def test_a_full_group_takes_nobody_but_who_comes_again() -> None:
    group = joined(a_group(), *(f"m{number}" for number in range(MEMBER_COUNT_MAX)))

    with pytest.raises(Overloaded) as refused:
        join(group, a_member("another"), 0)
    assert refused.value.code is Code.QUOTA_EXCEEDED
    assert len(join(group, a_member("m7", 2), 0).members) == MEMBER_COUNT_MAX


def test_neighbours_stay_together_by_range_in_the_order_of_names() -> None:
    group = settled(joined(a_group(5, Strategy.RANGE), "b", "a"))

    assert holders(group) == ["a", "a", "a", "b", "b"]


def test_partition_i_goes_to_member_i_mod_n_by_modulo() -> None:
    group = settled(joined(a_group(3, Strategy.MODULO), "b", "a"))

    assert holders(group) == ["b", "a", "b"]


@given(STRATEGIES)
def test_a_stream_stays_with_its_holder_whatever_the_strategy(strategy: Strategy) -> None:
    group = joined(a_group(1, strategy), "b", "a", "c")

    assert holders(group) == ["b"]
    assert group.partitions[0].following is None


def test_an_operator_has_a_stream_go_to_another_member() -> None:
    group = activate(joined(a_group(), "a", "b"), 0, "b", 50)

    assert holders(group) == ["a"]
    assert group.partitions[0].following == "id-b-0"
    after = release_overdue(group, 50 + REVOKE_MS)
    assert holders(after) == ["b"]
    assert holders(joined(after, "c")) == ["b"], "it stays there"
    assert activate(group, 0, "a", 60).partitions[0].following is None


@pytest.mark.parametrize("strategy", Strategy)
def test_what_an_operator_moves_stays_until_members_change_whatever_the_strategy(
    strategy: Strategy,
) -> None:
    """By any but sticky sharing its release gave it back to who had just released it."""
    group = joined(a_group(4, strategy), "a", "b")
    group = settled(group)
    index = holders(group).index("a")
    other = holders(group).index("b")
    group = activate(group, index, "b", 50)

    for after in (released(group, index), release_overdue(group, 50 + REVOKE_MS)):
        assert holders(after)[index] == "b"
        assert after.partitions[index].following is None
        # Nor does another release take it away again.
        assert holders(released(after, other))[index] == "b"


def test_without_its_guard_a_release_undoes_what_an_operator_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(monkeypatch, "who follows gets what is released", lambda _, wanted: wanted)
    group = settled(joined(a_group(4, Strategy.MODULO), "a", "b"))
    assert holders(released(activate(group, 0, "b", 50), 0))[0] == "a"


def released(group: ConsumerGroup, index: int) -> ConsumerGroup:
    """The group after the holder of a partition has released it."""
    one = group.partitions[index]
    assert one.holder is not None
    after = release(group, index, one.holder, one.generation)
    after.check()
    return after


def test_an_operator_asks_for_what_is_there() -> None:
    group = joined(a_group(), "a")

    with pytest.raises(NotFound) as refused:
        activate(group, 0, "nobody", 0)
    assert refused.value.code is Code.MEMBER_EXPIRED
    with pytest.raises(NotFound) as refused:
        activate(group, 1, "a", 0)
    assert refused.value.code is Code.NOT_FOUND


def test_who_expects_another_strategy_is_refused() -> None:
    group = a_group(strategy=Strategy.RANGE)

    require_strategy(group, None)
    require_strategy(group, Strategy.RANGE)
    with pytest.raises(WrongOffset) as refused:
        require_strategy(group, Strategy.STICKY)
    assert refused.value.code is Code.GROUP_MISMATCH


def test_a_member_has_something_to_do_where_it_holds_other_than_it_knows() -> None:
    group = joined(a_group(2), "a")
    has = {one.number: one.generation for one in group.partitions}

    assert not differs(group, "id-a-0", has)
    assert differs(group, "id-a-0", {})
    assert differs(group, "id-a-0", {**has, 0: 99})
    moved = join(group, a_member("b"), 0)
    assert differs(moved, "id-a-0", has)
    left = {number: has[number] for number in held_by(moved, "id-a-0")}
    assert not differs(moved, "id-a-0", left), "what it knows to be revoked is nothing new"


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["join", "again", "leave", "release", "overdue", "grow", "activate"]),
        st.integers(0, 7),
        st.integers(0, 7),
    ),
    max_size=25,
)


@given(STRATEGIES, st.integers(1, 5), STEPS)
def test_whatever_happens_a_generation_has_one_holder_and_everything_is_held(
    strategy: Strategy, partition_count: int, steps: list[tuple[str, int, int]]
) -> None:
    group, given_to = a_group(partition_count, strategy), dict[int, tuple[int, str]]()
    for now, (what, one, other) in enumerate(steps):
        before = group
        group = happened(group, what, one, other, now * 4_000)
        group.check()
        assert group.counter >= before.counter
        for partition in group.partitions:
            if partition.holder is not None:
                known = given_to.setdefault(
                    partition.generation, (partition.number, partition.holder)
                )
                assert known == (partition.number, partition.holder)
        gone = {x.member_id for x in before.members} - {x.member_id for x in group.members}
        for old, new in zip(before.partitions, group.partitions, strict=False):
            if old.holder and old.holder not in gone and what in ("join", "again", "grow"):
                assert (new.holder, new.generation) == (old.holder, old.generation)


def happened(group: ConsumerGroup, what: str, one: int, other: int, now: int) -> ConsumerGroup:
    members, partition = group.members, group.partitions[one % len(group.partitions)]
    if what == "join":
        names = [f"m{number}" for number in range(8) if group.named(f"m{number}") is None]
        return join(group, a_member(names[0], now), now) if names else group
    if what == "grow":
        return grow(group, min(len(group.partitions) + 1, 8), now)
    if what == "overdue":
        return release_overdue(group, now)
    if not members:
        return group
    member = members[other % len(members)]
    if what == "again":
        return join(group, a_member(member.name, now + 1_000_000), now)
    if what == "leave":
        return leave(group, member.member_id, now)
    if what == "activate":
        return activate(group, partition.number, member.name, now)
    return release(group, partition.number, member.member_id, partition.generation)


@given(st.integers(1, 12), st.integers(1, 6), st.integers(0, 5))
def test_sticky_sharing_is_even_and_moves_as_few_as_possible(
    partition_count: int, member_count: int, leaver: int
) -> None:
    names = [f"m{number}" for number in range(member_count)]
    group = settled(joined(a_group(partition_count), *names))
    assert evenly(group)

    more = join(group, a_member("another"), 0)
    moving = sum(one.following is not None for one in more.partitions)
    assert moving == partition_count // (member_count + 1)
    assert evenly(settled(more))

    gone = group.members[leaver % member_count]
    fewer = leave(group, gone.member_id, 0)
    if fewer.members:
        free = len(held_by(group, gone.member_id))
        changed = zip(group.partitions, fewer.partitions, strict=True)
        assert sum(old.generation != new.generation for old, new in changed) == free
        assert evenly(fewer)


def evenly(group: ConsumerGroup) -> bool:
    counts = Counter({one.member_id: 0 for one in group.members})
    counts.update(one.holder for one in group.partitions if one.holder)
    return max(counts.values()) - min(counts.values()) <= 1


@given(STRATEGIES, st.integers(1, 6), st.integers(1, 6))
def test_planning_twice_changes_nothing(strategy: Strategy, partitions: int, count: int) -> None:
    group = settled(joined(a_group(partitions, strategy), *(f"m{n}" for n in range(count))))

    assert plan(group, 5) == group
    assert replace(group) == group


@pytest.mark.parametrize("count", [3, 1_000])
def test_a_group_that_is_read_again_and_again_is_what_was_written(count: int) -> None:
    """A small one is decoded once: heartbeats of all its members read the same value."""
    group = joined(a_group(count), "a", "b", "c")
    data = encode_group(group)

    assert decode_group(data) == group
    assert (decode_group(data) is decode_group(bytes(data))) == (count == 3)
    with pytest.raises(Corrupt):
        decode_group(data[:-1])
