"""Moves that are asked for by hand, and what lies on which drive, beside a plain list of fragments."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from unit.manifest.test_tiering import COLD, HOT, WARM, Stream, streams

from bottomless.model.drive import MIXED
from bottomless.model.names import uid_from_bytes
from bottomless_server.manifest.tree.core.drive_totals import DriveTotals, find_drive_totals
from bottomless_server.manifest.tree.core.move_search import Held
from bottomless_server.manifest.tree.core.range_moves import (
    Range,
    RangeMoves,
    everything_to,
    find_range_moves,
    one_tier_up,
)
from bottomless_server.tree.retention import Totals


def find(
    stream: Stream, wanted: Range, held: Sequence[Held] = (), count_max: int = 4
) -> RangeMoves:
    descent = find_range_moves(stream.root, wanted, held, count_max)
    try:
        entry = next(descent)
        while True:
            entry = descent.send(stream.groups[uid_from_bytes(entry["uid"].tobytes())])
    except StopIteration as found:
        result: RangeMoves = found.value
        return result


def count(stream: Stream, group_count_max: int = 10_000) -> tuple[DriveTotals, int]:
    """What lies on each drive, and how many groups were asked for."""
    descent, asked = find_drive_totals(stream.root, group_count_max), 0
    try:
        entry = next(descent)
        while True:
            asked += 1
            entry = descent.send(stream.groups[uid_from_bytes(entry["uid"].tobytes())])
    except StopIteration as found:
        return found.value, asked


ranges = st.tuples(st.integers(0, 200), st.integers(1, 120)).map(lambda one: (one[0], sum(one)))


@settings(deadline=None, max_examples=60)
@given(streams(), ranges, st.sampled_from([everything_to(COLD), one_tier_up([HOT, WARM, COLD])]))
def test_what_lies_whole_in_the_range_goes_where_its_drive_says_and_nothing_else(
    stream: Stream, asked: tuple[int, int], targets: dict[int, int]
) -> None:
    before = stream.live_drives
    first, end = asked
    within = {
        one.first_offset
        for one in stream.fragments
        if one.first_offset >= first and one.next_offset <= end
    }
    wanted = Range(first, end, targets)
    said, left = find(stream, wanted, count_max=0).waiting, Totals()
    moved: list[Held] = []
    while moves := find(stream, wanted, moved).moves:
        for move in moves:
            left = left.plus(move.moved)
            moved.append(Held(move.first_offset, move.next_offset))
            stream.do(move)

    assert said == left
    assert stream.live_drives == {
        offset: targets.get(drive, drive) if offset in within else drive
        for offset, drive in before.items()
    }


def test_no_more_moves_are_found_than_are_asked_for_and_the_oldest_come_first() -> None:
    stream = Stream([1] * 300, 70, [HOT])

    found = find(stream, Range(0, 300, everything_to(COLD)), count_max=2)

    assert [move[:2] for move in found.moves] == [(0, 64), (64, 70)]
    assert found.waiting.fragment_count == 300
    assert find(stream, Range(0, 300, everything_to(HOT))).waiting == Totals()


def test_what_is_in_the_first_tier_or_in_none_is_not_promoted() -> None:
    stream = Stream([10] * 4, 8, [HOT, WARM, COLD, 9])

    found = find(stream, Range(0, 40, one_tier_up([HOT, WARM, COLD])))

    assert [move[:4] for move in found.moves] == [(10, 20, WARM, HOT), (20, 30, COLD, WARM)]


@settings(deadline=None, max_examples=60)
@given(streams(), st.integers(0, 5))
def test_what_is_counted_by_drive_adds_up_to_the_fragments(
    stream: Stream, group_count_max: int
) -> None:
    found, _ = count(stream)
    assert MIXED not in found
    for drive in set(stream.live_drives.values()) | set(found):
        here = [one for one in stream.fragments if stream.drives[one.first_offset] == drive]
        assert found[drive].totals == Totals(
            len(here), sum(one.size for one in here), sum(one.record_count for one in here)
        )
        assert found[drive].last_timestamp == here[-1].last_timestamp
        first = found[drive].first_timestamp
        assert first is not None
        assert first <= here[0].first_timestamp

    bounded, asked = count(stream, group_count_max)
    assert asked <= group_count_max
    whole = [sum(one.totals[at] for one in found.values()) for at in range(3)]
    assert [sum(one.totals[at] for one in bounded.values()) for at in range(3)] == whole


def test_fragments_on_one_drive_are_counted_without_opening_a_group() -> None:
    stream = Stream([1] * 256, 2, [HOT])

    assert count(stream)[1] == 0
    assert count(stream, 0)[0][HOT].totals.fragment_count == 256


def test_of_a_drive_whose_times_nobody_knows_no_time_is_told() -> None:
    stream = Stream([10], 4, [HOT])
    entries = stream.root.entries
    entries["first_timestamp"] = entries["last_timestamp"] = -(2**63)

    assert count(stream)[0][HOT][1:] == (None, None)
