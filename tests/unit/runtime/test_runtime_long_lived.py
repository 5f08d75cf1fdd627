"""When the garbage collector looks at what: each case by its numbers."""

from bottomless_server.runtime.process.long_lived import (
    REST_SECONDS_MAX,
    REST_SECONDS_MIN,
    LongLived,
    Look,
)


def after_all(kept: int = 1_000, *, took: float = 0.5, now: float = 100.0) -> LongLived:
    return LongLived.after_all(kept, now - took, now)


def test_nothing_is_looked_at_while_little_is_new() -> None:
    assert after_all().decide(100.0, aged=False) is Look.NOTHING


def test_what_is_new_is_looked_at_once_it_has_aged() -> None:
    assert after_all().decide(100.0, aged=True) is Look.NEW


def test_all_is_counted_before_twice_as_much_as_was_in_use_can_be_set_aside() -> None:
    aside = after_all(1_000)
    aside.take_new(999)
    assert aside.decide(101.0, aged=True) is Look.NEW
    aside.take_new(1)
    assert aside.decide(101.0, aged=True) is Look.COUNT


def test_all_is_looked_at_when_the_count_says_that_it_is_twice_as_much() -> None:
    aside = after_all(1_000)
    aside.take_new(1_500)

    assert aside.take_count(2_000)


def test_what_went_by_itself_does_not_count_and_is_not_counted_again_at_once() -> None:
    aside = after_all(1_000)
    aside.take_new(1_000)

    assert not aside.take_count(1_999)
    aside.take_new(249)
    assert aside.decide(101.0, aged=True) is Look.NEW
    aside.take_new(1)
    assert aside.decide(101.0, aged=True) is Look.COUNT


def test_while_most_goes_by_itself_nothing_is_counted_before_the_bound_can_be_reached() -> None:
    aside = after_all(1_000)
    aside.take_new(1_000)
    assert not aside.take_count(1_100)

    aside.take_new(899)
    assert aside.decide(101.0, aged=True) is Look.NEW
    aside.take_new(1)
    assert aside.decide(101.0, aged=True) is Look.COUNT


def test_all_is_looked_at_when_the_last_look_is_a_thousand_times_as_long_ago_as_it_took() -> None:
    aside = after_all(took=0.5, now=100.0)
    aside.take_new(1)

    assert aside.decide(599.9, aged=True) is Look.NEW
    assert aside.decide(600.0, aged=True) is Look.ALL


def test_that_time_has_bounds_on_both_sides() -> None:
    assert after_all(took=0.0).rest_seconds == REST_SECONDS_MIN
    assert after_all(took=60.0).rest_seconds == REST_SECONDS_MAX


def test_where_nothing_was_set_aside_since_all_is_looked_at_after_the_longest_time() -> None:
    aside = after_all(took=0.5, now=100.0)
    aside.take_new(0)

    assert aside.decide(99.9 + REST_SECONDS_MAX, aged=False) is Look.NOTHING
    assert aside.decide(100.0 + REST_SECONDS_MAX, aged=False) is Look.ALL
