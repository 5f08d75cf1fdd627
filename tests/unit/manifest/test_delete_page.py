"""Which members of the delete queue come next, and when those that failed come again."""

from hypothesis import given
from hypothesis import strategies as st

from bottomless_server.coordination.base import Due
from bottomless_server.manifest.common.core.delete_page import (
    PUT_OFF_MS_MAX,
    fair_page,
    put_off_until,
)


def dues(owners: str) -> list[Due]:
    return [Due("queue", f"{owner}{n}".encode(), n) for n, owner in enumerate(owners)]


def owner(due: Due) -> int:
    return due.member[0]


def test_of_each_stream_the_first_come_first() -> None:
    page = fair_page(dues("aaaaabac"), owner, 4)

    assert [due.member for due in page] == [b"a0", b"b5", b"c7", b"a1"]


@given(st.text("abc", max_size=30), st.integers(0, 40))
def test_a_page_is_full_where_enough_is_due_and_nobody_has_two_more_than_another(
    owners: str, count: int
) -> None:
    page = fair_page(dues(owners), owner, count)

    assert len(page) == len(set(page)) == min(count, len(owners))
    took = {one: sum(owner(due) == ord(one) for due in page) for one in set(owners)}
    for one, other in ((a, b) for a in took for b in took):
        assert took[one] <= took[other] + 1 or took[other] == owners.count(other)


@given(st.integers(0, 2**45), st.integers(-(2**40), 2**40), st.integers(1, 2 * PUT_OFF_MS_MAX))
def test_it_waits_as_long_as_it_has_been_failing_within_bounds(
    now: int, failed_for: int, first_ms: int
) -> None:
    waits = put_off_until(now, now - failed_for, first_ms) - now

    assert first_ms <= waits <= max(PUT_OFF_MS_MAX, first_ms)
    assert waits == failed_for or waits in (first_ms, max(PUT_OFF_MS_MAX, first_ms))
