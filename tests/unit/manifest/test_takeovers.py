"""Takeovers: the fence, what is adopted after it, the gap, and a crash between any two of them."""

import contextlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.guards import remove
from support.manifest import NODE, STREAM, Crash, Fault, ManifestHarness
from support.object_keys import root_key
from support.rebuilding import put, put_registry, rebuild
from unit.manifest.test_edits import tens

from bottomless.errors import Code, Fenced, StoreError, Unavailable
from bottomless.formats.manifest import encode_node
from bottomless.formats.stream_record import decode_record, encode_record
from bottomless.model.manifest import ENTRY_DTYPE, EntryKind, GapReason
from bottomless.model.names import NodeId, Uid
from bottomless.model.stream import EpochStart, gap_due
from bottomless_server.coordination.base import Changes
from bottomless_server.manifest.mutators.mutator import Mutators
from bottomless_server.manifest.mutators.sessions import begin, intend
from bottomless_server.manifest.mutators.takeover import take_over
from bottomless_server.manifest.recovery.home_operations import check_takeover
from bottomless_server.manifest.tree.committer import Committer
from bottomless_server.manifest.tree.core.takeovers import GoesOn, fence
from bottomless_server.manifest.tree.resolver import load_root
from bottomless_server.node.core import in_sync
from bottomless_server.node.core.ownership import LocalView, claim, reserve
from bottomless_server.protocol.held import HeldThere
from bottomless_server.stores.generation import check_generation
from bottomless_server.stores.node_facts import NodeFacts, encode_facts, facts_key
from bottomless_server.stores.streams import node_key
from bottomless_server.tree.append import append_entries

OTHER_NODE = NodeId("f" * 32)


def owned(**changes: Any) -> dict[str, Any]:
    return {"home": NODE, "reserved_next": 1_000, **changes}


async def put_durable(harness: ManifestHarness, committer: Committer, *firsts: int) -> list[Uid]:
    """Fragments that are in the bucket, and that nobody has registered."""
    uids = await intend(harness.context, committer, "s1", firsts)
    for uid, first in zip(uids, firsts, strict=True):
        await harness.put_fragment(uid, first, timestamp=1_000 + first)
    return list(uids)


async def test_between_fence_and_gap_nobody_claims_and_nobody_reserves() -> None:
    harness = ManifestHarness()
    committer = await tens(harness, 3, **owned())
    record = await harness.record()
    fenced = fence(record, NODE, 1, home_held=False)
    local = LocalView(next_offset=0, empty=True)

    assert gap_due(fenced) == 1_000
    assert decode_record(encode_record(fenced)) == fenced
    for who in (NODE, OTHER_NODE):
        with pytest.raises(Unavailable):
            claim(fenced, who, "unix:///x.sock", local, home_held=False)
    with pytest.raises(Fenced):
        reserve(fenced, 1, 500)
    assert committer.record == record


@pytest.mark.parametrize("left", range(8))
@pytest.mark.parametrize("by", ["the operation", "a session", "a mutator"])
async def test_a_crash_in_a_takeover_is_finished_by_whoever_comes_next(left: int, by: str) -> None:
    harness = ManifestHarness()
    committer = await tens(harness, 3, **owned())
    await put_durable(harness, committer, 30, 40)
    harness.fuse.left = left
    with contextlib.suppress(Crash):
        await take_over(harness.context, committer, NODE, 1)
    harness.fuse.left = None
    begun = (await harness.record()).epoch == 2

    if by == "the operation" or not begun:
        await take_over(harness.context, await Committer.open(harness.context, STREAM), NODE, 1)
    elif by == "a session":
        await begin(harness.context, await Committer.open(harness.context, STREAM), "s2")
    else:
        mutators = Mutators(harness.context)
        await mutators.of(STREAM).refresh()
        await mutators.aclose()

    record = await harness.record()
    assert (record.epoch, record.home, record.dirty) == (2, None, False)
    assert record.epochs == (EpochStart(2, 1_000),)
    assert [(one.first_offset, one.next_offset) for one in await harness.entries()] == [
        *((n, n + 10) for n in range(0, 50, 10)),
        (50, 1_000),
    ]


