"""The deleter takes what is due and not reachable, and nothing else."""

from support.manifest import STREAM, World
from support.object_keys import fragment_key

from bottomless.coordination.base import Changes
from bottomless.stores.streams import DELETES_KEY, delete_later
from bottomless_server.manifest.deleter import Deleter
from bottomless_server.manifest.resolver import root_object_key
from bottomless_server.manifest.sessions import abandon, intend

HOUR = 3_600_000


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


async def test_a_key_of_no_known_form_is_dropped_and_nothing_deleted() -> None:
    world = World()
    world.coordination.write(Changes(queued=[delete_later("default/x/stream.json", 0)]))

    assert await Deleter(world.context).make_pass() == 1
    assert world.drive.calls == []
