"""The tree beside plain lists."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.manifest import STREAM, a_fragment, a_record

from bottomless.formats.checks import crc32c
from bottomless.formats.manifest import encode_node
from bottomless.model.fragment import FragmentInfo
from bottomless.model.manifest import EntryKind, Node, fragment_entry, fragment_info, no_entries
from bottomless.model.names import Uid, uid_from_bytes
from bottomless.model.stream import EpochStart, Intent
from bottomless_server.tree.append import append_entries
from bottomless_server.tree.rebalance import SealedNode, rebalance
from bottomless_server.tree.resolve import FoundUnderIntent, epoch_covers, resolve_intents
from bottomless_server.tree.search import at_offset, since

Groups = dict[Uid, Node]


def an_empty_root() -> Node:
    return Node(STREAM, Uid("0" * 32), 0, 0, 0, 1, 0, 0, 0, no_entries())


def seal(node: Node) -> SealedNode:
    data = encode_node(node)
    return SealedNode(node, data, crc32c(data))


def grow(
    sizes: list[int], fanout: int, per_run: int = 1
) -> tuple[Node, Groups, list[FragmentInfo]]:
    """Append fragments of these record counts, some at a time, rebalancing after each run."""
    numbers = itertools.count(1_000_000)
    root, appended = an_empty_root(), []
    groups: Groups = {}
    end = 0
    for at in range(0, len(sizes), per_run):
        run = []
        for size in sizes[at : at + per_run]:
            run.append(a_fragment(end, end + size))
            end += size
        appended += run
        root = append_entries(root, np.concatenate([fragment_entry(f) for f in run]))
        root, new = rebalance(root, fanout, lambda: Uid(f"{next(numbers):032x}"), seal)
        groups |= {sealed.node.uid: sealed.node for sealed in new}
    return root, groups, appended


def leaves(node: Node, groups: Groups) -> list[FragmentInfo]:
    found: list[FragmentInfo] = []
    for entry in node.entries:
        if entry["kind"] == EntryKind.GROUP:
            found += leaves(groups[uid_from_bytes(entry["uid"].tobytes())], groups)
        else:
            found.append(fragment_info(entry))
    return found


sizes = st.lists(st.integers(1, 5), min_size=1, max_size=80)


@given(sizes=sizes, fanout=st.integers(2, 5), per_run=st.integers(1, 20))
def test_rebalancing_neither_loses_nor_reorders_fragments(
    sizes: list[int], fanout: int, per_run: int
) -> None:
    root, groups, appended = grow(sizes, fanout, per_run)

    assert leaves(root, groups) == appended


@given(sizes=sizes, fanout=st.integers(2, 5), per_run=st.integers(1, 20))
def test_the_sums_of_the_root_are_those_of_all_fragments(
    sizes: list[int], fanout: int, per_run: int
) -> None:
    root, _, appended = grow(sizes, fanout, per_run)

    assert int(root.entries["byte_size"].sum()) == sum(f.size for f in appended)
    assert int(root.entries["record_count"].sum()) == sum(sizes)
    assert int(root.entries["fragment_count"].sum()) == len(sizes)
    encode_node(replace(root, version=1))


@given(sizes=sizes, fanout=st.integers(2, 5))
def test_no_height_of_a_root_has_twice_the_fanout(sizes: list[int], fanout: int) -> None:
    root, groups, _ = grow(sizes, fanout)

    counts = np.bincount(root.entries["height"])
    assert counts.max() < 2 * fanout
    assert all(len(group.entries) == fanout for group in groups.values())


def test_groups_are_made_at_any_height() -> None:
    root, groups, appended = grow([1] * 200, fanout=2)

    assert int(root.entries["height"][0]) >= 6
    assert leaves(root, groups) == appended
    for group in groups.values():
        assert bool(np.all(group.entries["height"] == group.height - 1))


def test_a_long_run_makes_lower_groups_before_those_that_name_them() -> None:
    numbers = itertools.count(1)
    run = np.concatenate([fragment_entry(a_fragment(n, n + 1)) for n in range(32)])
    root = append_entries(an_empty_root(), run)

    _, groups = rebalance(root, 2, lambda: Uid(f"{next(numbers):032x}"), seal)

    heights = [sealed.node.height for sealed in groups]
    assert heights == sorted(heights)
    assert max(heights) == 3


def test_a_group_entry_says_what_its_object_is() -> None:
    root, groups, _ = grow([1, 2, 3, 4], fanout=2)

    entry = root.entries[0]
    group = groups[uid_from_bytes(entry["uid"].tobytes())]
    data = encode_node(group)
    assert (int(entry["object_size"]), int(entry["object_crc"])) == (len(data), crc32c(data))
    assert (int(entry["first_offset"]), int(entry["next_offset"])) == (0, 3)
    assert (int(entry["first_epoch"]), int(entry["last_epoch"])) == (1, 1)


def test_a_run_that_leaves_a_hole_is_a_bug() -> None:
    root = append_entries(an_empty_root(), fragment_entry(a_fragment(0, 10)))

    with pytest.raises(AssertionError, match="does not start at the end"):
        append_entries(root, fragment_entry(a_fragment(11, 20)))


@given(sizes=sizes, fanout=st.integers(2, 4), data=st.data())
def test_the_entry_of_an_offset_is_the_one_that_holds_it(
    sizes: list[int], fanout: int, data: st.DataObject
) -> None:
    root, groups, appended = grow(sizes, fanout)
    offset = data.draw(st.integers(0, root.next_offset - 1))

    node = root
    entry = node.entries[at_offset(node, offset)]
    while entry["kind"] == EntryKind.GROUP:
        node = groups[uid_from_bytes(entry["uid"].tobytes())]
        entry = node.entries[at_offset(node, offset)]

    assert fragment_info(entry) == next(f for f in appended if f.next_offset > offset)


@given(sizes=sizes, timestamp=st.integers(-5, 500))
def test_the_entry_of_a_time_is_the_first_that_ends_then_or_later(
    sizes: list[int], timestamp: int
) -> None:
    root, _, _ = grow(sizes, fanout=3)

    lasts = root.entries["last_timestamp"].tolist()
    expected = next((n for n, last in enumerate(lasts) if last >= timestamp), len(lasts))
    assert since(root, timestamp) == expected


def test_a_run_of_sound_fragments_from_the_end_is_adopted() -> None:
    record = a_record(published_next=10)
    found = [a_find(20, 30), a_find(10, 20), a_find(40, 50)]

    adopted, given_up = resolve_intents(record, found, committed_next=100)

    assert [fragment.first_offset for fragment in adopted] == [10, 20]
    assert [intent.first_offset for intent in given_up] == [40]


@pytest.mark.parametrize("committed_next", [None, 19])
def test_what_the_owner_does_not_vouch_for_is_given_up(committed_next: int | None) -> None:
    resolution = resolve_intents(a_record(published_next=10), [a_find(10, 20)], committed_next)

    assert resolution.adopted == ()


def test_nothing_under_an_intent_is_given_up() -> None:
    found = [FoundUnderIntent(Intent(Uid("a" * 32), 0, "old"), None)]

    assert resolve_intents(a_record(), found, 100).given_up == (found[0].intent,)


def test_of_two_cuts_of_one_place_the_longer_is_adopted() -> None:
    longer = a_find(0, 20, uid=Uid("b" * 32))

    adopted, given_up = resolve_intents(a_record(), [a_find(0, 10), longer], 100)

    assert adopted == (longer.fragment,)
    assert len(given_up) == 1


@pytest.mark.parametrize(
    ("first", "next_", "epoch", "covered"),
    [(0, 10, 1, True), (5, 15, 1, False), (10, 20, 2, True), (10, 20, 1, False), (0, 10, 3, False)],
)
def test_an_epoch_covers_what_its_owner_was_to_write(
    first: int, next_: int, epoch: int, covered: bool
) -> None:
    record = a_record(epoch=2, epochs=(EpochStart(1, 0), EpochStart(2, 10)))

    assert epoch_covers(record, a_fragment(first, next_, epoch=epoch)) is covered


def a_find(first: int, next_: int, uid: Uid | None = None) -> FoundUnderIntent:
    fragment = a_fragment(first, next_, uid=uid)
    return FoundUnderIntent(Intent(fragment.uid, first, "old"), fragment)
