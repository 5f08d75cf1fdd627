"""What may stand where a newer root names something that is gone, without any bucket."""

import numpy as np
import pytest
from support.manifest import STREAM, a_fragment

from bottomless.formats.keys import RootKey
from bottomless.model.manifest import (
    Entries,
    EntryKind,
    GapReason,
    Node,
    fragment_entry,
    no_entries,
)
from bottomless.model.names import Uid
from bottomless_server.manifest.tree.core.rebuild_decision import (
    RootCandidate,
    RootSeen,
    in_order,
    named_directly,
)
from bottomless_server.manifest.tree.core.root_agreement import agrees, may_be_adopted, names_after
from bottomless_server.tree.rebalance import group_entry


def a_piece(first: int, end: int, epoch: int, uid: str) -> Entries:
    return fragment_entry(a_fragment(first, end, uid=Uid(uid * 32), epoch=epoch))


def a_gap(first: int, end: int, epoch: int) -> Entries:
    gap = np.zeros_like(no_entries(), shape=1)
    gap["first_offset"], gap["next_offset"] = first, end
    gap["first_epoch"] = gap["last_epoch"] = epoch
    gap["kind"], gap["reason"] = EntryKind.GAP, GapReason.TAKEOVER
    return gap


def a_root(*entries: Entries, version: int = 7, epoch: int = 2, uid: str = "9") -> Node:
    run = np.concatenate(entries)
    end = int(run["next_offset"][-1])
    return Node(STREAM, Uid(uid * 32), 0, 0, end, epoch, version, 0, 0, run)


def a_group(*entries: Entries) -> Entries:
    return group_entry(a_root(*entries, uid="e"), 100, 0)


ONE, TWO, THREE = (a_piece(n * 10, n * 10 + 10, 2, "abc"[n]) for n in range(3))
OTHER = {epoch: a_piece(10, 20, epoch, "f") for epoch in (1, 2, 3)}


def joined(*entries: Entries) -> Entries:
    return np.concatenate(entries)


def test_a_root_agrees_with_the_ones_that_it_was_made_of() -> None:
    newer = joined(ONE, TWO, THREE)

    for older in (no_entries(), ONE, joined(ONE, TWO), newer):
        assert agrees(newer, older, one_version=False)
    assert agrees(joined(a_group(ONE, TWO), THREE), joined(ONE, TWO, THREE), one_version=False)
    assert agrees(joined(a_group(ONE, TWO), THREE), ONE, one_version=False)
    assert agrees(joined(a_group(ONE, TWO), THREE), a_group(ONE, TWO), one_version=False)


@pytest.mark.parametrize("epoch", [1, 2, 3])
def test_an_older_root_that_names_another_fragment_does_not_agree(epoch: int) -> None:
    newer = joined(ONE, TWO, THREE)

    assert not agrees(newer, joined(ONE, OTHER[epoch]), one_version=False)
    assert not agrees(newer, joined(ONE, a_piece(10, 90, epoch, "f")), one_version=False)


def test_of_one_version_another_upload_of_the_same_epoch_or_a_later_one_agrees() -> None:
    newer = joined(ONE, TWO)

    assert not agrees(newer, joined(ONE, OTHER[1]), one_version=True)
    assert agrees(newer, joined(ONE, OTHER[2]), one_version=True)
    assert agrees(newer, joined(ONE, OTHER[3]), one_version=True)
    assert agrees(newer, a_group(ONE, TWO), one_version=True)
    assert not agrees(newer, a_group(a_piece(0, 10, 1, "f"), OTHER[1]), one_version=True)


def test_no_end_of_a_group_is_of_an_epoch_before() -> None:
    first = a_piece(0, 10, 1, "a")
    newer = joined(a_group(first, TWO), THREE)

    assert not agrees(newer, joined(first, OTHER[1]), one_version=False)
    assert agrees(newer, first, one_version=False)
    assert not agrees(a_group(ONE, TWO, THREE), joined(first, OTHER[1]), one_version=False)


def test_in_a_group_epochs_may_go_back_after_a_gap_that_was_accepted() -> None:
    """The gap is of the epoch in which it was accepted, and what follows was written before."""
    entries = (a_gap(0, 10, 5), TWO, THREE, a_piece(30, 40, 6, "d"))

    assert agrees(a_group(*entries), joined(*entries[:3]), one_version=False)


def test_a_gap_is_no_fragment_and_says_nothing_of_what_another_root_names() -> None:
    assert not agrees(joined(ONE, TWO), joined(ONE, a_gap(10, 90, 3)), one_version=True)
    assert agrees(joined(ONE, a_gap(10, 90, 3)), joined(ONE, TWO), one_version=True)


def test_a_fragment_is_adopted_unless_it_is_of_an_epoch_before() -> None:
    names = names_after(no_entries(), a_root(ONE, TWO, THREE), 10)

    assert [may_be_adopted(names, a_fragment(10, 20, epoch=epoch)) for epoch in (1, 2, 3)] == [
        False,
        True,
        True,
    ]
    assert not may_be_adopted(names, a_fragment(5, 90, epoch=1))
    assert may_be_adopted(names, a_fragment(30, 40, epoch=1))
    assert may_be_adopted(no_entries(), a_fragment(10, 20, epoch=1))


def test_what_roots_name_that_were_passed_over_is_kept_once() -> None:
    names = names_after(no_entries(), a_root(ONE, TWO, THREE, a_gap(30, 90, 2)), 20)
    assert names["first_offset"].tolist() == [20]

    names = names_after(names, a_root(ONE, TWO, THREE), 5)
    assert sorted(names["first_offset"].tolist()) == [0, 10, 20]


def seen(root: Node, *gone: Entries) -> RootSeen:
    key = RootKey(root.generation, root.epoch, root.version, root.uid)
    lost = {uid for one in gone for uid in named_directly(a_root(one), EntryKind.FRAGMENT)}
    return RootSeen(RootCandidate(key, root), named_directly(root, EntryKind.FRAGMENT) - lost)


def test_a_root_with_a_hole_ends_in_the_gap_of_a_takeover_that_another_of_its_version_ends_in() -> (
    None
):
    broken = seen(a_root(ONE, TWO, epoch=3, uid="7"), TWO)
    whole = seen(a_root(ONE, a_gap(10, 90, 3), epoch=3, uid="8"))

    first, second = in_order([whole, broken], home_known=True)

    assert first.found.root.entries["next_offset"].tolist() == [10, 20, 90]
    assert (first.missing, second) == (broken.missing, whole)
    assert first.is_there_after(20, home_known=True)
