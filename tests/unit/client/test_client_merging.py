"""Merging of partitions: the order that there is, and nothing held back that nobody waits for."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bottomless.client.merging import Merge
from bottomless.client.record import Record

EPOCH = "2026-11-22T08:00:{:02d}.000Z"


def record(offset: int, second: int) -> Record:
    return Record({"offset": offset, "timestamp": EPOCH.format(second), "value": ""})


def seen(records: list[Record]) -> list[tuple[int | None, int]]:
    return [(one.partition, one.offset) for one in records]


def test_what_was_there_comes_in_the_order_of_timestamps() -> None:
    merge = Merge()
    merge.begin(0, 0, 2)
    merge.begin(1, 0, 2)
    merge.add(0, [record(0, 1), record(1, 4)], 2)
    assert merge.take() == [], "the other one may have something older"
    assert merge.empty() == [1]
    merge.add(1, [record(0, 2), record(1, 3)], 2)
    assert seen(merge.take()) == [(0, 0), (1, 0), (1, 1), (0, 1)]
    assert merge.positions == {0: 2, 1: 2}


def test_a_partition_that_has_more_is_waited_for() -> None:
    merge = Merge()
    merge.begin(0, 0, 9)
    merge.begin(1, 0, 1)
    merge.add(0, [record(0, 1)], 1)
    merge.add(1, [record(0, 5)], 1)
    assert seen(merge.take()) == [(0, 0)]
    assert merge.take() == []
    assert merge.positions == {0: 1, 1: 0}
    merge.end(0)
    assert seen(merge.take()) == [(1, 0)]


def test_once_caught_up_nothing_is_held_back() -> None:
    merge = Merge()
    merge.begin(0, 0, 0)
    merge.begin(1, 7, 7)
    merge.add(1, [record(7, 3)], 8)
    assert seen(merge.take()) == [(1, 7)]
    merge.add(0, [record(0, 1)], 1)
    assert seen(merge.take()) == [(0, 0)], "older than what was given, and given all the same"


def test_a_gap_at_the_end_is_passed_with_the_records_before_it() -> None:
    merge = Merge()
    merge.begin(0, 0, 9)
    merge.add(0, [record(0, 1), record(1, 1)], 9)
    assert merge.positions == {0: 0}
    merge.take()
    assert merge.positions == {0: 9}
    merge.add(0, [], 12)
    assert merge.positions == {0: 12}


PARTITIONS = st.lists(st.lists(st.integers(0, 59), max_size=8), min_size=1, max_size=4)


@given(PARTITIONS, st.data())
def test_each_record_comes_once_however_pages_are_cut(
    seconds: list[list[int]], data: st.DataObject
) -> None:
    merge = Merge()
    left: dict[int, list[Any]] = {}
    for index, each in enumerate(seconds):
        left[index] = [record(offset, second) for offset, second in enumerate(sorted(each))]
        merge.begin(index, 0, len(each))
    got: list[Record] = []
    while any(left.values()):
        index = data.draw(st.sampled_from([one for one in merge.empty() if left[one]]))
        count = data.draw(st.integers(1, len(left[index])))
        page, left[index] = left[index][:count], left[index][count:]
        merge.add(index, page, page[-1].offset + 1)
        got += merge.take()
    expected = [
        (second, index, offset)
        for index, each in enumerate(seconds)
        for offset, second in enumerate(sorted(each))
    ]
    times = [one.timestamp for one in got]
    assert times == sorted(times)
    assert sorted(seen(got)) == sorted((index, offset) for _, index, offset in expected)
    for index in left:
        mine = [offset for partition, offset in seen(got) if partition == index]
        assert mine == sorted(mine)
    assert merge.positions == {index: len(each) for index, each in enumerate(seconds)}
