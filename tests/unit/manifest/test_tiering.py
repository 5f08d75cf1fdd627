"""Tiers in a tree beside the same on a plain list of fragments."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.tree.test_retention import run as run_cut
from unit.tree.test_tree import Groups, grow

from bottomless.model.drive import MIXED
from bottomless.model.fragment import FragmentInfo
from bottomless.model.limits import MOVED_COUNT_MAX
from bottomless.model.manifest import ENTRY_DTYPE, EntryKind, Node
from bottomless.model.names import uid_from_bytes
from bottomless_server.manifest.tree.core.move_search import Held, HeldRanges, Move
from bottomless_server.manifest.tree.core.tiering import (
    Tier,
    Tiering,
    find_tiering,
    require_policy,
)
from bottomless_server.tree.retention import UNKNOWN_TIME, Below, Totals, cut_front

HOT, WARM, COLD, FORGOTTEN = 3, 0, 7, 9
NOW = 1_000
Drives = dict[int, int]
"""The drive of each fragment, by its first offset."""


class Stream:
    """A tree whose fragments lie on drives, and the list of them that are live."""

    def __init__(self, sizes: list[int], fanout: int, drives: Sequence[int], cut: int = 0) -> None:
        root, self.groups, fragments = grow(sizes, fanout)
        self.root = cut_front(root, run_cut(root, self.groups, Below(cut))[0]).root
        self.fragments = [f for f in fragments if f.first_offset >= self.root.first_offset]
        self.drives = {
            fragment.first_offset: drives[number % len(drives)]
            for number, fragment in enumerate(fragments)
        }
        self.root = laid(self.root, self.groups, self.drives)

    def find(
        self, tiers: Sequence[Tier], held: Sequence[Held] = (), count_max: int = 4
    ) -> tuple[Tiering, int]:
        """The tiering, and how many groups were asked for."""
        descent, count = find_tiering(self.root, tiers, NOW, held, count_max), 0
        try:
            entry = next(descent)
            while True:
                count += 1
                entry = descent.send(self.groups[uid_from_bytes(entry["uid"].tobytes())])
        except StopIteration as found:
            return found.value, count

    def moved_by(self, move: Move) -> list[FragmentInfo]:
        return [f for f in self.fragments if move.first_offset <= f.first_offset < move.next_offset]

    def do(self, move: Move) -> None:
        for fragment in self.moved_by(move):
            assert self.drives[fragment.first_offset] == move.from_drive
            self.drives[fragment.first_offset] = move.to_drive
        self.root = laid(self.root, self.groups, self.drives)

    @property
    def live_drives(self) -> Drives:
        return {f.first_offset: self.drives[f.first_offset] for f in self.fragments}


def laid(node: Node, groups: Groups, drives: Drives) -> Node:
    """The node whose entries say where the fragments are; so do those of all groups below it."""
    entries = node.entries.copy()
    for number, entry in enumerate(node.entries):
        if entry["kind"] == EntryKind.FRAGMENT:
            entries["drive"][number] = drives[int(entry["first_offset"])]
        elif entry["kind"] == EntryKind.GROUP:
            uid = uid_from_bytes(entry["uid"].tobytes())
            groups[uid] = laid(groups[uid], groups, drives)
            below = set(groups[uid].entries["drive"].tolist())
            entries["drive"][number] = below.pop() if len(below) == 1 else MIXED
    return replace(node, entries=entries)


def tiers_of(fragments: list[FragmentInfo], tiers: Sequence[Tier]) -> list[int]:
    """The oracle: what exceeds the limits of a tier goes to the next one, oldest first."""
    content: list[list[FragmentInfo]] = []
    left, spare = list(fragments), 1
    for tier in tiers:
        here, left = left, []
        while len(here) > spare and exceeds(here, tier):
            left.append(here.pop(0))
        content.append(here)
        spare = 0
    return [number for number in reversed(range(len(tiers))) for _ in content[number]]


def exceeds(content: list[FragmentInfo], tier: Tier) -> bool:
    too_old = tier.max_age_ms is not None and content[0].last_timestamp < NOW - tier.max_age_ms
    too_many = tier.max_bytes is not None and sum(f.size for f in content) > tier.max_bytes
    return too_old or too_many


def wanted_drives(stream: Stream, tiers: Sequence[Tier]) -> Drives:
    """Where the oracle wants each fragment: down to its tier, and never up."""
    order = [tier.drive for tier in tiers]
    wanted = {}
    for fragment, tier in zip(stream.fragments, tiers_of(stream.fragments, tiers), strict=True):
        drive = stream.drives[fragment.first_offset]
        stays = drive in order and order.index(drive) >= tier
        wanted[fragment.first_offset] = drive if stays else order[tier]
    return wanted


limited = st.tuples(
    st.none() | st.integers(NOW - 300, NOW), st.none() | st.integers(0, 40_000)
).filter(lambda limits: limits != (None, None))


@st.composite
def policies(draw: st.DrawFn) -> list[Tier]:
    order = draw(st.permutations([HOT, WARM, COLD]))[: draw(st.integers(1, 3))]
    return [*(Tier(drive, *draw(limited)) for drive in order[:-1]), Tier(order[-1])]


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    return Stream(
        draw(st.lists(st.integers(1, 9), min_size=1, max_size=40)),
        draw(st.integers(2, 4)),
        draw(st.lists(st.sampled_from([HOT, WARM, COLD, FORGOTTEN]), min_size=1, max_size=40)),
        draw(st.just(0) | st.integers(0, 200)),
    )


@settings(deadline=None, max_examples=60)
@given(streams(), policies())
def test_moves_bring_each_fragment_to_its_tier_at_once_and_none_up(
    stream: Stream, tiers: list[Tier]
) -> None:
    wanted = wanted_drives(stream, tiers)
    before = stream.live_drives
    moved: list[int] = []
    while moves := stream.find(tiers)[0].moves:
        for move in moves:
            moved += [fragment.first_offset for fragment in stream.moved_by(move)]
            stream.do(move)

    assert stream.live_drives == wanted
    assert sorted(moved) == [offset for offset in wanted if wanted[offset] != before[offset]]


@settings(deadline=None, max_examples=60)
@given(streams(), policies(), st.integers(0, 4))
def test_a_preview_says_all_that_then_happens(
    stream: Stream, tiers: list[Tier], count_max: int
) -> None:
    said, _ = stream.find(tiers, count_max=count_max)
    everything, _ = stream.find(tiers, count_max=10_000)
    assert said.waiting == everything.waiting
    assert said.starts == everything.starts
    assert said.moves == everything.moves[:count_max]

    happened: dict[tuple[int, int], Totals] = {}
    while moves := stream.find(tiers, count_max=2)[0].moves:
        for move in moves:
            drives = move.from_drive, move.to_drive
            happened[drives] = happened.get(drives, Totals()).plus(move.moved)
            stream.do(move)
    assert happened == said.waiting


@settings(deadline=None, max_examples=60)
@given(streams(), policies())
def test_a_move_is_made_of_neighbours_on_one_drive_in_one_node(
    stream: Stream, tiers: list[Tier]
) -> None:
    found, _ = stream.find(tiers, count_max=10_000)
    nodes = [stream.root, *stream.groups.values()]
    homes = {
        int(entry["first_offset"]): number
        for number, node in enumerate(nodes)
        for entry in node.entries
        if entry["kind"] == EntryKind.FRAGMENT
    }
    for move in found.moves:
        fragments = stream.moved_by(move)
        assert 1 <= len(fragments) <= MOVED_COUNT_MAX
        assert fragments[0].first_offset == move.first_offset
        assert fragments[-1].next_offset == move.next_offset
        assert len({homes[f.first_offset] for f in fragments}) == 1
        assert {stream.drives[f.first_offset] for f in fragments} == {move.from_drive}
        assert move.from_drive != move.to_drive
        assert move.moved == Totals(
            len(fragments), sum(f.size for f in fragments), sum(f.record_count for f in fragments)
        )
    assert all(one.next_offset <= next_.first_offset for one, next_ in pairwise(found.moves))


@settings(deadline=None, max_examples=60)
@given(streams(), policies(), st.lists(st.tuples(st.integers(0, 200), st.integers(1, 60))))
def test_what_is_held_is_left_alone_and_all_else_moves_as_before(
    stream: Stream, tiers: list[Tier], ranges: list[tuple[int, int]]
) -> None:
    held = [Held(first, first + size) for first, size in ranges]
    untouched = {
        f.first_offset: stream.drives[f.first_offset]
        for f in stream.fragments
        if any(f.first_offset < end and f.next_offset > first for first, end in held)
    }
    wanted = {**wanted_drives(stream, tiers), **untouched}
    waiting = stream.find(tiers, held, count_max=0)[0].waiting
    while moves := stream.find(tiers, held)[0].moves:
        for move in moves:
            stream.do(move)
            waiting[move.from_drive, move.to_drive] = waiting[move.from_drive, move.to_drive].minus(
                move.moved
            )

    assert stream.live_drives == wanted
    assert all(left == Totals() for left in waiting.values())


@settings(deadline=None, max_examples=60)
@given(streams(), policies(), st.data())
def test_moves_that_are_under_way_change_no_other_move(
    stream: Stream, tiers: list[Tier], data: st.DataObject
) -> None:
    """Two of them are held; whichever of these is done first, what comes after them is the same."""
    moves = stream.find(tiers, count_max=10_000)[0].moves
    under_way = moves[:2]
    held = [Held(move.first_offset, move.next_offset) for move in under_way]
    assert stream.find(tiers, held, count_max=10_000)[0].moves == moves[2:]
    for move in under_way[: data.draw(st.integers(0, 2))]:
        stream.do(move)
    assert stream.find(tiers, held, count_max=10_000)[0].moves == moves[2:]


def test_the_starts_are_where_the_limits_of_retention_would_cut() -> None:
    stream = Stream([10] * 12, 4, [HOT])
    # A fragment has 1,000 bytes and as many more as its first offset.
    tiers = [Tier(HOT, max_bytes=1_110), Tier(WARM, max_bytes=1_100 + 1_090), Tier(COLD)]

    found, _ = stream.find(tiers)

    assert found.starts == (110, 90, 0)
    assert [move[:4] for move in found.moves] == [
        (0, 40, HOT, COLD),
        (40, 80, HOT, COLD),
        (80, 90, HOT, COLD),
        (90, 110, HOT, WARM),
    ]


def test_the_newest_fragment_stays_in_the_first_tier_whatever_its_limits_say() -> None:
    stream = Stream([10] * 3, 4, [HOT])

    found, _ = stream.find([Tier(HOT, max_age_ms=0, max_bytes=0), Tier(COLD)])

    assert found.starts == (20, 0)
    assert [move[:2] for move in found.moves] == [(0, 20)]


def test_a_tier_that_asks_for_less_than_the_one_before_it_gets_nothing() -> None:
    stream = Stream([10] * 4, 4, [HOT])
    tiers = [Tier(HOT, max_age_ms=NOW - 20), Tier(WARM, max_age_ms=NOW - 40), Tier(COLD)]

    found, _ = stream.find(tiers)

    assert found.starts == (10, 10, 0)
    assert {move.to_drive for move in found.moves} == {COLD}


def test_a_long_row_of_neighbours_moves_in_parts() -> None:
    stream = Stream([1] * 200, 70, [HOT])

    found, _ = stream.find([Tier(HOT, max_age_ms=0), Tier(COLD)], count_max=10)

    counts = [move.moved.fragment_count for move in found.moves]
    # A group has the first 70, the root the others, of which the newest stays.
    assert counts == [64, 6, 64, 64, 1]


def test_what_has_an_unknown_age_stays() -> None:
    stream = Stream([10] * 3, 4, [HOT])
    entries = stream.root.entries.copy()
    entries["first_timestamp"][0] = entries["last_timestamp"][0] = UNKNOWN_TIME
    stream.root = replace(stream.root, entries=entries)

    assert stream.find([Tier(HOT, max_age_ms=0), Tier(COLD)])[0].moves == ()


def test_a_gap_parts_two_moves_and_an_empty_stream_has_none() -> None:
    stream = Stream([10] * 4, 5, [HOT])
    entries = stream.root.entries.copy()
    entries[1] = np.zeros(1, dtype=ENTRY_DTYPE)[0]
    entries["first_offset"][1], entries["next_offset"][1] = 10, 20
    entries["first_timestamp"][1] = entries["last_timestamp"][1] = 10
    entries["kind"][1] = EntryKind.GAP
    stream.root = replace(stream.root, entries=entries)
    tiers = [Tier(HOT, max_age_ms=0), Tier(COLD)]

    assert [move[:2] for move in stream.find(tiers)[0].moves] == [(0, 10), (20, 30)]
    stream.root = replace(stream.root, first_offset=40, entries=entries[:0])
    assert stream.find(tiers)[0] == Tiering((40, 40), (), {})


def test_groups_that_say_everything_by_themselves_are_not_opened() -> None:
    """Of 256 fragments on one drive all but the newest have to go: opened are the way to the start
    and what the moves are in."""
    stream = Stream([1] * 256, 2, [HOT])
    tiers = [Tier(HOT, max_age_ms=0), Tier(COLD)]
    height = int(stream.root.entries["height"].max())

    found, count = stream.find(tiers, count_max=1)

    assert found.waiting[HOT, COLD].fragment_count == 255
    assert count <= 3 * height
    while moves := stream.find(tiers)[0].moves:
        for move in moves:
            stream.do(move)
    assert stream.find(tiers)[1] <= 2 * height


def test_of_a_group_across_a_start_only_the_older_part_waits() -> None:
    stream = Stream([10] * 12, 4, [HOT])

    found, _ = stream.find([Tier(HOT, max_age_ms=NOW - 75), Tier(COLD)], count_max=0)

    assert (found.starts, found.moves) == ((70, 0), ())
    assert found.waiting[HOT, COLD].fragment_count == 7


@pytest.mark.parametrize(
    ("tiers", "why"),
    [
        ([], "1 to 8"),
        ([*(Tier(number, max_age_ms=1) for number in range(8)), Tier(8)], "1 to 8"),
        ([Tier(MIXED)], "less than 255"),
        ([Tier(HOT, max_age_ms=1), Tier(HOT)], "in one tier"),
        ([Tier(HOT, max_age_ms=1)], "the last"),
        ([Tier(HOT), Tier(COLD)], "must have a limit"),
        ([Tier(HOT, max_bytes=-1), Tier(COLD)], "negative"),
    ],
)
def test_tiers_that_mean_nothing_are_refused(tiers: list[Tier], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        require_policy(tiers)
    with pytest.raises(ValueError, match=why):
        Stream([10], 2, [HOT]).find(tiers)


def test_the_oracle_gives_the_oldest_to_the_last_tier() -> None:
    fragments = Stream([10] * 6, 8, [HOT]).fragments
    numbers = tiers_of(fragments, [Tier(HOT, max_bytes=2_200), Tier(WARM, 960), Tier(COLD)])
    assert [number for number, _ in groupby(numbers)] == [2, 1, 0]


SPANS = st.tuples(st.integers(0, 40), st.integers(1, 8)).map(lambda one: Held(one[0], sum(one)))


@given(st.lists(SPANS, max_size=12), st.lists(st.tuples(SPANS, st.booleans()), max_size=8))
def test_what_is_held_is_found_among_entries_as_one_by_one(
    held: list[Held], entries: list[tuple[Held, bool]]
) -> None:
    left = {offset for one in held for offset in range(*one)}
    wanted = []
    for span, is_group in entries:
        inside = left.intersection(range(*span))
        whole = len(inside) == span.next_offset - span.first_offset
        wanted.append((not inside, bool(inside) and (whole or not is_group)))

    firsts = np.array([span.first_offset for span, _ in entries], dtype=np.uint64)
    ends = np.array([span.next_offset for span, _ in entries], dtype=np.uint64)
    groups = np.array([is_group for _, is_group in entries], dtype=np.bool_)
    apart, within = HeldRanges(held).among(firsts, ends, groups)
    assert list(zip(apart.tolist(), within.tolist(), strict=True)) == wanted


@pytest.mark.parametrize("count", [0, 1, 4_096])
def test_a_node_is_looked_at_once_however_many_ranges_are_held(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of damaged fragments are looked for in each node of each evaluation."""
    held = HeldRanges(Held(20 * one, 20 * one + 10) for one in range(count))
    searches = 0
    search = np.searchsorted

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal searches
        searches += 1
        return search(*args, **options)

    monkeypatch.setattr(np, "searchsorted", counted)
    offsets = np.arange(1_000, dtype=np.uint64) * np.uint64(10)
    apart, _ = held.among(offsets, offsets + np.uint64(10), np.zeros(1_000, dtype=np.bool_))
    assert searches <= 1
    assert int((~apart).sum()) == min(count, 500)
