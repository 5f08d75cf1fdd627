"""When the garbage collector looks at what: each case by its numbers."""

from bottomless_server.runtime.process.long_lived import (
    REST_SECONDS_MAX,
    REST_SECONDS_MIN,
    SET_ASIDE_MIN,
    LongLived,
    Look,
)

KEPT = 10 * SET_ASIDE_MIN


def after_all(kept: int = KEPT, *, took: float = 0.5, now: float = 100.0) -> LongLived:
    return LongLived.after_all(kept, now - took, now)


def test_nothing_is_looked_at_while_little_is_new() -> None:
    assert after_all().decide(100.0, aged=False) is Look.NOTHING


def test_what_is_new_is_looked_at_once_it_has_aged() -> None:
    assert after_all().decide(100.0, aged=True) is Look.NEW


def test_what_is_left_is_set_aside_once_it_is_much() -> None:
    aside = after_all(KEPT)

    assert not aside.take_new(SET_ASIDE_MIN - 1)
    assert aside.aside == KEPT
    assert aside.take_new(SET_ASIDE_MIN)
    assert aside.aside == KEPT + SET_ASIDE_MIN


def test_all_is_counted_before_twice_as_much_as_was_in_use_can_be_set_aside() -> None:
    aside = after_all(KEPT)
    aside.take_new(KEPT - SET_ASIDE_MIN)
    assert aside.decide(101.0, aged=True) is Look.NEW
    aside.take_new(SET_ASIDE_MIN)
    assert aside.decide(101.0, aged=True) is Look.COUNT


def test_all_is_looked_at_when_the_count_says_that_it_is_twice_as_much() -> None:
    aside = after_all(KEPT)
    aside.take_new(2 * KEPT)

    assert aside.take_count(2 * KEPT)


def test_what_went_by_itself_does_not_count_and_is_not_counted_again_at_once() -> None:
    aside = after_all(KEPT)
    aside.take_new(KEPT)

    assert not aside.take_count(2 * KEPT - 1)
    aside.take_new(KEPT // 4 - 1)
    assert aside.decide(101.0, aged=True) is Look.NEW
    aside.take_new(SET_ASIDE_MIN)
    assert aside.decide(101.0, aged=True) is Look.COUNT


def test_while_most_goes_by_itself_nothing_is_counted_before_the_bound_can_be_reached() -> None:
    aside = after_all(KEPT)
    aside.take_new(KEPT)
    assert not aside.take_count(KEPT + 1)

    aside.take_new(KEPT - 2)
    assert aside.decide(101.0, aged=True) is Look.NEW
    aside.take_new(SET_ASIDE_MIN)
    assert aside.decide(101.0, aged=True) is Look.COUNT


def test_all_is_looked_at_when_the_last_look_is_a_thousand_times_as_long_ago_as_it_took() -> None:
    aside = after_all(took=0.5, now=100.0)
    aside.take_new(SET_ASIDE_MIN)

    assert aside.decide(599.9, aged=True) is Look.NEW
    assert aside.decide(600.0, aged=True) is Look.ALL


def test_that_time_has_bounds_on_both_sides() -> None:
    assert after_all(took=0.0).rest_seconds == REST_SECONDS_MIN
    assert after_all(took=60.0).rest_seconds == REST_SECONDS_MAX


def test_where_nothing_was_set_aside_since_all_is_looked_at_after_the_longest_time() -> None:
    aside = after_all(took=0.5, now=100.0)
    aside.take_new(SET_ASIDE_MIN - 1)

    assert aside.decide(99.9 + REST_SECONDS_MAX, aged=False) is Look.NOTHING
    assert aside.decide(100.0 + REST_SECONDS_MAX, aged=False) is Look.ALL
