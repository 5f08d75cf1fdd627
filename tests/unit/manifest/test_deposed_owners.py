"""A rebuild of a stream that lost a published fragment, where a deposed owner had put others at the
same offsets: the root of a publish that lost, and fragments that nobody published.

The model lost single fragments, and deposed owners, but hardly ever both at the same offsets. Then an
older root that is whole, or fragments at the end, took the place of what was lost; and a longer one
that of all that was published after it.
"""

import pytest
from support.guards import remove
from support.manifest import STREAM, ManifestHarness
from support.object_keys import fragment_key, group_key
from support.rebuilding import a_harness, doomed, firsts, next_owner, publish, put, rebuild

from bottomless.formats.keys import parse_root_key, root_prefix
from bottomless.model.fragment import FragmentInfo
from bottomless.model.manifest import EntryKind
from bottomless.model.names import Uid
from bottomless_server.manifest.tree.core.rebuild_decision import named_directly
from bottomless_server.manifest.tree.resolver import load_root, root_object_key

ROOTS = "what a newer root names at the same offsets"
FRAGMENTS = "the epoch that a newer root names at the same offsets"
WHOLE = "roots of a deposed owner, beside a whole one of the next"
UNREAD = "roots of a deposed owner, beside one that cannot be read"


async def after_a_deposed_owner(*firsts_of_it: int, fanout: int = 100) -> ManifestHarness:
    """Fragment 0 is the first owner's and published, like 10 and 20 of the second one. In between the
    first one has put others from 10 on, and their root."""
    harness = await a_harness(0, fanout=fanout)
    await publish(harness, *firsts_of_it, in_vain=True)
    await next_owner(harness)
    await publish(harness, 10, epoch=2)
    await publish(harness, 20, epoch=2)
    return harness


async def lose(harness: ManifestHarness, *first_offsets: int) -> list[FragmentInfo]:
    """Lose published fragments and coordination; returns what had been published."""
    published = await harness.leaves()
    gone = [leaf for leaf in published if leaf.first_offset in first_offsets]
    await harness.drive.delete([fragment_key(STREAM, one.first_offset, one.uid) for one in gone])
    harness.coordination.lose()
    return published


@pytest.mark.parametrize("fanout", [100, 2])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
async def test_an_older_root_of_a_deposed_owner_takes_no_lost_fragments_place(
    count: int, fanout: int
) -> None:
    harness = await after_a_deposed_owner(*range(10, 10 + 10 * count, 10), fanout=fanout)
    published = await lose(harness, 10)

    result = await rebuild(harness)

    assert result["damaged"] == ["orders"]
    assert await harness.leaves() == published
    assert await doomed(harness) == set()


@pytest.mark.parametrize("lost", [(20,), (10, 20)])
async def test_where_the_lost_fragment_is_the_last_a_deposed_owners_is_not_adopted(
    lost: tuple[int, ...],
) -> None:
    harness = await after_a_deposed_owner(10, 20, 30)
    published = await lose(harness, *lost)

    await rebuild(harness)

    assert await harness.leaves() == published[: -len(lost)]


async def test_where_a_group_is_lost_the_root_before_it_is_believed_and_no_older_one() -> None:
    harness = await after_a_deposed_owner(10, fanout=4)
    for first in range(30, 100, 10):
        await publish(harness, first, epoch=2)
    published = await harness.leaves()
    _, root = await load_root(harness.context, await harness.record())
    [group] = named_directly(root, EntryKind.GROUP)
    await harness.drive.delete([group_key(STREAM, 0, group, 1)])
    harness.coordination.lose()

    result = await rebuild(harness)

    assert result["damaged_streams"] == 0
    assert [leaf.epoch for leaf in await harness.leaves()] == [leaf.epoch for leaf in published]


@pytest.mark.parametrize(("epoch", "name"), [(2, "the same"), (3, "a later")])
async def test_a_last_fragment_that_was_lost_is_adopted_where_an_owner_has_put_it_again(
    epoch: int, name: str
) -> None:
    """By the owner that had published it; or by a later one, which proves that it was not."""
    harness = await after_a_deposed_owner(10, 20)
    await harness.put_fragment(Uid("f" * 32), 20, epoch=epoch, timestamp=1_020)
    await lose(harness, 20)

    await rebuild(harness)

    assert await firsts(harness) == [0, 10, 20], name
    assert (await harness.leaves())[-1].epoch == epoch


