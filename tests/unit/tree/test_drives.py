"""What groups say of drives beside the drives of the fragments below them."""

import itertools
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.manifest import a_fragment
from unit.tree.test_retention import run as run_cut
from unit.tree.test_tree import Groups, an_empty_root, leaves, seal

from bottomless.formats.manifest import decode_node, encode_node
from bottomless.model.drive import MIXED
from bottomless.model.manifest import EntryKind, GapReason, Node, fragment_entry
from bottomless.model.names import Uid, uid_from_bytes
from bottomless_server.manifest.tree.core.planning import gap_at_end
from bottomless_server.tree.append import append_entries, append_fragments
from bottomless_server.tree.drives import drive_of
from bottomless_server.tree.rebalance import rebalance
from bottomless_server.tree.retention import Below, cut_front

COLD = 7
drives = st.lists(st.sampled_from([0, 0, COLD]), min_size=1, max_size=60)


def grow(numbers: list[int], fanout: int) -> tuple[Node, Groups]:
    """A tree with one fragment on each of the drives; those beside the first are copies."""
    uids = itertools.count(1_000_000)
    root, groups = an_empty_root(), Groups()
    for first, drive in enumerate(numbers):
        info = a_fragment(first, first + 1)._replace(drive=drive, copy=drive * (first + 1))
        root = append_fragments(root, [info])
        root, new = rebalance(root, fanout, lambda: Uid(f"{next(uids):032x}"), seal)
        groups |= {sealed.node.uid: decode_node(sealed.data) for sealed in new}
    return root, groups


def said_and_below(node: Node, groups: Groups) -> list[tuple[int, set[int]]]:
    """Of each group below a node what its entry says, and the drives of all fragments below it."""
    found = []
    for entry in node.entries:
        if entry["kind"] == EntryKind.GROUP:
            group = groups[uid_from_bytes(entry["uid"].tobytes())]
            found.append((int(entry["drive"]), {info.drive for info in leaves(group, groups)}))
            found += said_and_below(group, groups)
    return found


@given(drives, st.integers(2, 5))
def test_a_group_says_where_everything_below_it_lies(numbers: list[int], fanout: int) -> None:
    root, groups = grow(numbers, fanout)

    assert [info.drive for info in leaves(root, groups)] == numbers
    for said, below in said_and_below(root, groups):
        assert said == (below.pop() if len(below) == 1 else MIXED)


@given(st.integers(1, 60), st.integers(2, 5))
def test_where_all_lies_on_the_first_drive_no_node_is_of_version_2(size: int, fanout: int) -> None:
    root, groups = grow([0] * size, fanout)

    assert {encode_node(node)[4] for node in (replace(root, version=1), *groups.values())} == {1}


@given(drives, st.integers(2, 5), st.integers(0, 60))
def test_a_cut_leaves_what_the_rest_says_of_drives(
    numbers: list[int], fanout: int, below: int
) -> None:
    root, groups = grow(numbers, fanout)

    edited = cut_front(root, run_cut(root, groups, Below(below))[0])

    floor = edited.root.first_offset
    live = [info for info in leaves(edited.root, groups) if info.first_offset >= floor]
    assert [info.drive for info in live] == numbers[floor:]
    read = decode_node(encode_node(replace(edited.root, version=1)))
    assert read.entries.tobytes() == edited.root.entries.tobytes()


def test_gaps_lie_nowhere() -> None:
    cold = fragment_entry(a_fragment(0, 5)._replace(drive=COLD))
    root = append_entries(an_empty_root(), cold)
    both = append_entries(root, gap_at_end(root, 9, 1, GapReason.TAKEOVER))

    assert drive_of(both.entries) == COLD
    assert drive_of(both.entries[1:]) == 0
    assert drive_of(np.concatenate([both.entries, fragment_entry(a_fragment(9, 10))])) == MIXED
