"""When a round of compaction begins, and which objects it takes, over any story of commits and rounds."""

from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from bottomless.model.names import Uid
from bottomless_server.leaderless.tail import HeldMember
from bottomless_server.uploader.compaction.core.waiting import (
    RELEASE_WAIT_MS_MAX,
    SIZE_EXPECTED,
    Left,
    Limits,
    Place,
    WaitingObjects,
    Why,
)

ONE: Final = Uid(f"{1:032x}")
TWO: Final = Uid(f"{2:032x}")
MINUTE: Final = 60_000
LIMITS: Final = Limits(10 * SIZE_EXPECTED, 100)
CLOCK: Final = 1_700_000_000_000
"""What the clocks of commits say when the clock of rounds says 0."""


def held(
    sequence: int, *, at: int = 0, age: int = 10 * MINUTE, entries: int = 1, shard: int = 0
) -> HeldMember:
    return HeldMember(sequence, shard, CLOCK + at, age, entries)


def objects_with(*members: HeldMember, now: int = 0) -> WaitingObjects:
    objects = WaitingObjects(LIMITS)
    objects.seen(ONE, members, now, CLOCK + now)
    return objects


def test_a_round_begins_when_a_member_is_older_than_its_streams_allow() -> None:
    objects = objects_with(held(0, age=10 * MINUTE), held(1, age=MINUTE))

    assert objects.begins(MINUTE - 1) is None
    assert objects.begins(MINUTE) is Why.AGE


def test_what_had_waited_before_it_was_seen_counts_and_a_commit_of_the_future_is_one_of_now() -> (
    None
):
    objects = objects_with(held(0, at=-MINUTE, age=MINUTE + 5))
    ahead = objects_with(held(0, at=3_600_000, age=MINUTE))

    assert objects.begins(4) is None
    assert objects.begins(5) is Why.AGE
    assert ahead.begins(MINUTE) is Why.AGE


def test_a_round_begins_when_half_of_the_cache_waits_by_the_sizes_that_are_known() -> None:
    objects = objects_with(*map(held, range(4)))
    assert objects.begins(1) is None
    objects.seen(ONE, [held(4)], 0, CLOCK)
    assert objects.begins(1) is Why.FULL

    objects.sized(Place(ONE, 0), 1_000)

    # The others are taken to be as small.
    assert objects.begins(1) is None


def test_a_round_begins_when_many_entries_wait() -> None:
    assert objects_with(held(0, entries=60), held(0, entries=39, shard=1)).begins(1) is None
    assert objects_with(held(0, entries=60), held(0, entries=40, shard=1)).begins(1) is Why.FULL


def test_what_a_round_left_for_half_an_hour_is_not_taken_by_the_rounds_of_others() -> None:
    objects = objects_with(held(0, age=10_000))
    objects.looked_at(Place(ONE, 0), Left(15 * MINUTE, 30 * MINUTE, 1), advanced=True)
    objects.seen(ONE, [held(1, at=20_000, age=10_000)], 20_000, CLOCK + 20_000)

    assert objects.begins(29_999) is None
    assert objects.begins(30_000) is Why.AGE
    assert objects.candidates(Why.AGE, 30_000) == [Place(ONE, 1)]
    assert objects.candidates(Why.AGE, 15 * MINUTE) == [Place(ONE, 0), Place(ONE, 1)]
    # Where too much waits, all of it is to become less.
    assert objects.candidates(Why.FULL, 30_000) == [Place(ONE, 0), Place(ONE, 1)]


def test_what_only_streams_need_that_are_set_aside_neither_begins_a_round_nor_is_taken() -> None:
    objects = objects_with(*(held(number, entries=20) for number in range(5)))
    assert objects.begins(1) is Why.FULL

    for number in range(5):
        objects.looked_at(Place(ONE, number), Left(1_000, 1_000, 0), advanced=False)

    assert objects.begins(999) is None
    assert objects.candidates(Why.ASKED, 999) == []
    # However much it is, the others are not cut for it.
    assert objects.begins(1_000) is Why.AGE
    assert len(objects.candidates(Why.AGE, 1_000)) == 5


