"""What makes room in a queue, repeats of a publish, and circles of dead letters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottomless.model.queue import parse_queue_config
from bottomless_server.queues.core.order import (
    FITS,
    Excess,
    closes_circle,
    delivery_order,
    excess,
    heads_to_drop,
)
from bottomless_server.queues.core.repeats import Repeat, decide_repeat, ids_of, key_hash


def test_the_highest_priority_is_first_and_of_one_priority_the_lowest_sequence() -> None:
    items = [(0, 3), (9, 7), (0, 1), (9, 2)]
    assert sorted(items, key=lambda item: delivery_order(*item)) == [(9, 2), (9, 7), (0, 1), (0, 3)]


@given(
    sizes=st.lists(st.integers(1, 9), max_size=8),
    new=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    count_max=st.none() | st.integers(1, 8),
    size_max=st.none() | st.integers(1, 40),
)
def test_as_many_are_dropped_as_have_to_be_and_no_more(
    sizes: list[int], new: list[int], count_max: int | None, size_max: int | None
) -> None:
    said = {"max_messages": count_max, "max_bytes": size_max, "overflow": "drop-head"}
    needed = excess(parse_queue_config(said), len(sizes), sum(sizes), len(new), sum(new))

    def fits(dropped: int) -> bool:
        left = [*sizes[dropped:], *new]
        return (count_max is None or len(left) <= count_max) and (
            size_max is None or sum(left) <= size_max
        )

    enough = [dropped for dropped in range(len(sizes) + 1) if fits(dropped)]
    if needed is None:
        assert enough == []
    else:
        assert heads_to_drop(sizes, needed) == enough[0]


def test_a_queue_that_refuses_drops_nothing() -> None:
    config = parse_queue_config({"max_messages": 2})
    assert excess(config, 1, 10, 1, 5) == FITS
    assert excess(config, 1, 10, 2, 5) is None


def test_fewer_may_be_there_than_have_to_leave() -> None:
    assert heads_to_drop([5], Excess(message_count=3)) == 1


@pytest.mark.parametrize(
    ("remembered", "count", "decided"),
    [
        (None, 0, Repeat.NEW),
        (None, 3, Repeat.FULL),
        ((b"body", 11), 3, Repeat.SAME),
        ((b"else", 11), 0, Repeat.OTHER),
        ((b"else", 10), 3, Repeat.NEW),
    ],
)
def test_what_is_remembered_decides_what_a_publish_is(
    remembered: tuple[bytes, int] | None, count: int, decided: Repeat
) -> None:
    assert decide_repeat(remembered, b"body", 10, count, 3) is decided


def test_keys_of_two_principals_are_never_the_same() -> None:
    assert len(key_hash("a", "bc")) == 16
    assert len({key_hash("a", "bc"), key_hash("ab", "c"), key_hash("", "abc")}) == 3


def test_the_ids_of_a_request_count_up_by_one() -> None:
    first = bytes(14) + b"\0\xff"
    assert ids_of(first, 2) == [first, bytes(14) + b"\1\0"]


@pytest.mark.parametrize(
    ("name", "target", "closes"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("c", "a", True),
        ("d", "x", False),
        ("d", "a", False),
    ],
)
def test_a_circle_of_dead_letters_is_seen_where_it_is_closed(
    name: str, target: str, closes: bool
) -> None:
    """a sends to b and b to c; x and y send to each other already."""
    assert closes_circle(name, target, {"a": "b", "b": "c", "x": "y", "y": "x"}) is closes