async def test_what_the_next_owner_had_uploaded_is_adopted_after_a_deposed_owners_lost_publish() -> (
    None
):
    """Nothing that was published is lost: the newest root is that of a publish that lost, and what it
    names is gone. An earlier release deleted it so."""
    harness = await a_harness(0, fanout=100)
    await publish(harness, 10, in_vain=True)
    [given_up] = [intent.uid for intent in (await harness.record()).intents]
    await next_owner(harness)
    for first in (10, 20):
        await harness.put_fragment(Uid(f"{first:032x}"), first, epoch=2, timestamp=1_000 + first)
    await harness.drive.delete([fragment_key(STREAM, 10, given_up)])
    harness.coordination.lose()

    result = await rebuild(harness)

    assert result["damaged_streams"] == 0
    assert [leaf.epoch for leaf in await harness.leaves()] == [1, 2, 2]


async def test_without_the_look_at_what_a_newer_root_names_a_deposed_owners_root_is_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(monkeypatch, ROOTS, lambda *_, **__: True)
    harness = await after_a_deposed_owner(10, 20, 30)
    await lose(harness, 10)

    await rebuild(harness)

    assert [leaf.epoch for leaf in await harness.leaves()] == [1, 1, 1, 1]


async def test_without_the_look_at_the_epoch_a_deposed_owners_fragment_is_adopted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(monkeypatch, FRAGMENTS, lambda *_: True)
    harness = await after_a_deposed_owner(10, 20, 30)
    await lose(harness, 10, 20)

    await rebuild(harness)

    assert [leaf.epoch for leaf in await harness.leaves()] == [1, 1, 1, 1]


async def a_hole_in_the_root_of_a_deposed_owner(
    gone: int,
) -> tuple[ManifestHarness, list[FragmentInfo]]:
    """It is of the version of the root that is published, so its owner was deposed before it could be
    published itself. What was given up then was deleted in part, and the root was put late. Returns what is
    published."""
    harness = await a_harness(0, fanout=100)
    await publish(harness, 10, 20, 30, in_vain=True)
    given_up = {one.first_offset: one.uid for one in (await harness.record()).intents}
    await next_owner(harness)
    await publish(harness, 10, epoch=2)
    published = await harness.leaves()
    assert not await harness.drive.delete([fragment_key(STREAM, gone, given_up[gone])])
    harness.coordination.lose()
    return harness, published


@pytest.mark.parametrize("gone", [10, 20])
async def test_a_hole_in_the_root_of_a_deposed_owner_makes_it_no_newer_than_what_was_published(
    gone: int,
) -> None:
    harness, published = await a_hole_in_the_root_of_a_deposed_owner(gone)

    result = await rebuild(harness)

    assert result["damaged_streams"] == 0
    assert (await harness.leaves())[: len(published)] == published


async def test_without_that_a_hole_makes_it_newer_than_what_was_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(monkeypatch, WHOLE, lambda *_: True)
    harness, published = await a_hole_in_the_root_of_a_deposed_owner(10)

    result = await rebuild(harness)

    assert result["damaged_streams"] == 1
    assert published[-1] not in await harness.leaves()


async def damaged_root_of_the_next_owner() -> tuple[ManifestHarness, list[FragmentInfo]]:
    """What was published before, and a root of the deposed owner that is of the same version as that of the
    next one, which cannot be read."""
    harness = await a_harness(0, fanout=100)
    before = await harness.leaves()
    await publish(harness, 10, 20, in_vain=True)
    await next_owner(harness)
    await publish(harness, 10, epoch=2)
    newest = root_object_key(await harness.record())
    assert not await harness.drive.delete([newest])
    await put(harness, newest, b"damaged")
    harness.coordination.lose()
    return harness, before


async def test_where_a_root_cannot_be_read_none_of_an_owner_deposed_before_is_believed() -> None:
    harness, before = await damaged_root_of_the_next_owner()

    result = await rebuild(harness)

    assert result["damaged"] == ["orders"]
    assert [leaf.epoch for leaf in await harness.leaves()] == [*(one.epoch for one in before), 2]
    assert await doomed(harness) == set()


async def test_without_that_the_root_of_a_deposed_owner_is_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(monkeypatch, UNREAD, lambda *_: False)
    harness, _ = await damaged_root_of_the_next_owner()

    await rebuild(harness)

    assert [leaf.epoch for leaf in await harness.leaves()] == [1, 1, 1]


async def test_where_no_other_root_is_left_that_of_a_deposed_owner_is_believed() -> None:
    harness, _ = await damaged_root_of_the_next_owner()
    roots = [facts.object_key async for facts in harness.drive.list(root_prefix(STREAM, "default"))]
    newest = max(key.version for one in roots if (key := parse_root_key(one)) is not None)
    older = [one for one in roots if (key := parse_root_key(one)) and key.version < newest]
    assert older
    assert not await harness.drive.delete(older)

    result = await rebuild(harness)

    assert result["damaged"] == ["orders"]
    assert [leaf.epoch for leaf in await harness.leaves()] == [1, 1, 1]
