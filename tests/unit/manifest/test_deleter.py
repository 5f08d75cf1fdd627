"""The deleter takes what is due and not reachable, and nothing else."""

from collections.abc import Awaitable, Callable

import pytest
from support.drives import register
from support.guards import remove
from support.manifest import STREAM, ManifestHarness, a_record, damage_a_neighbour
from support.moving import COLD, HOT, Moving, a_moving_stream
from support.object_keys import fragment_key

from bottomless.formats import keys as keys_of_tenants
from bottomless.formats.checks import crc32c
from bottomless.model.names import StreamId, StreamName, Uid
from bottomless_server.coordination.base import Changes
from bottomless_server.manifest.common.core.delete_page import PUT_OFF_MS_MAX
from bottomless_server.manifest.mutators.retention import trim
from bottomless_server.manifest.mutators.sessions import abandon, intend
from bottomless_server.manifest.removal.deleter import Deleter
from bottomless_server.manifest.tree.resolver import root_object_key
from bottomless_server.stores.streams import DELETES_KEY, delete_later, deletes_key

HOUR = 3_600_000
FIRST_MS = 30_000
"""After so long what failed is tried a second time: the interval of passes."""
HEALTHY = StreamId("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c99")


async def keys(harness: ManifestHarness) -> list[str]:
    return [facts.object_key async for facts in harness.drive.list()]


async def test_a_replaced_root_goes_after_its_grace_and_not_before() -> None:
    harness = ManifestHarness()
    committer = await harness.open()
    await harness.register(committer, (0, 10))
    await committer.flush()
    old = root_object_key(committer.record)
    await harness.register(committer, (10, 20))
    await committer.flush()

    await Deleter(harness.context).make_pass()
    assert old in await keys(harness)
    harness.clock.now += 15 * 60_000
    # And the first root of all, which had nothing in it.
    assert await Deleter(harness.context).make_pass() == 2

    assert await keys(harness) == [root_object_key(committer.record)]
    assert await harness.coordination.due(DELETES_KEY, 10**15, 10) == []


async def test_a_given_up_fragment_goes_and_leaves_the_quarantine() -> None:
    harness = ManifestHarness()
    committer = await harness.open()
    (uid,) = await intend(harness.context, committer, "s1", [0])
    await harness.put_fragment(uid, 0)
    await abandon(harness.context, committer, "s1", [uid])
    harness.clock.now += HOUR

    await Deleter(harness.context).make_pass()

    assert await keys(harness) == [root_object_key(committer.record)]
    assert (await harness.record()).quarantine == ()


async def test_a_reachable_object_is_never_deleted() -> None:
    harness = ManifestHarness()
    committer = await harness.open()
    uids = await intend(harness.context, committer, "s1", [n * 10 for n in range(7)])
    fragments = [await harness.put_fragment(uid, n * 10) for n, uid in enumerate(uids)]
    await committer.register("s1", fragments[:6])
    await committer.flush()
    replaced = [key for key in await keys(harness) if key.endswith(f"{1:032x}.manifest")]
    await harness.drive.delete(replaced)
    live = await keys(harness)
    harness.coordination.write(Changes(queued=[delete_later(key, 0) for key in live]))
    deleter = Deleter(harness.context)

    await deleter.make_pass()

    assert await keys(harness) == live
    assert deleter.refused_count == len(live)
    assert fragment_key(STREAM, 60, uids[6]) in live


async def test_what_could_not_be_deleted_stays_in_the_queue() -> None:
    harness = ManifestHarness()
    committer = await harness.open()
    (uid,) = await intend(harness.context, committer, "s1", [0])
    await abandon(harness.context, committer, "s1", [uid])
    harness.clock.now += HOUR

    harness.drive.failing = True

    assert await Deleter(harness.context).make_pass() == 0
    assert len((await harness.record()).quarantine) == 1


