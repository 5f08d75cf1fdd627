"""The deleter takes what is due and not reachable, and nothing else."""

from support.manifest import STREAM, World, a_record, damage_a_neighbour
from support.object_keys import fragment_key

from bottomless.formats import keys as keys_of_tenants
from bottomless.formats.checks import crc32c
from bottomless.model.names import StreamId, StreamName, Uid
from bottomless_server.coordination.base import Changes
from bottomless_server.manifest.common.core.delete_page import PUT_OFF_MS_MAX
from bottomless_server.manifest.mutators.sessions import abandon, intend
from bottomless_server.manifest.removal.deleter import Deleter
from bottomless_server.manifest.tree.resolver import root_object_key
from bottomless_server.stores.streams import DELETES_KEY, delete_later

HOUR = 3_600_000
FIRST_MS = 30_000
"""After so long what failed is tried a second time: the interval of passes."""
HEALTHY = StreamId("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c99")


async def keys(world: World) -> list[str]:
    return [facts.object_key async for facts in world.drive.list()]


async def test_a_replaced_root_goes_after_its_grace_and_not_before() -> None:
    world = World()
    committer = await world.open()
    await world.register(committer, (0, 10))
    await committer.flush()
    old = root_object_key(committer.record)
    await world.register(committer, (10, 20))
    await committer.flush()

    await Deleter(world.context).make_pass()
    assert old in await keys(world)
    world.clock.now += 15 * 60_000
    assert await Deleter(world.context).make_pass() == 1

    assert await keys(world) == [root_object_key(committer.record)]
    assert await world.coordination.due(DELETES_KEY, 10**15, 10) == []


async def test_a_given_up_fragment_goes_and_leaves_the_quarantine() -> None:
    world = World()
    committer = await world.open()
    (uid,) = await intend(world.context, committer, "s1", [0])
    await world.put_fragment(uid, 0)
    await abandon(world.context, committer, "s1", [uid])
    world.clock.now += HOUR

    await Deleter(world.context).make_pass()

    assert await keys(world) == []
    assert (await world.record()).quarantine == ()


async def test_a_reachable_object_is_never_deleted() -> None:
    world = World()
    committer = await world.open()
    uids = await intend(world.context, committer, "s1", [n * 10 for n in range(7)])
    fragments = [await world.put_fragment(uid, n * 10) for n, uid in enumerate(uids)]
    await committer.register("s1", fragments[:6])
    await committer.flush()
    live = await keys(world)
    world.coordination.write(Changes(queued=[delete_later(key, 0) for key in live]))
    deleter = Deleter(world.context)

    await deleter.make_pass()

    assert await keys(world) == live
    assert deleter.refused_count == len(live)
    assert fragment_key(STREAM, 60, uids[6]) in live


async def test_what_could_not_be_deleted_stays_in_the_queue() -> None:
    world = World()
    committer = await world.open()
    (uid,) = await intend(world.context, committer, "s1", [0])
    await abandon(world.context, committer, "s1", [uid])
    world.clock.now += HOUR

    world.drive.failing = True

    assert await Deleter(world.context).make_pass() == 0
    assert len((await world.record()).quarantine) == 1


async def test_a_key_of_no_known_form_waits_for_a_release_that_knows_it() -> None:
    world = World()
    world.coordination.write(Changes(queued=[delete_later("default/x/stream.json", 0)]))
    deleter = Deleter(world.context)

    assert await deleter.make_pass() == 0
    assert world.drive.calls == []
    assert world.context.counts.failing_deletes == 1
    assert await due_in(world, "default/x/stream.json") == FIRST_MS


async def due_in(world: World, object_key: str) -> int | None:
    """How long a member still waits."""
    (due_at,) = await world.coordination.due_at(DELETES_KEY, [object_key.encode()])
    return None if due_at is None else due_at - world.clock.now


