"""Each rule of replicas has a story that ends well, and does not without the rule.

The nodes are 0, 1 and 2, of which two have to be in sync; all are when a story begins.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from support.guards import remove

from model.replica_checks import check
from model.replicas import Replicas

Story = Callable[[Replicas], None]


def begun() -> Replicas:
    world = Replicas(3)
    world.claim(0)
    with_all(world, 0, (1, 2))
    return world


def with_all(world: Replicas, owner: int, others: Sequence[int]) -> None:
    """Open their logs, send them everything, and count them in."""
    for other in others:
        for _ in range(2):
            world.send(owner, other, 9)
            world.deliver_all()
        world.admit(owner, other)


def round_of(
    world: Replicas, owner: int, others: Sequence[int], records: int = 1, *, roll: bool = False
) -> None:
    world.commit(owner)
    world.append(owner, records, roll=roll)
    world.sync(owner)
    for other in others:
        world.send(owner, other, 9)
    world.deliver_all()
    world.commit(owner)


def a_node_that_lacks_something_claims(world: Replicas) -> None:
    world.evict(0, 2)
    round_of(world, 0, (1,))
    world.crash(0)
    world.claim(2)


def all_others_are_silent(world: Replicas) -> None:
    world.append(0, 1, roll=False)
    world.sync(0)
    world.evict(0, 1)
    world.evict(0, 2)
    world.commit(0)


def an_operator_names_a_node_that_lacks_something(world: Replicas) -> None:
    world.evict(0, 2)
    round_of(world, 0, (1,))
    world.crash(0)
    world.take_over(2)


def an_owner_goes_on_after_its_transfer(world: Replicas) -> None:
    round_of(world, 0, (1, 2))
    world.transfer_asked(0, 1)
    world.evict(0, 1)


def an_owner_shows_before_all_have_it(world: Replicas) -> None:
    world.append(0, 1, roll=False)
    world.sync(0)
    world.commit(0)


def a_member_is_counted_in_during_a_round(world: Replicas) -> None:
    round_of(world, 0, (1, 2))
    world.evict(0, 2)
    round_of(world, 0, (1,))
    world.admit(0, 2)


def an_opening_of_the_past_arrives_late(world: Replicas) -> None:
    round_of(world, 0, (1, 2))
    assert world.nodes[world.names[0]].owner is not None
    owner = world.nodes[world.names[0]].owner
    assert owner is not None
    late = ("open", world.names[0], world.names[2], 1, owner.opening)
    world.crash(0)
    world.claim(1)
    with_all(world, 1, (2,))
    world.evict(1, 0)
    round_of(world, 1, (2,))
    assert len(world.acknowledged) == 2
    world.messages.append(late)
    world.deliver_all()


def an_owner_comes_back_older(world: Replicas) -> None:
    round_of(world, 0, (1, 2))
    world.keep_copy(0)
    round_of(world, 0, (1, 2))
    with_all(world, 0, (1, 2))
    world.crash(0)
    world.come_back_older(0)
    assert world.aged
    world.start(0)
    world.claim(0)
    with_all(world, 0, (1,))
    world.claim(1)
    with_all(world, 1, (0, 2))


def an_owner_comes_back_with_what_was_cut(world: Replicas) -> None:
    """So no log has all of the other's, and what was told is all that anybody knows."""
    round_of(world, 0, (1, 2))
    world.append(0, 1, roll=False)
    world.sync(0)
    world.keep_copy(0)
    world.crash(0)
    world.claim(1)
    with_all(world, 1, (2,))
    world.evict(1, 0)
    round_of(world, 1, (2,))
    world.start(0)
    with_all(world, 1, (0,))
    world.transfer(1, 0)
    world.claim(0)
    with_all(world, 0, (1, 2))
    world.commit(0)
    with_all(world, 0, (1, 2))
    world.crash(0)
    world.come_back_older(0)
    assert world.aged
    world.start(0)
    world.claim(0)
    with_all(world, 0, (1,))
    world.claim(1)
    with_all(world, 1, (0, 2))


def an_owner_that_came_back_older_is_stopped(world: Replicas) -> None:
    round_of(world, 0, (1, 2))
    world.publish(0)
    world.keep_copy(0)
    round_of(world, 0, (1, 2))
    with_all(world, 0, (1, 2))
    world.crash(0)
    world.come_back_older(0)
    world.start(0)
    world.claim(0)
    world.leave_clean(0)


