"""Retention in a tree beside the same on a plain list of fragments."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.manifest import a_fragment
from unit.tree.test_tree import Groups, grow, leaves, seal

from bottomless.formats.manifest import decode_node, encode_node
from bottomless.model.fragment import FragmentInfo
from bottomless.model.manifest import ENTRY_DTYPE, EntryKind, Node, fragment_entry
from bottomless.model.names import Uid, uid_from_bytes
from bottomless_server.tree.append import append_entries
from bottomless_server.tree.rebalance import rebalance
from bottomless_server.tree.retention import (
    UNKNOWN_TIME,
    Below,
    Bound,
    Cut,
    MoreThan,
    OlderThan,
    Totals,
    cut_front,
    emptied,
    find_cut,
    larger,
    totals,
)


def run(root: Node, groups: Groups, bound: Bound) -> tuple[Cut, int]:
    """The cut, and how many groups were asked for."""
    descent, count = find_cut(root, bound), 0
    try:
        entry = next(descent)
        while True:
            count += 1
            entry = descent.send(groups[uid_from_bytes(entry["uid"].tobytes())])
    except StopIteration as found:
        return found.value, count


def kept_by(fragments: list[FragmentInfo], bound: Bound) -> list[FragmentInfo]:
    """The oracle: drop from the front of a list while the bound allows and one is left."""
    kept = list(fragments)
    while len(kept) > 1:
        match bound:
            case OlderThan(timestamp):
                goes = kept[0].last_timestamp < timestamp
            case MoreThan(size):
                goes = sum(f.size for f in kept) > size
            case Below(offset):
                goes = kept[0].next_offset <= offset
        if not goes:
            break
        kept.pop(0)
    return kept


bounds = st.one_of(
    st.builds(OlderThan, st.integers(0, 400)),
    st.builds(MoreThan, st.integers(1, 60_000)),
    st.builds(Below, st.integers(0, 400)),
)


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=60),
    st.integers(2, 4),
    st.lists(st.tuples(bounds, st.integers(0, 7)), min_size=1, max_size=6),
)
def test_cutting_and_growing_a_tree_does_to_it_what_it_does_to_a_list(
    sizes: list[int], fanout: int, steps: list[tuple[Bound, int]]
) -> None:
    root, groups, fragments = grow(sizes, fanout)
    numbers = iter(range(9_000_000, 10_000_000))
    for bound, more in steps:
        cut, requests = run(root, groups, bound)
        expected = kept_by(fragments, bound)
        assert requests <= max([0, *root.entries["height"].tolist()])
        assert cut.gone.fragment_count == len(fragments) - len(expected)

        root = cut_front(root, cut).root
        fragments = expected
        for _ in range(more):
            added = a_fragment(root.next_offset, root.next_offset + 3)
            fragments = [*fragments, added]
            root = append_entries(root, fragment_entry(added))
            root, new = rebalance(root, fanout, lambda: Uid(f"{next(numbers):032x}"), seal)
            groups |= {sealed.node.uid: sealed.node for sealed in new}

        assert root.first_offset == fragments[0].first_offset
        assert [f for f in leaves(root, groups) if f.next_offset > root.first_offset] == fragments
        assert totals(root.entries) == Totals(
            len(fragments), sum(f.size for f in fragments), sum(f.record_count for f in fragments)
        )
        assert decode_node(encode_node(root)).first_offset == root.first_offset


def test_a_cut_inside_a_group_keeps_the_group_and_moves_the_floor() -> None:
    root, groups, fragments = grow([10] * 8, fanout=4)
    assert root.entries["kind"][0] == EntryKind.GROUP

    cut, requests = run(root, groups, Below(25))
    edited = cut_front(root, cut)

    assert (cut.floor, cut.gone.fragment_count, requests) == (20, 2, 1)
    first = edited.root.entries[0]
    assert (first["first_offset"], first["fragment_count"]) == (0, 2)
    assert first["byte_size"] == fragments[2].size + fragments[3].size
    (retired,) = edited.retired
    assert (retired.entry["uid"].tobytes(), retired[1:]) == (first["uid"].tobytes(), (0, 20))


def test_a_second_cut_of_the_same_group_retires_only_what_the_first_left() -> None:
    root, groups, _ = grow([10] * 8, fanout=4)
    once = cut_front(root, run(root, groups, Below(10))[0]).root

    twice = cut_front(once, run(once, groups, Below(30))[0])

    assert [retired[1:] for retired in twice.retired] == [(10, 30)]


def test_a_group_that_goes_whole_is_not_descended_into() -> None:
    root, groups, _ = grow([10] * 12, fanout=4)

    cut, requests = run(root, groups, Below(40))

    assert (cut.floor, requests) == (40, 0)
    (retired,) = cut_front(root, cut).retired
    assert (retired.entry["kind"], retired[1:]) == (EntryKind.GROUP, (0, 40))


@pytest.mark.parametrize("bound", [OlderThan(10**6), MoreThan(1), Below(10**6)])
def test_the_last_fragment_stays(bound: Bound) -> None:
    root, groups, fragments = grow([10] * 30, fanout=2)

    assert run(root, groups, bound)[0].floor == fragments[-1].first_offset


def test_the_last_fragment_stays_behind_a_gap_and_inside_a_group() -> None:
    root, groups, _ = grow([10, 10, 10, 10], fanout=2)
    gaps = np.zeros(4, ENTRY_DTYPE)
    gaps["first_offset"], gaps["next_offset"] = [40, 41, 42, 43], [41, 42, 43, 44]
    gaps["first_timestamp"] = gaps["last_timestamp"] = root.last_timestamp
    gaps["kind"] = EntryKind.GAP
    numbers = iter(range(500, 600))
    root, new = rebalance(append_entries(root, gaps), 2, lambda: Uid(f"{next(numbers):032x}"), seal)
    groups |= {sealed.node.uid: sealed.node for sealed in new}
    assert root.entries["kind"].tolist()[0] == EntryKind.GROUP

    assert run(root, groups, OlderThan(10**6))[0].floor == 30


def test_a_gap_before_anything_was_published_goes_for_its_age_and_takes_no_record_along() -> None:
    """Decision 24: its time is 0, since there is no record before it."""
    gap = np.zeros(1, ENTRY_DTYPE)
    gap["next_offset"], gap["kind"] = 7, EntryKind.GAP
    empty, groups, _ = grow([], fanout=4)
    root = append_entries(empty, gap)

    assert run(root, groups, OlderThan(1))[0] == Cut(7, Totals(), 0)
    assert run(root, groups, MoreThan(1))[0] == Cut(0)


def test_what_has_no_known_time_is_kept() -> None:
    root, groups, _ = grow([10] * 3, fanout=4)
    entries = root.entries.copy()
    entries["first_timestamp"][0] = entries["last_timestamp"][0] = UNKNOWN_TIME

    cut, _ = run(replace(root, entries=entries), groups, OlderThan(10**6))

    assert cut == Cut(0)


def test_the_smallest_set_of_oldest_fragments_goes() -> None:
    root, groups, fragments = grow([10] * 5, fanout=4)
    last_three = sum(fragment.size for fragment in fragments[2:])

    assert run(root, groups, MoreThan(last_three))[0].floor == 20
    assert run(root, groups, MoreThan(last_three - 1))[0].floor == 30


def test_the_larger_of_two_cuts_wins() -> None:
    assert larger((Cut(20), Cut(10)), 5) == Cut(20)
    assert larger((), 5) == Cut(5)


def test_an_emptied_root_keeps_its_end() -> None:
    root, _, _ = grow([10] * 9, fanout=2)

    edited = emptied(root)

    assert (edited.root.first_offset, edited.root.next_offset) == (90, 90)
    assert len(edited.root.entries) == 0
    assert sum(one.next_offset - one.first_offset for one in edited.retired) == 90
    assert decode_node(encode_node(edited.root)).last_timestamp == root.last_timestamp