async def test_a_key_of_no_known_form_waits_for_a_release_that_knows_it() -> None:
    harness = ManifestHarness()
    harness.coordination.write(Changes(queued=[delete_later("default/x/stream.json", 0)]))
    deleter = Deleter(harness.context)

    assert await deleter.make_pass() == 0
    assert harness.drive.calls == []
    assert harness.context.counts.failing_deletes == 1
    assert await due_in(harness, "default/x/stream.json") == FIRST_MS


async def due_in(harness: ManifestHarness, object_key: str) -> int | None:
    """How long a member still waits."""
    (due_at,) = await harness.coordination.due_at(DELETES_KEY, [object_key.encode()])
    return None if due_at is None else due_at - harness.clock.now


async def an_orphan_of(harness: ManifestHarness, stream_id: StreamId) -> str:
    """An object of another tenant's healthy stream that is due now, after all that was due before."""
    await harness.streams.create(
        a_record(stream_id=stream_id, name=StreamName(f"of-{stream_id}"), tenant="other")
    )
    key = keys_of_tenants.fragment_key(stream_id, 0, Uid("a" * 32), "other")
    await harness.drive.put(key, [b"x"], crc32c(b"x"))
    harness.coordination.write(Changes(queued=[delete_later(key, harness.clock.now)]))
    return key


async def test_a_stream_that_cannot_be_read_stops_no_other_ones_deletions() -> None:
    """Each test of the deleter had one stream, and the model one that was sound: members that
    failed kept their place, so that 256 of them were every page for ever. The model has a damaged
    neighbour with 300 now."""
    harness = ManifestHarness()
    await damage_a_neighbour(harness, 3_000)
    key = await an_orphan_of(harness, HEALTHY)
    deleter = Deleter(harness.context)

    for _ in range(3):
        await deleter.make_pass()

    assert not harness.drive.has(key)
    assert deleter.deleted_count == 1
    assert harness.context.counts.failing_deletes == 3_000
    # They are not tried again before their time, and all of them cost one look at the root.
    assert await harness.coordination.due(DELETES_KEY, harness.clock.now, 1) == []


async def test_objects_that_the_store_keeps_stop_nothing_and_go_when_it_lets_them() -> None:
    harness = ManifestHarness()
    committer = await harness.open()
    uids = await intend(harness.context, committer, "s1", range(200))
    await abandon(harness.context, committer, "s1", uids)
    for n, uid in enumerate(uids):
        harness.drive.stubborn.add(fragment_key(STREAM, n, uid))
    harness.clock.now += HOUR
    key = await an_orphan_of(harness, HEALTHY)
    deleter = Deleter(harness.context, page_count=16)

    for _ in range(20):
        await deleter.make_pass()
    assert not harness.drive.has(key)
    assert len((await harness.record()).quarantine) == 200

    harness.drive.stubborn.clear()
    harness.clock.now += FIRST_MS
    for _ in range(20):
        await deleter.make_pass()
    assert (await harness.record()).quarantine == ()
    assert harness.context.counts.failing_deletes == 0


async def test_what_fails_is_tried_ever_more_rarely_and_over_restarts() -> None:
    harness = ManifestHarness()
    harness.coordination.write(Changes(queued=[delete_later("default/x/stream.json", 0)]))
    waits = []
    for _ in range(12):
        await Deleter(harness.context).make_pass()
        waits.append(await due_in(harness, "default/x/stream.json") or 0)
        harness.clock.now += waits[-1]

    assert waits[:4] == [FIRST_MS, FIRST_MS, 2 * FIRST_MS, 4 * FIRST_MS]
    assert waits[-1] == PUT_OFF_MS_MAX
    assert harness.context.counts.failing_delete_ms == sum(waits[:-1])


async def test_what_another_process_has_deleted_does_not_fail_any_more() -> None:
    harness = ManifestHarness()
    harness.coordination.write(Changes(queued=[delete_later("default/x/stream.json", 0)]))
    deleter = Deleter(harness.context)
    await deleter.make_pass()
    await harness.coordination.settle(await harness.coordination.due(DELETES_KEY, 2**52, 1))

    await deleter.make_pass()

    assert harness.context.counts.failing_deletes == 0


