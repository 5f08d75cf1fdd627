"""Fragments that moved, in a tree beside the same in a plain list."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.manifest import a_fragment
from unit.tree.test_drives import said_and_below
from unit.tree.test_retention import run as run_cut
from unit.tree.test_tree import an_empty_root, grow, leaves, seal

from bottomless.formats.manifest import decode_node, encode_node
from bottomless.model.drive import MIXED
from bottomless.model.fragment import FragmentInfo
from bottomless.model.manifest import EntryKind, Node
from bottomless.model.names import Uid, uid_from_bytes
from bottomless_server.manifest.tree.core.tiering import Tier, find_tiering
from bottomless_server.tree.append import append_fragments
from bottomless_server.tree.rebalance import rebalance
from bottomless_server.tree.relocate import Relocated, Relocation, relocate
from bottomless_server.tree.retention import Below, Totals, cut_front, totals

HOT, COLD = 0, 7


class Stream:
    """A tree, and the list of fragments that it is to say."""

    def __init__(self, sizes: list[int], fanout: int) -> None:
        self.root, self.groups, self.fragments = grow(sizes, fanout)
        self.floor = 0
        self._fanout = fanout
        self._uids = itertools.count(5_000_000)
        self._copies = itertools.count(1)

    def new_uid(self) -> Uid:
        return Uid(f"{next(self._uids):032x}")

    def move(self, first: int, end: int, source: int, target: int) -> tuple[Relocated, int]:
        """Relocate in the tree and in the list; returns what came of it, and the groups asked for."""
        relocation = Relocation(first, end, source, target, next(self._copies))
        descent, asked = relocate(self.root, relocation, self.new_uid, seal), 0
        try:
            entry = next(descent)
            while True:
                asked += 1
                entry = descent.send(self.groups[uid_from_bytes(entry["uid"].tobytes())])
        except StopIteration as found:
            relocated: Relocated = found.value
        self.root = relocated.root
        self.groups |= {one.node.uid: decode_node(one.data) for one in relocated.groups}
        self.fragments = [
            info._replace(drive=target, copy=relocation.copy)
            if first <= info.first_offset
            and info.next_offset <= end
            and self.is_live(info)
            # A fragment that is elsewhere by now is not the one that was copied.
            and info.drive == source
            else info
            for info in self.fragments
        ]
        return relocated, asked

    def trim(self, below: int) -> None:
        self.root = cut_front(self.root, run_cut(self.root, self.groups, Below(below))[0]).root
        self.floor = self.root.first_offset

    def append(self, size: int) -> None:
        end = self.root.next_offset
        info = a_fragment(end, end + size)
        self.fragments.append(info)
        self.root, new = rebalance(
            append_fragments(self.root, [info]), self._fanout, self.new_uid, seal
        )
        self.groups |= {sealed.node.uid: decode_node(sealed.data) for sealed in new}

    def is_live(self, info: FragmentInfo) -> bool:
        return info.next_offset > self.floor

    def live(self, infos: Sequence[FragmentInfo]) -> list[FragmentInfo]:
        return [info for info in infos if self.is_live(info)]

    def check(self) -> None:
        assert self.live(leaves(self.root, self.groups)) == self.live(self.fragments)
        live = self.live(self.fragments)
        sums = Totals(len(live), sum(f.size for f in live), sum(f.record_count for f in live))
        assert totals(self.root.entries) == sums
        for said, below in said_and_below(self.root, self.groups):
            assert said == (below.pop() if len(below) == 1 else MIXED)
        self._check_objects(self.root)
        encode_node(replace(self.root, version=1))

    def _check_objects(self, node: Node) -> None:
        """What entries say of the objects of groups is what those are."""
        for entry in node.entries[node.entries["kind"] == EntryKind.GROUP]:
            group = self.groups[uid_from_bytes(entry["uid"].tobytes())]
            sealed = seal(group)
            assert (len(sealed.data), sealed.crc) == (entry["object_size"], entry["object_crc"])
            assert group.first_offset == entry["first_offset"]
            assert group.next_offset == entry["next_offset"]
            self._check_objects(group)


steps = st.one_of(
    st.tuples(
        st.just("move"),
        st.integers(0, 120),
        st.integers(1, 120),
        st.sampled_from([(HOT, COLD), (COLD, HOT)]),
    ),
    st.tuples(st.just("trim"), st.integers(0, 120)),
    st.tuples(st.just("append"), st.integers(1, 5)),
)


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=40),
    st.integers(2, 4),
    st.lists(steps, min_size=1, max_size=8),
)
def test_a_tree_says_of_moved_fragments_what_a_list_does(
    sizes: list[int], fanout: int, story: list[tuple[object, ...]]
) -> None:
    stream = Stream(sizes, fanout)
    for step in story:
        match step:
            case ("move", int(first), int(count), (int(source), int(target))):
                before = stream.live(stream.fragments)
                relocated, _ = stream.move(first, first + count, source, target)
                after = stream.live(stream.fragments)
                gone = [old for old, new in zip(before, after, strict=True) if old != new]
                assert relocated.moved == Totals(
                    len(gone), sum(f.size for f in gone), sum(f.record_count for f in gone)
                )
            case ("trim", int(below)):
                stream.trim(below)
            case ("append", int(size)):
                stream.append(size)
        stream.check()


def kinds_of(relocated: Relocated) -> list[tuple[int, int]]:
    return [(int(one["height"]), int(one["first_offset"])) for one in relocated.displaced]


def test_one_group_of_each_height_is_made_anew_and_lower_ones_come_first() -> None:
    stream = Stream([1] * 40, fanout=2)
    before = stream.root

    relocated, asked = stream.move(0, 2, HOT, COLD)

    height = int(before.entries["height"][0])
    assert height > 2
    assert [sealed.node.height for sealed in relocated.groups] == [*range(1, height + 1)]
    assert asked == height
    assert kinds_of(relocated) == [(0, 0), (0, 1), *((n, 0) for n in range(1, height + 1))]
    assert relocated.root.entries[1:].tobytes() == before.entries[1:].tobytes()
    stream.check()


def test_what_is_on_another_drive_by_now_stays_and_no_group_of_it_is_asked_for() -> None:
    stream = Stream([1] * 40, fanout=2)
    stream.move(0, 40, HOT, COLD)
    root = stream.root

    relocated, asked = stream.move(0, 40, HOT, 3)

    assert (relocated, asked) == (Relocated(root), 0)


def test_a_fragment_that_lies_only_in_part_between_the_offsets_is_not_meant() -> None:
    stream = Stream([4, 4, 4], fanout=4)
    relocated, _ = stream.move(1, 11, HOT, COLD)
    assert kinds_of(relocated) == [(0, 4)]
    stream.check()


def test_of_a_range_that_a_cut_has_reached_the_rest_is_moved() -> None:
    stream = Stream([1] * 40, fanout=4)
    stream.trim(6)

    relocated, _ = stream.move(4, 8, HOT, COLD)

    assert relocated.moved.fragment_count == 2
    assert [first for height, first in kinds_of(relocated) if height == 0] == [6, 7]
    stream.check()


def test_moved_away_and_back_it_is_another_copy() -> None:
    stream = Stream([1] * 8, fanout=4)
    stream.move(0, 1, HOT, COLD)
    stream.move(0, 1, COLD, HOT)
    found = leaves(stream.root, stream.groups)[0]
    assert (found.drive, found.copy) == (HOT, 2)
    assert encode_node(replace(stream.root, version=1))[4] == 1, (
        "the root names no moved one itself"
    )
    stream.check()


def test_the_moves_of_a_policy_lead_to_what_the_policy_asks_for() -> None:
    stream = Stream([1] * 60, fanout=3)
    limit = 20 * stream.fragments[0].size
    tiers = [Tier(HOT, max_bytes=limit), Tier(COLD)]
    for _ in range(60):
        descent = find_tiering(stream.root, tiers, now=0)
        try:
            entry = next(descent)
            while True:
                entry = descent.send(stream.groups[uid_from_bytes(entry["uid"].tobytes())])
        except StopIteration as found:
            tiering = found.value
        if not tiering.moves:
            break
        for move in tiering.moves:
            relocated, _ = stream.move(*move[:4])
            assert relocated.moved == move.moved
        stream.check()
    newest = itertools.accumulate(info.size for info in reversed(stream.fragments))
    hot = sum(size <= limit for size in newest)
    assert 0 < hot < 60
    assert [info.drive for info in stream.fragments] == [COLD] * (60 - hot) + [HOT] * hot


def test_no_copy_is_number_0() -> None:
    with pytest.raises(AssertionError, match="is no copy"):
        next(relocate(an_empty_root(), Relocation(0, 1, HOT, COLD, 0), lambda: Uid(""), seal))