async def an_orphan_of(world: World, stream_id: StreamId) -> str:
    """An object of another tenant's healthy stream that is due now, after all that was due before."""
    await world.streams.create(
        a_record(stream_id=stream_id, name=StreamName("healthy"), tenant="other")
    )
    key = keys_of_tenants.fragment_key(stream_id, 0, Uid("a" * 32), "other")
    await world.drive.put(key, [b"x"], crc32c(b"x"))
    world.coordination.write(Changes(queued=[delete_later(key, world.clock.now)]))
    return key


async def test_a_stream_that_cannot_be_read_stops_no_other_ones_deletions() -> None:
    """Each test of the deleter had one stream, and the model one that was sound: members that
    failed kept their place, so that 256 of them were every page for ever. The model has a damaged
    neighbour with 300 now."""
    world = World()
    await damage_a_neighbour(world, 3_000)
    key = await an_orphan_of(world, HEALTHY)
    deleter = Deleter(world.context)

    for _ in range(3):
        await deleter.make_pass()

    assert not world.drive.has(key)
    assert deleter.deleted_count == 1
    assert world.context.counts.failing_deletes == 3_000
    # They are not tried again before their time, and all of them cost one look at the root.
    assert await world.coordination.due(DELETES_KEY, world.clock.now, 1) == []


async def test_objects_that_the_store_keeps_stop_nothing_and_go_when_it_lets_them() -> None:
    world = World()
    committer = await world.open()
    uids = await intend(world.context, committer, "s1", range(200))
    await abandon(world.context, committer, "s1", uids)
    for n, uid in enumerate(uids):
        world.drive.stubborn.add(fragment_key(STREAM, n, uid))
    world.clock.now += HOUR
    key = await an_orphan_of(world, HEALTHY)
    deleter = Deleter(world.context, page_count=16)

    for _ in range(20):
        await deleter.make_pass()
    assert not world.drive.has(key)
    assert len((await world.record()).quarantine) == 200

    world.drive.stubborn.clear()
    world.clock.now += FIRST_MS
    for _ in range(20):
        await deleter.make_pass()
    assert (await world.record()).quarantine == ()
    assert world.context.counts.failing_deletes == 0


async def test_what_fails_is_tried_ever_more_rarely_and_over_restarts() -> None:
    world = World()
    world.coordination.write(Changes(queued=[delete_later("default/x/stream.json", 0)]))
    waits = []
    for _ in range(12):
        await Deleter(world.context).make_pass()
        waits.append(await due_in(world, "default/x/stream.json") or 0)
        world.clock.now += waits[-1]

    assert waits[:4] == [FIRST_MS, FIRST_MS, 2 * FIRST_MS, 4 * FIRST_MS]
    assert waits[-1] == PUT_OFF_MS_MAX
    assert world.context.counts.failing_delete_ms == sum(waits[:-1])


async def test_what_another_process_has_deleted_does_not_fail_any_more() -> None:
    world = World()
    world.coordination.write(Changes(queued=[delete_later("default/x/stream.json", 0)]))
    deleter = Deleter(world.context)
    await deleter.make_pass()
    await world.coordination.settle(await world.coordination.due(DELETES_KEY, 2**52, 1))

    await deleter.make_pass()

    assert world.context.counts.failing_deletes == 0


async def test_a_group_that_is_damaged_keeps_only_what_cannot_be_judged_without_it() -> None:
    world = World(manifest_fanout=2)
    committer = await world.open()
    await world.register(committer, *((n * 10, n * 10 + 10) for n in range(6)))
    await committer.flush()
    (group,) = [key for key in await keys(world) if key.endswith(".g1")][:1]
    await world.drive.delete([group])
    stray, beyond = (fragment_key(STREAM, first, Uid("b" * 32)) for first in (0, 500))
    world.coordination.write(Changes(queued=[delete_later(key, 0) for key in (stray, beyond)]))

    assert await Deleter(world.context).make_pass() == 1

    assert await due_in(world, beyond) is None
    assert await due_in(world, stray) == FIRST_MS
