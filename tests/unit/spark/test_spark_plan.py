"""The plan of a Spark read: every offset once, in shares of a sensible size."""

from hypothesis import given
from hypothesis import strategies as st

from bottomless.spark.plan import Share, Stored, plan


def a_fragment(first_offset: int, count: int, size: int = 1000) -> Stored:
    return Stored(
        f"{first_offset}",
        f"{first_offset}.fragment",
        first_offset,
        first_offset + count,
        size,
        size - 100,
    )


def fragments_of(counts: list[int], sizes: list[int]) -> list[Stored]:
    fragments, offset = [], 0
    for count, size in zip(counts, sizes, strict=False):
        fragments.append(a_fragment(offset, count, size))
        offset += count
    return fragments


def test_small_fragments_are_packed_into_one_share() -> None:
    fragments = [a_fragment(0, 10), a_fragment(10, 10), a_fragment(20, 10)]
    shares = plan(fragments, first_offset=0, next_offset=30, target_bytes=3000)
    assert [(share.first_offset, share.next_offset) for share in shares] == [(0, 30)]
    assert [piece.fragment for piece in shares[0].slices] == fragments


def test_a_share_ends_where_the_next_fragment_lies_in_another_store() -> None:
    fragments = [a_fragment(10 * number, 10)._replace(place=number // 2 % 2) for number in range(6)]
    shares = plan(fragments, first_offset=0, next_offset=60, target_bytes=100_000)
    assert [(share.first_offset, share.next_offset) for share in shares] == [
        (0, 20),
        (20, 40),
        (40, 60),
    ]


def test_a_share_ends_where_it_has_bytes_enough() -> None:
    fragments = [a_fragment(0, 10), a_fragment(10, 10), a_fragment(20, 10)]
    shares = plan(fragments, first_offset=0, next_offset=30, target_bytes=2000)
    assert [(share.first_offset, share.next_offset) for share in shares] == [(0, 20), (20, 30)]


def test_a_large_fragment_is_cut_by_offsets() -> None:
    shares = plan([a_fragment(0, 10, 4000)], first_offset=0, next_offset=10, target_bytes=1000)
    bounds = [(share.first_offset, share.next_offset) for share in shares]
    assert bounds == [(0, 2), (2, 5), (5, 7), (7, 10)]


def test_more_shares_than_bytes_ask_for_can_be_wanted() -> None:
    fragments = [a_fragment(0, 100), a_fragment(100, 100)]
    shares = plan(fragments, first_offset=0, next_offset=200, target_bytes=10_000, min_shares=4)
    assert len(shares) == 4


def test_a_fragment_that_sticks_out_is_clipped() -> None:
    shares = plan([a_fragment(0, 100)], first_offset=7, next_offset=9, target_bytes=1000)
    assert [(piece.first_offset, piece.next_offset) for piece in shares[0].slices] == [(7, 9)]


def test_what_is_left_out_between_fragments_and_after_them_is_in_no_share() -> None:
    fragments = [a_fragment(0, 10), a_fragment(30, 10)]
    shares = plan(fragments, first_offset=0, next_offset=60, target_bytes=1000, stored_next=50)
    bounds = [(share.first_offset, share.next_offset, len(share.slices)) for share in shares]
    assert bounds == [(0, 10, 1), (30, 40, 1), (50, 60, 0)]
    assert plan([], first_offset=0, next_offset=50, target_bytes=1000, stored_next=50) == []


def test_the_tail_is_one_share_without_slices() -> None:
    shares = plan([a_fragment(0, 10)], first_offset=0, next_offset=25, target_bytes=1000)
    assert shares[1:] == [Share(10, 25, ())]


def test_a_stream_without_fragments_is_all_tail() -> None:
    assert plan([], first_offset=3, next_offset=9, target_bytes=1) == [Share(3, 9, ())]


def test_nothing_is_planned_for_nothing() -> None:
    assert plan([a_fragment(0, 10)], first_offset=5, next_offset=5, target_bytes=1) == []


@given(
    counts=st.lists(st.integers(1, 50), max_size=20),
    sizes=st.lists(st.integers(200, 5000), min_size=20, max_size=20),
    cut=st.tuples(st.integers(0, 1200), st.integers(0, 1200)),
    target_bytes=st.integers(1, 20_000),
    min_shares=st.integers(1, 10),
)
def test_every_offset_is_in_exactly_one_share(
    counts: list[int], sizes: list[int], cut: tuple[int, int], target_bytes: int, min_shares: int
) -> None:
    first, end = sorted(cut)
    fragments = fragments_of(counts, sizes)
    shares = plan(
        fragments,
        first_offset=first,
        next_offset=end,
        target_bytes=target_bytes,
        min_shares=min_shares,
    )

    planned = [
        offset for share in shares for offset in range(share.first_offset, share.next_offset)
    ]
    assert planned == list(range(first, end))
    assert sum(not share.slices for share in shares) <= 1
    for share in shares:
        offset = share.first_offset
        for piece in share.slices:
            assert piece.first_offset == offset
            assert piece.fragment.first_offset <= offset
            assert piece.next_offset <= piece.fragment.next_offset
            offset = piece.next_offset
        if share.slices:
            assert offset == share.next_offset


@given(
    counts=st.lists(st.integers(1, 50), min_size=1, max_size=20),
    sizes=st.lists(st.integers(200, 5000), min_size=20, max_size=20),
    target_bytes=st.integers(1000, 20_000),
)
def test_no_share_is_more_than_half_above_what_was_asked(
    counts: list[int], sizes: list[int], target_bytes: int
) -> None:
    fragments = fragments_of(counts, sizes)
    end = fragments[-1].next_offset
    for share in plan(fragments, first_offset=0, next_offset=end, target_bytes=target_bytes):
        size = sum(piece.size for piece in share.slices)
        largest_record = max(
            -(-item.size // (item.next_offset - item.first_offset)) for item in fragments
        )
        assert size <= 1.5 * target_bytes + 2 * largest_record
