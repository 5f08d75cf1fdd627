"""Where a micro-batch ends: within its limits, and always behind at least one record."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from bottomless.spark.admission import admit
from bottomless.spark.options import Limits
from bottomless.spark.plan import Stored


def fragments(*bounds: tuple[int, int], size: int = 1000) -> list[Stored]:
    return [Stored(str(first), None, first, end, size, 0) for first, end in bounds]


def ten_bytes(offset: int) -> float:
    del offset
    return 10.0


THREE = fragments((0, 100), (100, 200), (200, 300))


def test_without_limits_a_batch_takes_all() -> None:
    assert admit(5, 400, Limits(), THREE, ten_bytes) == 400


def test_offsets_are_counted() -> None:
    assert admit(5, 400, Limits(offsets=50), THREE, ten_bytes) == 55
    assert admit(390, 400, Limits(offsets=50), THREE, ten_bytes) == 400


def test_bytes_are_those_of_whole_fragments_and_a_part_of_the_last() -> None:
    assert admit(0, 400, Limits(size=2000), THREE, ten_bytes) == 200
    assert admit(0, 400, Limits(size=1500), THREE, ten_bytes) == 150
    assert admit(50, 400, Limits(size=1500), THREE, ten_bytes) == 200


def test_bytes_of_the_tail_are_those_of_a_sample() -> None:
    assert admit(0, 400, Limits(size=3500), THREE, ten_bytes) == 350
    assert admit(300, 400, Limits(size=200), [], ten_bytes) == 320


def test_fragments_are_counted_and_the_tail_is_one() -> None:
    assert admit(50, 400, Limits(fragments=1), THREE, ten_bytes) == 100
    assert admit(50, 400, Limits(fragments=3), THREE, ten_bytes) == 300
    assert admit(50, 400, Limits(fragments=4), THREE, ten_bytes) == 400


def test_the_narrowest_limit_counts() -> None:
    limits = Limits(size=1500, offsets=120, fragments=1)
    assert admit(0, 400, limits, THREE, ten_bytes) == 100
    assert admit(0, 400, replace(limits, fragments=3), THREE, ten_bytes) == 120


@given(
    counts=st.lists(st.integers(1, 50), max_size=8),
    first=st.integers(0, 100),
    more=st.integers(1, 200),
    limits=st.builds(
        Limits,
        size=st.none() | st.integers(1, 5000),
        offsets=st.none() | st.integers(1, 100),
        fragments=st.none() | st.integers(1, 4),
    ),
)
def test_batches_come_to_the_end(counts: list[int], first: int, more: int, limits: Limits) -> None:
    listed, offset = [], 0
    for count in counts:
        listed += fragments((offset, offset + count))
        offset += count
    end, at = first + more, first
    while at < end:
        left = [one for one in listed if one.next_offset > at and one.first_offset < end]
        following = admit(at, end, limits, left, ten_bytes)
        assert at < following <= end
        assert limits.offsets is None or following - at <= limits.offsets
        at = following
