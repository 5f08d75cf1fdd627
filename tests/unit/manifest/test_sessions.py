"""Sessions of uploaders: what the last one left is adopted or given up, never both."""

import pytest
from support.manifest import STREAM, Fault, World
from support.object_keys import fragment_key

from bottomless.errors import Fenced, Overloaded, Unavailable
from bottomless.model.names import Uid
from bottomless_server.manifest.mutators.sessions import abandon, begin, intend
from bottomless_server.manifest.tree.committer import Committer
from bottomless_server.manifest.tree.core.events import Why
from bottomless_server.protocol.uploads import INTENT_COUNT_MAX
from bottomless_server.stores.streams import DELETES_KEY


async def left_behind(world: World, *firsts: int) -> tuple[Committer, list[Uid]]:
    """A session that asked for uids, and whose process then died."""
    committer = await world.open("old")
    uids = await intend(world.context, committer, "old", list(firsts))
    return await Committer.open(world.context, STREAM), list(uids)


async def test_a_sound_fragment_under_an_old_intent_is_adopted() -> None:
    world = World()
    committer, (first, second) = await left_behind(world, 0, 10)
    put = [await world.put_fragment(second, 10), await world.put_fragment(first, 0)]
    world.owners.committed[STREAM] = 20

    record = await begin(world.context, committer, "new")

    assert record.published_next == 20
    assert (record.intents, record.quarantine) == ((), ())
    assert await world.leaves() == [put[1], put[0]]


async def test_nothing_under_an_old_intent_gives_its_uid_up_and_queues_its_key() -> None:
    world = World()
    committer, (uid,) = await left_behind(world, 0)

    record = await begin(world.context, committer, "new")

    assert record.intents == ()
    assert [intent.uid for intent in record.quarantine] == [uid]
    (due,) = await world.coordination.due(DELETES_KEY, 10**15, 10)
    assert due.member.decode() == fragment_key(STREAM, 0, uid)
    assert due.due_at == world.clock.now + world.context.settings.manifest_upload_deadline_ms


@pytest.mark.parametrize("committed_next", [None, 9])
async def test_what_the_owner_does_not_vouch_for_is_given_up(committed_next: int | None) -> None:
    world = World()
    committer, (uid,) = await left_behind(world, 0)
    await world.put_fragment(uid, 0)
    if committed_next is not None:
        world.owners.committed[STREAM] = committed_next

    record = await begin(world.context, committer, "new")

    assert record.published_next == 0
    assert [intent.uid for intent in record.quarantine] == [uid]


@pytest.mark.parametrize("position", [0, 200, -100, -1])
async def test_a_damaged_object_is_given_up(position: int) -> None:
    world = World()
    committer, (uid,) = await left_behind(world, 0)
    await world.put_fragment(uid, 0)
    object_key = fragment_key(STREAM, 0, uid)
    data, modified = world.drive._objects[object_key]
    damaged = bytearray(data)
    damaged[position] ^= 1
    world.drive._objects[object_key] = (bytes(damaged), modified)
    world.owners.committed[STREAM] = 100

    record = await begin(world.context, committer, "new")

    assert (record.published_next, len(record.quarantine)) == (0, 1)


async def test_a_fragment_of_another_epoch_is_given_up() -> None:
    world = World()
    committer, (uid,) = await left_behind(world, 0)
    await world.put_fragment(uid, 0, epoch=7)
    world.owners.committed[STREAM] = 100

    assert (await begin(world.context, committer, "new")).published_next == 0


async def test_a_given_up_uid_can_never_be_registered() -> None:
    world = World()
    committer, (uid,) = await left_behind(world, 0)
    await begin(world.context, committer, "new")
    late = await world.put_fragment(uid, 0)

    for session in ("old", "new"):
        assert await committer.register(session, [late]) == (uid,)

    assert committer.outcome(uid) in (Why.OLD_SESSION, Why.NO_INTENT)


async def test_what_the_old_session_registered_is_published() -> None:
    world = World()
    committer = await world.open("old")
    registered = await world.register(committer, (0, 10), session="old")

    record = await begin(world.context, committer, "new")

    assert record.published_next == 10
    assert await world.leaves() == registered


async def test_beginning_again_changes_nothing() -> None:
    world = World()
    committer, _ = await left_behind(world, 0)
    before = await begin(world.context, committer, "new")

    assert await begin(world.context, committer, "new") == before


async def test_the_old_session_gets_no_more_uids() -> None:
    world = World()
    committer = await world.open("old")
    await begin(world.context, committer, "new")

    with pytest.raises(Fenced):
        await intend(world.context, committer, "old", [0])
    with pytest.raises(Fenced):
        await abandon(world.context, committer, "old", [])


async def test_intents_have_a_bound() -> None:
    world = World()
    committer = await world.open()
    await intend(world.context, committer, "s1", [0] * INTENT_COUNT_MAX)

    with pytest.raises(Overloaded):
        await intend(world.context, committer, "s1", [0])


async def test_abandoning_gives_up_what_waits_and_leaves_what_is_applied() -> None:
    world = World()
    committer = await world.open()
    applied, waiting = await world.register(committer, (0, 10), (20, 30))
    await committer.flush()

    await abandon(world.context, committer, "s1", {applied.uid, waiting.uid})

    record = await world.record()
    assert [intent.uid for intent in record.quarantine] == [waiting.uid]
    assert committer.outcome(applied.uid) is True
    assert committer.outcome(waiting.uid) is Why.NO_INTENT
    assert await world.leaves() == [applied]


async def test_giving_up_after_a_lost_publish_spares_what_was_published() -> None:
    world = World()
    committer = await world.open()
    (fragment,) = await world.register(committer, (0, 10))
    world.coordination.faults = [Fault.LOST_APPLIED, Fault.UNAVAILABLE]
    await committer.flush()

    await abandon(world.context, committer, "s1", {fragment.uid})

    record = await world.record()
    assert (record.published_next, record.quarantine) == (10, ())
    assert await world.coordination.due(DELETES_KEY, 10**15, 10) == []


async def test_adoption_that_is_not_published_is_not_given_up_either() -> None:
    world = World()
    committer, (uid,) = await left_behind(world, 0)
    await world.put_fragment(uid, 0)
    world.owners.committed[STREAM] = 10
    world.coordination.faults = [Fault.NONE, Fault.UNAVAILABLE]

    with pytest.raises(Unavailable):
        await begin(world.context, committer, "new")

    assert (await begin(world.context, committer, "new")).published_next == 10
    assert (await world.record()).quarantine == ()