async def test_a_group_that_is_damaged_keeps_only_what_cannot_be_judged_without_it() -> None:
    harness = ManifestHarness(manifest_fanout=2)
    committer = await harness.open()
    await harness.register(committer, *((n * 10, n * 10 + 10) for n in range(6)))
    await committer.flush()
    (group,) = [key for key in await keys(harness) if key.endswith(".g1")][:1]
    await harness.drive.delete([group])
    stray, beyond = (fragment_key(STREAM, first, Uid("b" * 32)) for first in (0, 500))
    harness.coordination.write(Changes(queued=[delete_later(key, 0) for key in (stray, beyond)]))

    assert await Deleter(harness.context).make_pass() == 1

    assert await due_in(harness, beyond) is None
    assert await due_in(harness, stray) == FIRST_MS


async def by_a_clock_ahead(moving: Moving) -> None:
    """Trim the front of the first group while a clock is ahead, so that it is to go after all that follows."""
    harness = moving.harness
    harness.clock.skew_ms = HOUR
    await trim(harness.context, moving.committer, 10, allow_empty=False)
    harness.clock.skew_ms = 0


async def kept_by_the_store(moving: Moving) -> None:
    """Trim the front of the first group, which the store does not let go for now."""
    harness = moving.harness
    harness.drive.stubborn.update((await moving.fragments(HOT))[:1])
    await trim(harness.context, moving.committer, 10, allow_empty=False)


Way = Callable[[Moving], Awaitable[None]]
WAYS: list[tuple[int, Way, int]] = [
    (HOT, by_a_clock_ahead, 20),
    (COLD, by_a_clock_ahead, 20),
    (HOT, kept_by_the_store, 20),
    (HOT, by_a_clock_ahead, 40),
    (COLD, by_a_clock_ahead, 40),
]
"""The last number is where a group ends that was cut in two parts: one of fragments, or one of two such groups."""


async def fragments_after_the_rest(number: int, cut_front: Way, end: int) -> list[int]:
    """Where the fragments begin that are left of a stream on a drive when nothing waits any more. A group was
    cut in two parts, and the second of them went first."""
    moving = await a_moving_stream(6)
    await register(moving.harness.drive, COLD)
    if number == COLD:
        await moving.move(0, 40)
        await moving.after_the_grace()
    await cut_front(moving)
    await trim(moving.harness.context, moving.committer, end, allow_empty=False)
    moving.harness.clock.now += moving.harness.context.settings.manifest_delete_grace_ms
    before = len(await moving.fragments(number))
    await moving.delete()
    assert len(await moving.fragments(number)) < before, "the second part is due"
    moving.harness.drive.stubborn.clear()
    for _ in range(3):
        await moving.after_the_grace()
    assert await moving.harness.coordination.due(deletes_key(number), 2**52, 1) == []
    return [int(key.split("/")[-1].split(".")[0]) for key in await moving.fragments(number)]


@pytest.mark.parametrize(("number", "cut_front", "end"), WAYS)
async def test_a_group_takes_all_below_it_along_though_its_front_is_due_after_its_end(
    number: int, cut_front: Way, end: int
) -> None:
    """Its object went with its end, and then nothing told what was below its front: seed 133 of three replicas
    and two tiers."""
    left = await fragments_after_the_rest(number, cut_front, end)
    assert left == [*range(end, 40 if number == COLD else 60, 10)]


@pytest.mark.parametrize(("number", "cut_front", "end"), WAYS)
async def test_without_the_front_of_a_group_a_fragment_of_it_stays(
    number: int, cut_front: Way, end: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch, "the front of a group with its end", lambda _, range_: range_)
    assert 0 in await fragments_after_the_rest(number, cut_front, end)