def all_lose_power_and_the_owners_disk_comes_back_older(world: Replicas) -> None:
    world.keep_copy(0)
    round_of(world, 0, (1, 2))
    round_of(world, 0, (1, 2))
    world.all_lose_power(0)
    assert world.aged
    world.claim(0)
    with_all(world, 0, (1, 2))
    world.claim(1)
    with_all(world, 1, (0, 2))


def the_next_owner_comes_back_older(world: Replicas, records: int, *, shows: bool) -> None:
    """Of two in sync one gives the stream to the other, with a round, and the next owner is dead before it
    tells anything. `shows`: whether it has shown that round; if not, the owner before did."""
    world.evict(0, 2)
    round_of(world, 0, (1,))
    world.keep_copy(1)
    world.append(0, records, roll=False)
    world.sync(0)
    world.send(0, 1, 9)
    world.deliver_all()
    if shows:
        world.transfer(0, 1)
        world.claim(1)
        world.send(1, 0)
        world.deliver_all()
        world.commit(1)
    else:
        world.commit(0)
        world.transfer(0, 1)
    assert len(world.shown) == 2
    world.crash(1)
    world.come_back_older(1)
    assert world.aged
    world.start(1)
    world.claim(1)
    world.send(1, 0)
    world.deliver_all()


def a_round_was_shown_by_the_next_owner(world: Replicas) -> None:
    the_next_owner_comes_back_older(world, 1, shows=True)


def a_disk_comes_back_with_what_was_cut(world: Replicas) -> None:
    """Node 2 alone has a round that its owner lost. It is cut while it is not counted on, and there again
    on a disk that is older than the next round."""
    round_of(world, 0, (1, 2))
    world.append(0, 1, roll=False)
    world.send(0, 2, 9)
    world.deliver_all()
    world.keep_copy(2)
    world.crash(0)
    world.start(0)
    world.claim(0)
    world.evict(0, 2)
    with_all(world, 0, (1,))
    world.commit(0)
    with_all(world, 0, (2,))
    assert world.events["a log was cut"] == 1
    round_of(world, 0, (1, 2))
    node, owner = world.node(2), world.node(0).owner
    world.crash(2)
    assert node.copy is not None
    assert owner is not None
    world.aged.add(node.name)
    node.disk = node.copy
    node.synced = len(node.disk.chunks)
    world.start(2)
    owner.forget(node.name)
    with_all(world, 0, (2,))
    if world.record.home == node.name:
        # The owner before knows no more of what it has shown.
        world.crash(0)
        world.start(0)
        world.claim(2)
        with_all(world, 2, (0, 1))


def an_owner_has_freed_what_another_still_has(world: Replicas) -> None:
    round_of(world, 0, (1, 2))
    world.publish(0)
    with_all(world, 0, (1, 2))
    world.crash(0)
    world.claim(1)
    with_all(world, 1, (2,))
    world.evict(1, 0)
    round_of(world, 1, (2,), roll=True)
    world.free(1)
    assert world.events["a segment was freed"] == 1
    world.crash(1, 0)
    world.start(1)
    world.claim(1)
    world.send(1, 2)
    world.deliver_all()


def one_comes_back_with_what_nobody_else_has(world: Replicas) -> None:
    round_of(world, 0, (1, 2))
    world.append(0, 1, roll=False)
    world.sync(0)
    world.crash(0)
    world.claim(1)
    with_all(world, 1, (2,))
    world.evict(1, 0)
    round_of(world, 1, (2,))
    world.start(0)
    with_all(world, 1, (0,))


def the_first_segment_is_lost_on_the_way(world: Replicas) -> None:
    world.evict(0, 2)
    round_of(world, 0, (1,))
    round_of(world, 0, (1,), roll=True)
    lose_the_first(world)


def a_chunk_without_records_is_lost_on_the_way(world: Replicas) -> None:
    _without_records(world, roll=False)


def it_is_lost_at_the_end_of_a_segment(world: Replicas) -> None:
    _without_records(world, roll=True)


def _without_records(world: Replicas, *, roll: bool) -> None:
    round_of(world, 0, (1, 2))
    world.evict(0, 2)
    round_of(world, 0, (1,), records=0)
    round_of(world, 0, (1,), roll=roll)
    lose_the_first(world)