async def test_a_takeover_keeps_what_is_durable_and_goes_on_without_a_hole() -> None:
    """No check looked at what a takeover gives up: the model's takeovers came after publishes."""
    harness = ManifestHarness()
    committer = await tens(harness, 1, **owned())
    uids = await intend(harness.context, committer, "s1", [10, 20])
    infos = [
        await harness.put_fragment(uid, first, timestamp=1_000 + first)
        for uid, first in zip(uids, (10, 20), strict=True)
    ]
    await committer.register("s1", infos)
    other = await Committer.open(harness.context, STREAM)
    await put_durable(harness, other, 30)
    lost = await put_durable(harness, other, 50)

    await take_over(harness.context, other, NODE, 1)

    assert [(one.first_offset, one.next_offset) for one in await harness.entries()] == [
        (0, 10),
        (10, 20),
        (20, 30),
        (30, 40),
        (40, 1_000),
    ]
    assert [intent.uid for intent in (await harness.record()).intents] == lost


async def test_a_takeover_waits_for_a_node_in_sync_that_goes_on_by_itself() -> None:
    harness = ManifestHarness()
    held = owned(members=(NODE, OTHER_NODE), in_sync=(NODE, OTHER_NODE))
    committer = await tens(harness, 3, **held)
    await harness.coordination.hold(node_key(OTHER_NODE), b"x", 10_000)
    record = await harness.record()
    with pytest.raises(Fenced) as refused:
        await take_over(harness.context, committer, NODE, 1)
    assert refused.value.code is Code.IN_SYNC_LIVE
    with pytest.raises(Fenced) as refused:
        await check_takeover(harness.context, record, NODE)
    assert refused.value.code is Code.IN_SYNC_LIVE
    assert await harness.record() == record

    await harness.coordination.release(node_key(OTHER_NODE), b"x")
    await check_takeover(harness.context, record, NODE)
    await take_over(harness.context, committer, NODE, 1)
    record = await harness.record()
    assert (record.epoch, record.home, record.in_sync) == (2, None, ())


def held_by_two() -> dict[str, Any]:
    """A stream of which only the lost home has everything, and another one some."""
    return owned(members=(NODE, OTHER_NODE), in_sync=(NODE,))


async def say_holds(harness: ManifestHarness, next_offset: int) -> None:
    """Have the other node live, and say where its log ends."""
    await harness.coordination.hold(node_key(OTHER_NODE), b"x", 10_000)
    facts = encode_facts(NodeFacts("unix:///other.sock", "", "0.1.0"))
    harness.coordination.write(Changes({facts_key(OTHER_NODE): facts}))
    harness.owners.held_by["unix:///other.sock"] = HeldThere(False, 1, next_offset)


async def test_a_takeover_by_a_node_has_it_go_on_with_what_it_holds() -> None:
    harness = ManifestHarness()
    committer = await tens(harness, 3, **held_by_two())
    await say_holds(harness, 40)
    named = await check_takeover(harness.context, await harness.record(), NODE, OTHER_NODE)
    assert named == GoesOn(OTHER_NODE, 40, 1)
    for _ in range(2):
        told = await take_over(harness.context, committer, NODE, 1, named)
        assert told == {"epoch": 2, "gap": None, "home": OTHER_NODE}
    record = await harness.record()
    assert (record.epoch, record.dirty, record.in_sync) == (2, True, (OTHER_NODE,))
    local = LocalView(next_offset=40, empty=False, epoch=1)
    claimed = in_sync.claim(record, OTHER_NODE, "unix:///o.sock", local, home_held=False)
    assert claimed.epochs[-1] == EpochStart(3, 40)


async def test_a_takeover_by_a_node_is_refused_if_that_could_not_go_on() -> None:
    harness = ManifestHarness()
    await tens(harness, 3, **held_by_two())
    record = await harness.record()

    async def refusal(node: NodeId) -> str:
        with pytest.raises(Fenced) as refused:
            await check_takeover(harness.context, record, NODE, node)
        assert refused.value.code is Code.NOT_IN_SYNC
        return str(refused.value)

    assert "no member" in await refusal(NodeId("e" * 32))
    assert "does not live" in await refusal(OTHER_NODE)
    await say_holds(harness, 20)
    assert "ends before" in await refusal(OTHER_NODE)
    harness.owners.held_by.clear()
    assert "does not say" in await refusal(OTHER_NODE)


async def refused_late(harness: ManifestHarness) -> bool:
    """Whether the EXEC refuses a node that was asked before more was published than it holds."""
    committer = await tens(harness, 3, **held_by_two())
    try:
        await take_over(harness.context, committer, NODE, 1, GoesOn(OTHER_NODE, 25))
    except Fenced as error:
        return error.code is Code.NOT_IN_SYNC
    return False


