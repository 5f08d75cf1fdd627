"""A floor that was published is not taken back by a rebuild, whatever a failed attempt has left.

A publish puts its root before the EXEC that makes it the stream's. If the EXEC fails, the root stays
in the bucket for a while, and the next publish has the same version. Where that one is a trim, or
retention, two roots of one version lie there with two floors, and after a loss of coordination nobody
says which one was published.
"""

from dataclasses import replace

import numpy as np
import pytest
from support import guards
from support.manifest import STREAM, ManifestHarness, a_fragment
from support.object_keys import fragment_key, group_key
from support.rebuilding import a_harness, firsts, publish, rebuild

from bottomless.formats.keys import RootKey, root_prefix
from bottomless.model.manifest import Entries, EntryKind, Node, fragment_entry, no_entries
from bottomless.model.names import Uid, uid_from_bytes
from bottomless_server.manifest.mutators.retention import trim
from bottomless_server.manifest.tree.committer import Committer
from bottomless_server.manifest.tree.core.rebuild_decision import (
    RootCandidate,
    RootSeen,
    best_of,
)
from bottomless_server.manifest.tree.resolver import load_root
from bottomless_server.tree.rebalance import group_entry

GUARD = "the highest floor of one version, also where something is missing"
A, B, C, D = (
    fragment_entry(a_fragment(10 * n, 10 * n + 10, uid=Uid("abcd"[n] * 32))) for n in range(4)
)


def a_node(floor: int, end: int, entries: Entries, uid: str, epoch: int = 2) -> Node:
    return Node(STREAM, Uid(uid * 32), 0, floor, end, epoch, 7, 0, 0, entries)


def a_root(*run: Entries, uid: str, epoch: int = 2) -> RootCandidate:
    entries = np.concatenate(run)
    floor, end = int(entries["first_offset"][0]), int(entries["next_offset"][-1])
    node = a_node(floor, end, entries, uid, epoch)
    return RootCandidate(RootKey(0, epoch, 7, node.uid), node)


def bounds(one: RootCandidate) -> tuple[int, int, list[int]]:
    return one.root.first_offset, one.root.next_offset, one.root.entries["first_offset"].tolist()


async def roots(harness: ManifestHarness) -> int:
    return len([one async for one in harness.drive.list(root_prefix(STREAM, "default"))])


async def lose_and_rebuild(harness: ManifestHarness) -> int:
    """The floor after a loss of coordination and the rebuild."""
    harness.coordination.lose()
    await rebuild(harness)
    return (await Committer.open(harness.context, STREAM)).keeper.root.first_offset


@pytest.mark.parametrize("uids", ["78", "87"])
def test_of_two_roots_that_end_alike_the_one_with_the_higher_floor_is_believed(uids: str) -> None:
    """Which of them it was depended on their uids."""
    failed, cut = a_root(A, B, C, uid=uids[0]), a_root(B, C, uid=uids[1])

    assert best_of([failed, cut], home_known=True) == cut
    assert best_of([cut, failed], home_known=True) == cut


def test_a_stream_that_was_emptied_stays_empty() -> None:
    node = a_node(30, 30, no_entries(), "8")
    emptied = RootCandidate(RootKey(0, 2, 7, node.uid), node)

    assert best_of([a_root(A, B, C, uid="9"), emptied], home_known=True) == emptied
    longer = best_of([a_root(A, B, C, D, uid="9"), emptied], home_known=True)
    assert bounds(longer) == (30, 40, [30])


def test_a_longer_root_gives_its_end_to_the_one_with_the_higher_floor() -> None:
    longer, cut = a_root(A, B, C, D, uid="8"), a_root(B, C, uid="7")

    assert bounds(best_of([longer, cut], home_known=True)) == (10, 40, [10, 20, 30])


def test_no_records_are_given_up_for_a_floor() -> None:
    node = a_node(20, 40, np.concatenate([C, D]), "e")
    longer, cut = a_root(A, B, group_entry(node, 100, 0), uid="8"), a_root(B, C, uid="7")
    assert longer.root.entries["kind"][-1] == EntryKind.GROUP

    assert best_of([longer, cut], home_known=True) == longer


def test_the_floor_of_an_epoch_before_counts_for_nothing() -> None:
    newer, deposed = a_root(A, B, C, uid="7", epoch=3), a_root(B, C, uid="8")

    assert best_of([newer, deposed], home_known=True) == newer


async def test_a_trim_after_a_publish_that_failed_outlives_the_loss_of_coordination() -> None:
    harness = await a_harness(0, 10, 20, fanout=8)
    other = await Committer.open(harness.context, STREAM)
    await publish(harness, 30, in_vain=True)
    before = await roots(harness)
    assert await trim(harness.context, other, 20, allow_empty=False) == 20
    assert await firsts(harness) == [20]
    assert await roots(harness) == before + 1

    assert await lose_and_rebuild(harness) == 20

    assert await firsts(harness) == [20, 30]


async def trimmed_after_a_publish_that_failed(fanout: int, floor: int = 20) -> ManifestHarness:
    """Two roots of one version, the longer of which begins at 0, and the other one at `floor`."""
    harness = await a_harness(0, 10, 20, 30, fanout=fanout)
    other = await Committer.open(harness.context, STREAM)
    await publish(harness, 40, in_vain=True)
    assert await trim(harness.context, other, floor, allow_empty=False) == floor
    return harness


async def lose(harness: ManifestHarness, number: int) -> None:
    leaf = (await harness.leaves())[number]
    assert not await harness.drive.delete([fragment_key(STREAM, leaf.first_offset, leaf.uid)])


@pytest.mark.parametrize("fanout", [8, 2])
@pytest.mark.parametrize("gone", [0, 1])
async def test_a_trim_outlives_a_lost_fragment_and_the_loss_of_coordination(
    fanout: int, gone: int
) -> None:
    """Both roots name it; with the smaller fanout by a group, and of such nothing looks missing."""
    harness = await trimmed_after_a_publish_that_failed(fanout)
    await lose(harness, gone)

    assert await lose_and_rebuild(harness) == 20

    assert await firsts(harness) == [20, 30, 40]


async def test_where_the_longer_root_cannot_be_cut_it_stays_as_it_is() -> None:
    """A floor is worth less than records: the group that goes on above it is gone, in both roots."""
    harness = await trimmed_after_a_publish_that_failed(2, floor=10)
    _, root = await load_root(harness.context, await harness.record())
    cut = root.entries[0]
    assert (cut["kind"], cut["first_offset"], cut["height"]) == (EntryKind.GROUP, 0, 1)
    group = group_key(STREAM, 0, uid_from_bytes(cut["uid"].tobytes()), 1)
    assert not await harness.drive.delete([group])
    # Another process, which has never read it.
    harness.context = replace(harness.context)

    assert await lose_and_rebuild(harness) == 0


async def test_without_that_floor_what_was_trimmed_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def as_it_is(_: object, __: object, one: RootSeen, ___: object) -> RootSeen:
        return one

    guards.remove(monkeypatch, GUARD, as_it_is)
    harness = await trimmed_after_a_publish_that_failed(8)
    await lose(harness, 0)

    assert await lose_and_rebuild(harness) == 0