def lose_the_first(world: Replicas) -> None:
    world.send(0, 2, 9)
    world.lose(0)
    world.deliver_all()
    world.admit(0, 2)


def _yes(*_: object, **__: object) -> bool:
    return True


def _no(*_: object) -> bool:
    return False


def _whole(run: Any, *_: object) -> Any:
    return run


STORIES: dict[str, tuple[Story, Callable[..., Any]]] = {
    "the in-sync set in a claim": (a_node_that_lacks_something_claims, _yes),
    "the floor of the in-sync set": (all_others_are_silent, _yes),
    "no takeover while a node in sync lives": (
        an_operator_names_a_node_that_lacks_something,
        _no,
    ),
    "the home in the EXECs of an owner with replicas": (
        an_owner_goes_on_after_its_transfer,
        _yes,
    ),
    "waiting for all that are in sync": (an_owner_shows_before_all_have_it, _yes),
    "admission after all rounds": (a_member_is_counted_in_during_a_round, _yes),
    "the epoch that a follower has seen": (an_opening_of_the_past_arrives_late, _no),
    "a follower that was told of more": (an_owner_comes_back_with_what_was_cut, _no),
    "a follower that has all of its owner's log, and more": (
        all_lose_power_and_the_owners_disk_comes_back_older,
        _no,
    ),
    "an opening since a node owned a stream": (a_round_was_shown_by_the_next_owner, _no),
    "an owner that has shown what it found": (a_disk_comes_back_with_what_was_cut, _no),
    "all that was found, shown before a stream is left": (
        an_owner_that_came_back_older_is_stopped,
        _yes,
    ),
    "what is published stays out of a cut": (an_owner_has_freed_what_another_still_has, _no),
    "the cut at an opening": (one_comes_back_with_what_nobody_else_has, _whole),
    "the beginning of an empty log": (the_first_segment_is_lost_on_the_way, _yes),
    "the place of what is sent, and not its offset": (
        a_chunk_without_records_is_lost_on_the_way,
        _yes,
    ),
    "the end of the segment before": (it_is_lost_at_the_end_of_a_segment, _yes),
}


def told(story: Story) -> Replicas:
    world = begun()
    story(world)
    check(world)
    return world


@pytest.mark.parametrize("name", STORIES)
def test_a_story_ends_well(name: str) -> None:
    told(STORIES[name][0])


@pytest.mark.parametrize("name", STORIES)
def test_without_its_rule_a_story_breaks_what_must_hold(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    story, variant = STORIES[name]
    remove(monkeypatch, name, variant)
    with pytest.raises(
        AssertionError,
        match=r"a node in sync|too few disks|the home is not|given up|a clean stream",
    ):
        told(story)


def test_a_disk_that_comes_back_with_what_was_cut_is_filled_again() -> None:
    world = told(a_disk_comes_back_with_what_was_cut)
    assert world.record.home == world.names[0]
    assert not world.aged


def test_an_owner_that_came_back_older_gives_its_place_to_one_that_knows_more() -> None:
    world = told(an_owner_comes_back_older)
    assert world.events["a log was not opened: diverged"]
    assert world.record.home == world.names[1]
    assert [len(node.disk.chunks) for node in world.nodes.values()] == [2, 2, 2]


@pytest.mark.parametrize("records", [0, 1])
@pytest.mark.parametrize("shows", [True, False])
def test_what_was_shown_is_not_cut_by_a_next_owner_that_came_back_older(
    records: int, shows: bool
) -> None:
    """Also what has no records, and says something of producers."""
    told(lambda world: the_next_owner_comes_back_older(world, records, shows=shows))


def test_what_has_no_records_is_not_cut_by_an_owner_that_came_back_with_nothing() -> None:
    def story(world: Replicas) -> None:
        world.evict(0, 2)
        world.keep_copy(1)
        round_of(world, 0, (1,), records=0)
        world.transfer(0, 1)
        for number in (0, 1):
            world.crash(number)
            world.start(number)
        world.crash(1)
        world.come_back_older(1)
        assert world.aged
        world.start(1)
        world.claim(1)
        world.send(1, 0)
        world.deliver_all()

    told(story)
