"""Sessions of uploaders: what the last one left is adopted or given up, never both."""

import pytest
from support.manifest import STREAM, Fault, ManifestHarness
from support.object_keys import fragment_key

from bottomless.errors import Fenced, Overloaded, Unavailable
from bottomless.model.names import Uid
from bottomless_server.manifest.mutators.sessions import abandon, begin, intend
from bottomless_server.manifest.tree.committer import Committer
from bottomless_server.manifest.tree.core.events import Why
from bottomless_server.protocol.uploads import INTENT_COUNT_MAX
from bottomless_server.stores.streams import DELETES_KEY


async def left_behind(harness: ManifestHarness, *firsts: int) -> tuple[Committer, list[Uid]]:
    """A session that asked for uids, and whose process then died."""
    committer = await harness.open("old")
    uids = await intend(harness.context, committer, "old", list(firsts))
    return await Committer.open(harness.context, STREAM), list(uids)


async def test_a_sound_fragment_under_an_old_intent_is_adopted() -> None:
    harness = ManifestHarness()
    committer, (first, second) = await left_behind(harness, 0, 10)
    put = [await harness.put_fragment(second, 10), await harness.put_fragment(first, 0)]
    harness.owners.committed[STREAM] = 20

    record = await begin(harness.context, committer, "new")

    assert record.published_next == 20
    assert (record.intents, record.quarantine) == ((), ())
    assert await harness.leaves() == [put[1], put[0]]


async def test_nothing_under_an_old_intent_gives_its_uid_up_and_queues_its_key() -> None:
    harness = ManifestHarness()
    committer, (uid,) = await left_behind(harness, 0)

    record = await begin(harness.context, committer, "new")

    assert record.intents == ()
    assert [intent.uid for intent in record.quarantine] == [uid]
    (due,) = await harness.coordination.due(DELETES_KEY, 10**15, 10)
    assert due.member.decode() == fragment_key(STREAM, 0, uid)
    assert due.due_at == harness.clock.now + harness.context.settings.manifest_upload_deadline_ms


@pytest.mark.parametrize("committed_next", [None, 9])
async def test_what_the_owner_does_not_vouch_for_is_given_up(committed_next: int | None) -> None:
    harness = ManifestHarness()
    committer, (uid,) = await left_behind(harness, 0)
    await harness.put_fragment(uid, 0)
    if committed_next is not None:
        harness.owners.committed[STREAM] = committed_next

    record = await begin(harness.context, committer, "new")

    assert record.published_next == 0
    assert [intent.uid for intent in record.quarantine] == [uid]


@pytest.mark.parametrize("position", [0, 200, -100, -1])
async def test_a_damaged_object_is_given_up(position: int) -> None:
    harness = ManifestHarness()
    committer, (uid,) = await left_behind(harness, 0)
    await harness.put_fragment(uid, 0)
    object_key = fragment_key(STREAM, 0, uid)
    harness.drive.flip(object_key, position)
    harness.owners.committed[STREAM] = 100

    record = await begin(harness.context, committer, "new")

    assert (record.published_next, len(record.quarantine)) == (0, 1)


async def test_a_fragment_of_another_epoch_is_given_up() -> None:
    harness = ManifestHarness()
    committer, (uid,) = await left_behind(harness, 0)
    await harness.put_fragment(uid, 0, epoch=7)
    harness.owners.committed[STREAM] = 100

    assert (await begin(harness.context, committer, "new")).published_next == 0


async def test_a_given_up_uid_can_never_be_registered() -> None:
    harness = ManifestHarness()
    committer, (uid,) = await left_behind(harness, 0)
    await begin(harness.context, committer, "new")
    late = await harness.put_fragment(uid, 0)

    for session in ("old", "new"):
        assert await committer.register(session, [late]) == (uid,)

    assert committer.outcome(uid) in (Why.OLD_SESSION, Why.NO_INTENT)


async def test_what_the_old_session_registered_is_published() -> None:
    harness = ManifestHarness()
    committer = await harness.open("old")
    registered = await harness.register(committer, (0, 10), session="old")

    record = await begin(harness.context, committer, "new")

    assert record.published_next == 10
    assert await harness.leaves() == registered


async def test_beginning_again_changes_nothing() -> None:
    harness = ManifestHarness()
    committer, _ = await left_behind(harness, 0)
    before = await begin(harness.context, committer, "new")

    assert await begin(harness.context, committer, "new") == before


async def test_the_old_session_gets_no_more_uids() -> None:
    harness = ManifestHarness()
    committer = await harness.open("old")
    await begin(harness.context, committer, "new")

    with pytest.raises(Fenced):
        await intend(harness.context, committer, "old", [0])
    with pytest.raises(Fenced):
        await abandon(harness.context, committer, "old", [])


async def test_intents_have_a_bound() -> None:
    harness = ManifestHarness()
    committer = await harness.open()
    await intend(harness.context, committer, "s1", [0] * INTENT_COUNT_MAX)

    with pytest.raises(Overloaded):
        await intend(harness.context, committer, "s1", [0])


async def test_abandoning_gives_up_what_waits_and_leaves_what_is_applied() -> None:
    harness = ManifestHarness()
    committer = await harness.open()
    applied, waiting = await harness.register(committer, (0, 10), (20, 30))
    await committer.flush()

    await abandon(harness.context, committer, "s1", {applied.uid, waiting.uid})

    record = await harness.record()
    assert [intent.uid for intent in record.quarantine] == [waiting.uid]
    assert committer.outcome(applied.uid) is True
    assert committer.outcome(waiting.uid) is Why.NO_INTENT
    assert await harness.leaves() == [applied]


async def test_giving_up_after_a_lost_publish_spares_what_was_published() -> None:
    harness = ManifestHarness()
    committer = await harness.open()
    (fragment,) = await harness.register(committer, (0, 10))
    harness.coordination.faults = [Fault.LOST_APPLIED, Fault.UNAVAILABLE]
    await committer.flush()

    await abandon(harness.context, committer, "s1", {fragment.uid})

    record = await harness.record()
    assert (record.published_next, record.quarantine) == (10, ())
    dues = await harness.coordination.due(DELETES_KEY, 10**15, 10)
    assert not [due for due in dues if b".fragment" in due.member]


async def test_adoption_that_is_not_published_is_not_given_up_either() -> None:
    harness = ManifestHarness()
    committer, (uid,) = await left_behind(harness, 0)
    await harness.put_fragment(uid, 0)
    harness.owners.committed[STREAM] = 10
    harness.coordination.faults = [Fault.NONE, Fault.UNAVAILABLE]

    with pytest.raises(Unavailable):
        await begin(harness.context, committer, "new")

    assert (await begin(harness.context, committer, "new")).published_next == 10
    assert (await harness.record()).quarantine == ()
