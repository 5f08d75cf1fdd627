import threading
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottomless.client.accumulator import RECORD_OVERHEAD, RECORD_SIZE_MIN, Accumulator, Extra
from bottomless.client.appends import Appended
from bottomless.client.encoding import ARROW, EncodedBody
from bottomless.client.producer_settings import Batching
from bottomless.errors import InvalidRequest

STORED = Appended(0, 1, 0, 1)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def an_accumulator(
    *, batch_bytes: int = 100, linger_seconds: float = 1.0, buffer_bytes: int = 10_000
) -> tuple[Accumulator, Clock, list[str]]:
    clock, woken = Clock(), list[str]()
    bounds = Batching(batch_bytes, linger_seconds, buffer_bytes)
    return Accumulator(bounds, clock, lambda: woken.append("woken")), clock, woken


def put(accumulator: Accumulator, value: bytes, extra: Extra | None = None) -> bool:
    return accumulator.add(value, 0, len(value), extra) is not None


def test_a_bundle_is_taken_when_it_is_full() -> None:
    accumulator, _, woken = an_accumulator()
    for _ in range(3):
        put(accumulator, b"x" * 40)
    bundle = accumulator.take()
    assert bundle is not None
    assert (bundle.record_count, bundle.rows.values) == (2, [b"x" * 40] * 2)
    assert accumulator.take() is None
    assert len(woken) == 2


def test_a_bundle_is_taken_when_its_time_is_over() -> None:
    accumulator, clock, _ = an_accumulator()
    assert accumulator.due_seconds() is None
    put(accumulator, b"x")
    assert (accumulator.take(), accumulator.due_seconds()) == (None, 1.0)
    clock.now = 0.4
    put(accumulator, b"y")
    assert accumulator.due_seconds() == pytest.approx(0.6)
    clock.now = 1.0
    bundle = accumulator.take()
    assert bundle is not None
    assert bundle.rows.values == [b"x", b"y"]


@given(
    sizes=st.lists(st.lists(st.integers(0, 130), min_size=1, max_size=30), max_size=6),
    buffer_bytes=st.sampled_from([200, 700, 100_000]),
)
def test_values_that_are_put_in_together_lie_as_if_they_came_alone(
    sizes: list[list[int]], buffer_bytes: int
) -> None:
    one_by_one, _, _ = an_accumulator(batch_bytes=200, buffer_bytes=buffer_bytes)
    together, _, _ = an_accumulator(batch_bytes=200, buffer_bytes=buffer_bytes)
    for number, some in enumerate(sizes):
        values = [b"x" * size for size in some]
        alone = [
            one_by_one.add(value, 7, len(value) + RECORD_SIZE_MIN, None) is not None
            for value in values
        ]
        while values:
            placed = together.add_values(values, 7, list(accumulate(map(len, values))))
            if placed is None:
                break
            bundle, index, count = placed
            assert bundle.rows.values[index : index + count] == values[:count]
            values = values[count:]
        # Where there was no room for one, a smaller one behind it may have found some.
        if not all(alone):
            assert values
            return
        assert not values
        if number % 2:
            for each in (one_by_one, together):
                put(each, b"y", Extra(key=b"k"))

    bundles = [[bundle.rows for bundle in each.seal()] for each in (one_by_one, together)]
    assert bundles[0] == bundles[1]
    assert [len(rows.contents) for rows in bundles[1]] == [len(rows.values) for rows in bundles[1]]


def test_columns_that_few_records_have_are_filled_up_for_the_others() -> None:
    accumulator, _, _ = an_accumulator()
    put(accumulator, b"1")
    put(accumulator, b"2", Extra(key=b"k"))
    put(accumulator, b"3")
    put(accumulator, b"4", Extra(headers=[("h", b"1")], event_time=7, filter_value="f"))
    (bundle,) = accumulator.seal()
    rows = bundle.rows
    assert rows.keys == [None, b"k", None, None]
    assert rows.headers == [None, None, None, [("h", b"1")]]
    assert rows.event_times == [None, None, None, 7]
    assert rows.filter_values == [None, None, None, "f"]


def test_an_encoded_body_comes_after_the_records_before_it() -> None:
    accumulator, _, _ = an_accumulator()
    put(accumulator, b"before")
    table = accumulator.add_encoded(EncodedBody(b"arrow", ARROW, None, 3))
    put(accumulator, b"after")
    assert [bundle.record_count for bundle in accumulator.seal()] == [1, 3, 1]
    accumulator.take()
    assert accumulator.take() is table


def test_what_does_not_fit_the_buffer_is_not_taken_until_something_is_settled() -> None:
    held = 40 + RECORD_OVERHEAD
    accumulator, _, _ = an_accumulator(buffer_bytes=2 * held)
    assert put(accumulator, b"x" * 40)
    assert put(accumulator, b"x" * 40)
    assert not put(accumulator, b"x" * 40)
    (bundle,) = accumulator.seal()
    accumulator.settle(bundle, STORED)
    assert put(accumulator, b"x" * 40)
    assert accumulator.held_max == 2 * held


def test_what_is_larger_than_the_buffer_goes_through_alone() -> None:
    accumulator, _, _ = an_accumulator(buffer_bytes=10)
    assert put(accumulator, b"x" * 1000)
    assert not put(accumulator, b"x")


def test_a_thread_that_waits_for_room_is_woken_by_it() -> None:
    accumulator, _, _ = an_accumulator(buffer_bytes=1)
    put(accumulator, b"x")
    (bundle,) = accumulator.seal()
    found: list[bool] = []
    waiting = threading.Thread(target=lambda: found.append(accumulator.wait_for_room(1, 60)))
    waiting.start()
    accumulator.settle(bundle, STORED)
    waiting.join()
    assert found == [True]
    put(accumulator, b"x")
    assert not accumulator.wait_for_room(1, 0.01)


def test_room_that_came_before_the_wait_is_not_waited_for() -> None:
    accumulator, _, _ = an_accumulator()
    assert accumulator.wait_for_room(1, 60)


def test_nothing_is_taken_in_after_the_end_and_nobody_waits_for_it() -> None:
    accumulator, _, _ = an_accumulator(buffer_bytes=1)
    put(accumulator, b"x")
    unsent = accumulator.stop(lambda: RuntimeError("over"))
    assert [bundle.record_count for bundle in unsent] == [1]
    assert accumulator.wait_for_room(1, 60)
    with pytest.raises(RuntimeError, match="over"):
        put(accumulator, b"y")


def test_records_of_many_threads_are_all_there_and_in_each_ones_order() -> None:
    accumulator, _, _ = an_accumulator(batch_bytes=1000, buffer_bytes=10_000_000)
    begin = threading.Barrier(4)

    def work(name: int) -> None:
        begin.wait()
        for number in range(2000):
            put(accumulator, b"%d %d" % (name, number))

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    values = [value for bundle in accumulator.seal() for value in bundle.rows.values]
    for name in range(4):
        numbers = [int(v.split()[1]) for v in values if v.split()[0] == b"%d" % name]
        assert numbers == list(range(2000))


@pytest.mark.parametrize("bounds", [(0, 0.0, 1), (9 * 2**20, 0.0, 1), (1, -1.0, 1), (1, 0.0, 0)])
def test_bounds_are_bounded(bounds: tuple[int, float, int]) -> None:
    with pytest.raises(InvalidRequest):
        Batching(*bounds)