async def test_a_takeover_by_a_node_that_lacks_what_is_published_does_not_happen() -> None:
    harness = ManifestHarness()
    assert await refused_late(harness)
    assert (await harness.record()).home == NODE


async def test_without_its_guard_a_stream_is_given_to_a_node_that_cannot_claim_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(
        monkeypatch,
        "a log that reaches what is published, in a takeover by a node",
        lambda *_: True,
    )
    harness = ManifestHarness()
    assert not await refused_late(harness)
    local = LocalView(next_offset=25, empty=False, epoch=1)
    with pytest.raises(Unavailable, match="lost data"):
        in_sync.claim(await harness.record(), OTHER_NODE, "unix:///o", local, home_held=False)


async def named_by_mistake(harness: ManifestHarness) -> bool:
    """Whether a node is refused that was away while another owner wrote what is published."""
    committer = await tens(harness, 3, **held_by_two())
    try:
        await take_over(harness.context, committer, NODE, 1, GoesOn(OTHER_NODE, 40, 0))
    except Fenced as error:
        return error.code is Code.NOT_IN_SYNC
    return False


async def test_a_node_that_never_heard_of_who_wrote_what_is_published_does_not_go_on() -> None:
    harness = ManifestHarness()
    assert await named_by_mistake(harness)
    assert (await harness.record()).home == NODE


async def test_without_that_a_node_goes_on_with_what_nobody_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(
        monkeypatch,
        "the epoch of what is published, in a takeover by a node",
        lambda *_: True,
    )
    harness = ManifestHarness()
    assert not await named_by_mistake(harness)
    assert (await harness.record()).home == OTHER_NODE


async def registered_late(harness: ManifestHarness) -> int:
    """Up to where is published what the lost owner had uploaded, of which the named node holds half."""
    committer = await tens(harness, 3, **held_by_two())
    (uid,) = await intend(harness.context, committer, "s1", [30])
    fragment = await harness.put_fragment(uid, 30, timestamp=1_030)
    await take_over(harness.context, committer, NODE, 1, GoesOn(OTHER_NODE, 35))
    with contextlib.suppress(StoreError):
        await committer.register("s1", [fragment])
        await committer.flush()
    return (await harness.record()).published_next


async def test_after_a_takeover_by_a_node_nothing_is_published_past_its_log() -> None:
    harness = ManifestHarness()
    assert await registered_late(harness) == 30
    log = LocalView(35, empty=False, epoch=1, epochs=(EpochStart(1, 0),))
    claimed = in_sync.claim(await harness.record(), OTHER_NODE, "unix:///o", log, home_held=False)
    assert claimed.epochs == (EpochStart(1, 0), EpochStart(3, 35))


async def test_without_that_the_node_that_goes_on_can_never_claim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(monkeypatch, "where a log ends that goes on after a takeover", lambda record, _: record)
    harness = ManifestHarness()
    assert await registered_late(harness) == 40
    log = LocalView(35, empty=False, epoch=1, epochs=(EpochStart(1, 0),))
    with pytest.raises(Unavailable, match="lost data"):
        in_sync.claim(await harness.record(), OTHER_NODE, "unix:///o", log, home_held=False)


async def test_a_takeover_by_a_node_of_a_clean_stream_leaves_it_to_anybody() -> None:
    harness = ManifestHarness()
    committer = await tens(harness, 3, **{**held_by_two(), "dirty": False})
    await take_over(harness.context, committer, NODE, 1, GoesOn(OTHER_NODE, 40))
    record = await harness.record()
    assert (record.home, record.dirty, record.in_sync) == (None, False, ())


async def test_a_takeover_believes_no_fragment_that_a_later_epoch_wrote_anew() -> None:
    harness = ManifestHarness()
    epochs = (EpochStart(1, 0), EpochStart(2, 10))
    committer = await tens(harness, 1, **owned(epoch=2, epochs=epochs))
    await put_durable(harness, committer, 10)

    await take_over(harness.context, committer, NODE, 2)

    assert [(one.first_offset, one.next_offset) for one in await harness.entries()] == [
        (0, 10),
        (10, 1_000),
    ]


async def a_harness_at_home(*first_offsets: int) -> ManifestHarness:
    """A stream of NODE with real fragments, in stores that belong together."""
    harness = ManifestHarness()
    harness.streams.generation = await check_generation(harness.drive, harness.coordination)
    committer = await harness.open(**owned())
    await put_registry(harness, await harness.record())
    await publish(harness, committer, *first_offsets)
    return harness


