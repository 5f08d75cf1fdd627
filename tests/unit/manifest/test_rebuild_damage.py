"""A rebuild of streams of which something is missing: what is there stays, and nothing is doomed.

The tests of rebuilds and the model beside it lost coordination, and never an object with it, but
for the newest fragment alone. So an older root that lingers could take the place of the newest
one for the sake of one lost fragment, and all that was published after it was deleted.
"""

import pytest
from support.guards import remove
from support.manifest import STREAM, ManifestHarness
from support.object_keys import fragment_key, group_key
from support.rebuilding import a_harness, doomed, firsts, publish, put, rebuild

from bottomless.errors import Corrupt
from bottomless.model.manifest import EntryKind, no_entries
from bottomless.model.names import Uid, uid_from_bytes
from bottomless_server.manifest.recovery.adopted_copies import copy_run
from bottomless_server.manifest.tree.core.rebuild_decision import RootSeen
from bottomless_server.manifest.tree.resolver import load_root, root_object_key

FIRSTS = [0, 10, 20, 30, 40, 50]


async def a_damaged_harness(gone: int) -> ManifestHarness:
    """Published one by one, so that the roots of before linger; then one fragment is lost."""
    harness = await a_harness(fanout=100)
    for first in FIRSTS:
        await publish(harness, first)
    (leaf,) = [leaf for leaf in await harness.leaves() if leaf.first_offset == gone]
    await harness.drive.delete([fragment_key(STREAM, gone, leaf.uid)])
    harness.coordination.lose()
    return harness


@pytest.mark.parametrize("gone", FIRSTS[:-1])
async def test_of_a_stream_that_lost_a_fragment_all_others_stay(gone: int) -> None:
    harness = await a_damaged_harness(gone)

    result = await rebuild(harness)

    assert (result["damaged_streams"], result["damaged"]) == (1, ["orders"])
    assert await firsts(harness) == FIRSTS
    assert (await harness.record()).published_next == 60
    assert await doomed(harness) == set()


async def test_without_the_look_at_what_an_older_root_gives_up_they_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def takes(_: object, __: object, older: RootSeen, *___: object) -> bool:
        return not older.missing

    remove(monkeypatch, "what an older root would give up", takes)
    harness = await a_damaged_harness(20)

    await rebuild(harness)

    assert await firsts(harness) == [0, 10]


async def test_where_all_that_a_root_adds_is_gone_it_was_given_up() -> None:
    """As an attempt to publish leaves it that lost: its fragments were given up, and are deleted."""
    harness = await a_damaged_harness(50)

    result = await rebuild(harness)

    assert result["damaged_streams"] == 0
    assert await firsts(harness) == FIRSTS[:-1]


async def test_an_attempt_that_lost_hides_no_damage_before_it() -> None:
    harness = await a_harness(fanout=100)
    for first in FIRSTS:
        await publish(harness, first)
    lost = [leaf for leaf in await harness.leaves() if leaf.first_offset in (20, 50)]
    await harness.drive.delete([fragment_key(STREAM, leaf.first_offset, leaf.uid) for leaf in lost])
    harness.coordination.lose()

    result = await rebuild(harness)

    assert result["damaged_streams"] == 1
    assert await firsts(harness) == FIRSTS[:-1]


async def test_a_lost_group_is_proved_by_an_older_root_and_the_fragments_after_it() -> None:
    harness = await a_harness()
    groups, published = no_entries(), list[int]()
    while not len(groups):
        published.append(10 * len(published))
        await publish(harness, published[-1])
        _, root = await load_root(harness.context, await harness.record())
        groups = root.entries[root.entries["kind"] == EntryKind.GROUP]
    group = groups[0]
    uid = uid_from_bytes(group["uid"].tobytes())
    await harness.drive.delete([group_key(STREAM, 0, uid, 1)])
    harness.coordination.lose()

    result = await rebuild(harness)

    assert result["damaged_streams"] == 0
    assert await firsts(harness) == published


async def test_where_the_newest_root_cannot_be_read_nothing_is_doomed() -> None:
    """It may have named what lies after a hole."""
    harness = await a_harness(fanout=100)
    for first in FIRSTS[:3]:
        await publish(harness, first)
    await publish(harness, 30, 40)
    newest = await harness.record()
    (gone,) = [leaf for leaf in await harness.leaves() if leaf.first_offset == 30]
    await harness.drive.delete([root_object_key(newest), fragment_key(STREAM, 30, gone.uid)])
    await put(harness, root_object_key(newest), b"damaged")
    harness.coordination.lose()

    result = await rebuild(harness)

    assert result["damaged_streams"] == 1
    assert await firsts(harness) == FIRSTS[:3]
    assert await doomed(harness) == set()


async def test_copies_of_a_rebuild_that_died_are_no_part_of_what_is_lost() -> None:
    """A stream that had published nothing: its fragments are adopted as copies, before there is a
    root. The next attempt found two fragments at one place, and took the one for the rest of a
    manifest that is lost. The rebuilds of the tests died after their roots alone; seed 44 of the
    simulation died between."""
    harness = await a_harness()
    infos = [
        await harness.put_fragment(Uid(digit * 32), first, timestamp=1_000 + first)
        for digit, first in (("a", 0), ("b", 10))
    ]
    await copy_run(harness.context, await harness.record(), infos)
    harness.coordination.lose()

    result = await rebuild(harness)

    assert result["damaged_streams"] == 0
    assert await firsts(harness) == [0, 10]


async def test_another_fragment_at_the_same_place_is_part_of_what_is_lost() -> None:
    harness = await a_harness()
    await harness.put_fragment(Uid("a" * 32), 0, timestamp=1_000)
    await harness.put_fragment(Uid("b" * 32), 0, timestamp=1_001)
    harness.coordination.lose()

    await rebuild(harness)

    with pytest.raises(Corrupt, match="missing"):
        await harness.leaves()
