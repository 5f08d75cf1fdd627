"""A drive that is lost: gaps in the place of the fragments on it, anywhere in a manifest."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.manifest import STREAM, Uids, a_fragment

from bottomless.formats.manifest import decode_node, encode_node
from bottomless.model.manifest import EntryKind, GapReason, Node, no_entries
from bottomless.model.names import Uid
from bottomless_server.manifest.tree.core.planning import seal_node
from bottomless_server.tree.append import append_fragments
from bottomless_server.tree.drive_loss import Lost, lose
from bottomless_server.tree.rebalance import rebalance
from bottomless_server.tree.retention import totals

LOST = 7


class Tree:
    """A manifest of fragments of ten records, and its groups by their uids."""

    def __init__(self, drives: Sequence[int], fanout: int = 2) -> None:
        self.new_uid = Uids()
        self.groups: dict[bytes, Node] = {}
        root = Node(STREAM, Uid("0" * 32), 0, 0, 0, 1, 1, 0, 0, no_entries())
        for number, drive in enumerate(drives):
            info = a_fragment(10 * number, 10 * number + 10, uid=self.new_uid())
            root = append_fragments(root, [info._replace(drive=drive)])
            root, groups = rebalance(root, fanout, self.new_uid, seal_node)
            self._keep([one.node for one in groups])
        self.root = root

    def lose(self, group_count_max: int = 64) -> Lost:
        descent = lose(self.root, LOST, self.new_uid, seal_node, group_count_max=group_count_max)
        try:
            entry = next(descent)
            while True:
                entry = descent.send(self.groups[entry["uid"].tobytes()])
        except StopIteration as ended:
            lost: Lost = ended.value
        self._keep([one.node for one in lost.groups])
        self.root = lost.root
        return lost

    def leaves(self, node: Node | None = None) -> list[tuple[int, int, int]]:
        """Offset, kind and drive of all leaves; each node must be one that can be stored."""
        node = self.root if node is None else node
        assert decode_node(encode_node(node)).next_offset == node.next_offset
        found = []
        for entry in node.entries:
            if entry["kind"] == EntryKind.GROUP:
                below = self.groups[entry["uid"].tobytes()]
                assert totals(below.entries) == totals(np.array([entry]))
                found += self.leaves(below)
            else:
                found.append((int(entry["first_offset"]), int(entry["kind"]), int(entry["drive"])))
        return found

    def _keep(self, nodes: Sequence[Node]) -> None:
        self.groups |= {bytes.fromhex(node.uid): node for node in nodes}


@given(st.lists(st.sampled_from([0, LOST, 9]), max_size=24), st.integers(1, 4))
def test_what_was_on_the_drive_is_a_gap_and_all_else_is_as_it_was(
    drives: list[int], group_count_max: int
) -> None:
    tree = Tree(drives)
    lost = fragments = 0
    while True:
        found = tree.lose(group_count_max)
        fragments += found.lost.fragment_count
        lost += found.lost.record_count
        if not found.more:
            break
    assert tree.leaves() == [
        (10 * at, EntryKind.GAP, 0) if drive == LOST else (10 * at, EntryKind.FRAGMENT, drive)
        for at, drive in enumerate(drives)
    ]
    assert (fragments, lost) == (drives.count(LOST), 10 * drives.count(LOST))
    assert totals(tree.root.entries).fragment_count == len(drives) - drives.count(LOST)


def test_a_manifest_without_anything_there_stays_the_same_root() -> None:
    tree = Tree([0, 9, 0, 9, 0, 9])
    before = tree.root
    found = tree.lose()
    assert found.root is before
    assert not found.groups
    assert not found.more


def test_what_is_below_the_floor_is_left_alone() -> None:
    tree = Tree([LOST])
    entries = tree.root.entries
    tree.root = Node(STREAM, Uid("0" * 32), 0, 10, 10, 1, 1, 0, 0, no_entries())
    assert tree.lose().lost.fragment_count == 0
    assert int(entries["drive"][0]) == LOST, "what was given is never written to"


def test_a_gap_says_that_what_was_stored_is_gone() -> None:
    tree = Tree([0, LOST])
    tree.lose()
    assert int(tree.root.entries["reason"][1]) == GapReason.DAMAGED