async def publish(harness: ManifestHarness, committer: Committer, *first_offsets: int) -> None:
    """Each under a root of its own."""
    await begin(harness.context, committer, "s1")
    for first in first_offsets:
        (uid,) = await intend(harness.context, committer, "s1", [first])
        info = await harness.put_fragment(uid, first, timestamp=1_000 + first)
        assert await committer.register("s1", [info]) == ()
        await committer.flush()


async def offsets_after_a_rebuild(harness: ManifestHarness) -> list[tuple[int, int]]:
    harness.coordination.lose()
    await rebuild(harness)
    return [(one.first_offset, one.next_offset) for one in await harness.entries()]


def tens_to(end: int) -> list[tuple[int, int]]:
    return [(first, first + 10) for first in range(0, end, 10)]


@pytest.mark.parametrize("how", ["refused", "crashed", "slow put"])
async def test_a_takeover_that_did_not_happen_leaves_nothing_that_a_rebuild_believes(
    how: str,
) -> None:
    """Lost attempts were tried of one epoch only, and takeovers ended at their refusal: nobody lost
    coordination after one. The model does it after any step now."""
    harness = await a_harness_at_home(0, 10)
    committer = await Committer.open(harness.context, STREAM)

    async def come_back() -> None:
        await harness.coordination.hold(node_key(NODE), b"x", 10_000)

    match how:
        case "refused":
            harness.coordination.before_transact = come_back
        case "crashed":
            harness.fuse.left = 0
        case _:
            harness.coordination.faults = [Fault.UNAVAILABLE]
            harness.drive.slow_puts = 1
    with pytest.raises((Fenced, Crash, Unavailable)):
        await take_over(harness.context, committer, NODE, 1)
    harness.fuse.left, harness.drive.slow_puts = None, 0
    await publish(harness, await Committer.open(harness.context, STREAM), 20, 30, 40, 50)
    await harness.drive.land()

    assert await offsets_after_a_rebuild(harness) == tens_to(60)

    local = LocalView(next_offset=65, empty=False, epoch=1, version=6, published_next=60)
    assert (
        claim(await harness.record(), NODE, "unix:///x.sock", local, home_held=False).home == NODE
    )


async def put_gap_root(
    harness: ManifestHarness, *, epoch_of_gap: int, epoch: int, gap_next: int
) -> None:
    """A root that goes on from the committed one with a gap, and that no record names."""
    record, root = await load_root(harness.context, await harness.record())
    gap = np.zeros(1, dtype=ENTRY_DTYPE)
    gap["first_offset"], gap["next_offset"] = root.next_offset, gap_next
    gap["first_timestamp"] = gap["last_timestamp"] = root.last_timestamp
    gap["first_epoch"] = gap["last_epoch"] = epoch_of_gap
    gap["kind"], gap["reason"] = EntryKind.GAP, GapReason.TAKEOVER
    uid = Uid("f" * 32)
    node = replace(append_entries(root, gap), uid=uid, epoch=epoch, version=record.version + 1)
    key = root_key(STREAM, node.generation, node.epoch, node.version, uid)
    await put(harness, key, encode_node(node))


@pytest.mark.parametrize("later", [1, 2, 4])
async def test_a_stray_root_of_a_takeover_of_the_release_before_does_not_win(later: int) -> None:
    harness = await a_harness_at_home(0, 10)
    await put_gap_root(harness, epoch_of_gap=1, epoch=2, gap_next=1_000)
    committer = await Committer.open(harness.context, STREAM)
    await publish(harness, committer, *range(20, 20 + 10 * later, 10))

    assert await offsets_after_a_rebuild(harness) == tens_to(20 + 10 * later)


async def test_after_a_fence_a_rebuild_keeps_both_the_gap_and_what_another_process_published() -> (
    None
):
    harness = await a_harness_at_home(0, 10)
    before = await Committer.open(harness.context, STREAM)
    (uid,) = await intend(harness.context, before, "s1", [20])
    await harness.streams.update(STREAM, lambda record: fence(record, NODE, 1, home_held=False))
    await put_gap_root(harness, epoch_of_gap=2, epoch=2, gap_next=1_000)
    committer = await Committer.open(harness.context, STREAM)
    await committer.register(None, [await harness.put_fragment(uid, 20, timestamp=2_000)])
    await committer.flush()

    assert await offsets_after_a_rebuild(harness) == [*tens_to(30), (30, 1_000)]