def test_what_advanced_no_stream_goes_last_the_next_time() -> None:
    objects = objects_with(held(0, at=0), held(1, at=1), held(2, at=2))
    objects.looked_at(Place(ONE, 0), Left(0, 0, 1), advanced=False)

    assert objects.candidates(Why.AGE, 5) == [Place(ONE, number) for number in (1, 2, 0)]


def test_objects_come_by_the_clocks_of_their_commits_whoever_wrote_them() -> None:
    objects = objects_with(held(0, at=5), held(1, at=9))
    objects.seen(TWO, [held(0, at=7)], 10, CLOCK + 10)

    assert objects.candidates(Why.AGE, 10) == [Place(ONE, 0), Place(TWO, 0), Place(ONE, 1)]


def test_a_stream_that_goes_on_again_has_the_rest_of_its_objects_looked_at_sooner() -> None:
    objects = objects_with(held(0))
    objects.looked_at(Place(ONE, 0), Left(600_000, 600_000, 0), advanced=False)
    objects.wanted(Place(ONE, 0), Left(100, 200, 1))

    assert objects.candidates(Why.AGE, 100) == [Place(ONE, 0)]
    assert objects.begins(200) is Why.AGE


@given(st.lists(st.integers(1, 20), min_size=1, max_size=30))
def test_the_oldest_are_taken_until_the_cache_is_full_and_one_always_fits(sizes: list[int]) -> None:
    objects = WaitingObjects(Limits(40, 10**6))
    objects.seen(ONE, [held(number, at=number) for number in range(len(sizes))], 0, CLOCK)
    for number, size in enumerate(sizes):
        objects.sized(Place(ONE, number), size * 3)
    candidates = objects.candidates(Why.ASKED, 1)

    taken = objects.take(candidates)

    assert taken == candidates[: len(taken)]
    assert len(taken) >= 1
    total = sum(3 * sizes[place.sequence] for place in taken)
    assert total <= 40 or len(taken) == 1
    if len(taken) < len(candidates):
        assert total + 3 * sizes[candidates[len(taken)].sequence] > 40


@given(st.integers(1, 40), st.integers(1, 10))
def test_objects_that_advance_nothing_keep_no_other_from_being_taken(
    count: int, capacity: int
) -> None:
    objects = WaitingObjects(Limits(capacity, 10**6))
    objects.seen(ONE, [held(number, at=number) for number in range(count)], 0, CLOCK)
    for number in range(count):
        objects.sized(Place(ONE, number), 1)
    rounds = -(-count // capacity)
    seen: set[Place] = set()

    for _ in range(rounds):
        for place in objects.take(objects.candidates(Why.ASKED, 1)):
            seen.add(place)
            objects.looked_at(place, Left(0, 0, 1), advanced=False)

    assert len(seen) == count


def test_a_release_that_finds_it_needed_is_tried_again_after_longer_and_longer_waits() -> None:
    objects = objects_with(held(0))
    place, now = Place(ONE, 0), 0
    objects.finished(place, (), now)
    waits = []
    for _ in range(9):
        assert list(objects.to_release(now)) == [place]
        objects.not_released(place, now)
        waits.append(
            next(wait for wait in range(RELEASE_WAIT_MS_MAX + 1) if _due(objects, now + wait))
        )
        now += waits[-1]

    assert waits == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000]
    # Nothing of it waits for a round meanwhile.
    assert objects.begins(10**12) is None
    objects.forget([place])
    assert len(objects) == 0


def _due(objects: WaitingObjects, now: int) -> bool:
    return bool(objects.to_release(now))


def test_an_object_that_is_held_again_waits_again() -> None:
    objects = objects_with(held(0))
    objects.finished(Place(ONE, 0), (), 0)
    objects.seen(ONE, [held(0, shard=3, age=MINUTE)], 0, CLOCK)

    assert objects.to_release(0) == {}
    assert objects.begins(MINUTE) is Why.AGE


def test_after_other_shards_are_held_everything_is_learned_anew() -> None:
    objects = objects_with(held(0), held(1))
    objects.finished(Place(ONE, 0), (), 0)
    objects.forget()

    assert objects.places() == set()
    assert objects.oldest_age_ms(CLOCK) == 0
