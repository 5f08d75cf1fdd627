"""API keys in coordination and bucket: what is confirmed, what a crash leaves, what is forgotten."""

import asyncio
from dataclasses import replace

import pytest
from support.api_keys import DAY_MS, HOUR_MS, a_harness, create, is_good, nobody_checks
from support.manifest import Crash, Fault, ManifestHarness

from bottomless.errors import Code, Denied, Exists, NotFound, Outcome, Overloaded, Unavailable
from bottomless.formats.api_key import KeyObject, decode_key_object, encode_key_object
from bottomless.formats.checks import crc32c
from bottomless.formats.keys import API_KEYS_PREFIX, api_key_key, parse_api_key_key
from bottomless.model.api_key import ApiKey, KeyId, KeyState
from bottomless_server.manifest.keys.key_upkeep import KeyUpkeep
from bottomless_server.manifest.keys.keys import CREATION_MS, Keys, _Overtaken
from bottomless_server.stores.keys import TIDY_KEY, UNSAVED_KEY


async def objects_of(harness: ManifestHarness) -> list[tuple[int, int]]:
    """Generation and number of every object of a key."""
    places = [
        parse_api_key_key(one.object_key) async for one in harness.drive.list(API_KEYS_PREFIX)
    ]
    return [(place.generation, place.version) for place in places if place is not None]


async def newest_object(harness: ManifestHarness) -> ApiKey:
    names = [one.object_key async for one in harness.drive.list(API_KEYS_PREFIX)]
    return decode_key_object(await harness.drive.get(names[-1])).key


async def look_after(harness: ManifestHarness) -> None:
    await KeyUpkeep(harness.context, Keys(harness.context)).make_pass()


async def due_count(harness: ManifestHarness, queue: str) -> int:
    return len(await harness.coordination.due(queue, 2**52, 100))


async def test_a_new_key_is_good_and_in_the_bucket_when_it_is_shown() -> None:
    harness = await a_harness()
    keys = Keys(harness.context)

    issued = await create(keys)

    assert await is_good(harness, issued.credential)
    assert await newest_object(harness) == issued.key
    assert [one.key for one in await keys.records.page("acme", "", 10)] == [issued.key]
    assert issued.credential.split("_")[2] not in repr(issued)


async def test_a_new_key_that_did_not_reach_the_bucket_is_none() -> None:
    harness = await a_harness(manifest_put_seconds=0.1)
    keys = Keys(harness.context)
    harness.drive.failing = True
    harness.context.settings.__dict__["manifest_put_seconds"] = 0.01

    with pytest.raises(Unavailable):
        await create(keys)

    assert await keys.records.page("acme", "", 10) == []
    [key_id] = await keys.records.ids()
    with pytest.raises(NotFound) as caught:
        await keys.records.find(key_id)
    assert caught.value.code is Code.KEY_NOT_FOUND
    with pytest.raises(NotFound):
        await keys.revoke(key_id, nobody_checks)


@pytest.mark.parametrize("fault", [Fault.LOST_APPLIED, Fault.LOST_LATE])
@pytest.mark.parametrize("turn", range(3))
async def test_a_lost_reply_of_coordination_changes_nothing_of_what_is_done(
    fault: Fault, turn: int
) -> None:
    for name in ("create", "rotate", "revoke"):
        harness = await a_harness()
        keys = Keys(harness.context)
        issued = await create(keys)
        harness.coordination.faults = [Fault.NONE] * turn + [fault]

        if name == "create":
            issued = await create(keys)
        elif name == "rotate":
            issued = await keys.rotate(issued.key.key_id, 0, nobody_checks)
        else:
            await keys.revoke(issued.key.key_id, nobody_checks)
        harness.coordination.faults = []

        assert await is_good(harness, issued.credential) == (name != "revoke")
        # What arrives late finds that it is too late.
        harness.coordination.arrive()
        assert await is_good(harness, issued.credential) == (name != "revoke")


async def test_a_tenant_has_so_many_keys_and_no_more() -> None:
    harness = await a_harness(manifest_tenant_key_count_max=2)
    keys = Keys(harness.context)
    first = await create(keys)
    await create(keys)

    await keys.revoke(first.key.key_id, nobody_checks)
    with pytest.raises(Overloaded) as caught:
        await create(keys)
    assert (caught.value.code, caught.value.facts) == (Code.QUOTA_EXCEEDED, {"limit": 2})

    await create(keys, tenant="globex")
    harness.clock.now += 8 * DAY_MS
    await look_after(harness)
    await create(keys)


async def test_a_rotation_lets_the_secret_before_live_for_the_overlap() -> None:
    harness = await a_harness()
    keys = Keys(harness.context)
    before = await create(keys)

    after = await keys.rotate(before.key.key_id, HOUR_MS, nobody_checks)

    assert after.key.key_id == before.key.key_id
    assert await is_good(harness, before.credential)
    assert await is_good(harness, after.credential)
    harness.clock.now += HOUR_MS
    assert not await is_good(harness, before.credential)
    assert await is_good(harness, after.credential)
    assert await newest_object(harness) == after.key


async def test_a_rotation_that_did_not_reach_the_bucket_changes_nothing() -> None:
    harness = await a_harness(manifest_put_seconds=0.1)
    keys = Keys(harness.context)
    issued = await create(keys)
    harness.drive.failing = True
    harness.context.settings.__dict__["manifest_put_seconds"] = 0.01

    with pytest.raises(Unavailable):
        await keys.rotate(issued.key.key_id, 0, nobody_checks)
    harness.drive.failing = False

    assert await is_good(harness, issued.credential)
    assert (await keys.records.find(issued.key.key_id)).key == issued.key
    again = await keys.rotate(issued.key.key_id, 0, nobody_checks)
    assert await is_good(harness, again.credential)


async def test_of_two_rotations_at_once_both_secrets_are_good() -> None:
    harness = await a_harness()
    keys = Keys(harness.context)
    issued = await create(keys)
    key_id = issued.key.key_id

    both = await asyncio.gather(
        *(Keys(harness.context).rotate(key_id, HOUR_MS, nobody_checks) for _ in range(2))
    )

    for one in (issued, *both):
        assert await is_good(harness, one.credential)
    assert await newest_object(harness) == (await keys.records.find(key_id)).key


async def test_a_key_that_ended_gets_no_new_secret() -> None:
    harness = await a_harness()
    keys = Keys(harness.context)
    revoked = await create(keys)
    await keys.revoke(revoked.key.key_id, nobody_checks)
    expired = await create(keys, ends_at=harness.clock.now + 10)
    harness.clock.now += 10

    for issued in (revoked, expired):
        with pytest.raises(Exists) as caught:
            await keys.rotate(issued.key.key_id, 0, nobody_checks)
        assert caught.value.code is Code.KEY_NOT_ACTIVE


async def test_nothing_is_done_to_a_key_that_the_caller_may_not_touch() -> None:
    harness = await a_harness()
    keys = Keys(harness.context)
    issued = await create(keys)

    def refuse(key: ApiKey) -> None:
        assert key == issued.key
        raise Denied("no")

    for doing in (
        keys.revoke(issued.key.key_id, refuse),
        keys.rotate(issued.key.key_id, 0, refuse),
    ):
        with pytest.raises(Denied):
            await doing
    assert await is_good(harness, issued.credential)
    assert await objects_of(harness) == [(0, 1)]


async def test_a_revocation_is_in_the_bucket_when_it_is_answered() -> None:
    harness = await a_harness()
    keys = Keys(harness.context)
    issued = await create(keys)

    key = await keys.revoke(issued.key.key_id, nobody_checks)

    assert key.state(harness.clock()) is KeyState.REVOKED
    assert not await is_good(harness, issued.credential)
    assert await newest_object(harness) == key
    assert (await keys.records.find(key.key_id)).durable
    assert await keys.revoke(key.key_id, nobody_checks) == key
    assert await objects_of(harness) == [(0, 1), (0, 2)]


async def test_a_revocation_takes_effect_also_while_the_bucket_does_not_answer() -> None:
    harness = await a_harness(manifest_put_seconds=0.1)
    keys = Keys(harness.context)
    issued = await create(keys)
    harness.drive.failing = True
    harness.context.settings.__dict__["manifest_put_seconds"] = 0.01

    for _ in range(2):
        with pytest.raises(Unavailable) as caught:
            await keys.revoke(issued.key.key_id, nobody_checks)
        assert caught.value.outcome is Outcome.COMMITTED
        assert not await is_good(harness, issued.credential)
    with pytest.raises(Unavailable):
        await look_after(harness)
    assert await due_count(harness, UNSAVED_KEY) == 1

    harness.drive.failing = False
    await look_after(harness)
    assert (await newest_object(harness)).revoked_at is not None
    assert await due_count(harness, UNSAVED_KEY) == 0


async def test_a_revocation_that_coordination_may_have_lost_is_not_said_to_be_done() -> None:
    harness = await a_harness()
    keys = Keys(harness.context)
    issued = await create(keys)

    async def lost() -> None:
        harness.coordination.lose()

    harness.drive.before_put = lost
    with pytest.raises(Unavailable) as caught:
        await keys.revoke(issued.key.key_id, nobody_checks)

    assert caught.value.code is Code.COORDINATION_REGRESSED
    assert caught.value.outcome is Outcome.UNKNOWN
    assert not caught.value.retryable


async def test_a_revocation_wins_over_a_rotation_that_is_under_way() -> None:
    harness = await a_harness()
    keys = Keys(harness.context)
    issued = await create(keys)

    async def revoke() -> None:
        await keys.revoke(issued.key.key_id, nobody_checks)

    harness.drive.before_put = revoke
    with pytest.raises(Exists) as caught:
        await keys.rotate(issued.key.key_id, HOUR_MS, nobody_checks)

    assert caught.value.code is Code.KEY_NOT_ACTIVE
    assert not await is_good(harness, issued.credential)
    assert (await newest_object(harness)).revoked_at is not None


@pytest.mark.parametrize("doing", ["rotate", "revoke"])
async def test_numbers_that_another_history_has_used_are_passed_over(doing: str) -> None:
    harness = await a_harness()
    keys = Keys(harness.context)
    issued = await create(keys)
    for number in range(2, 9):
        # As after a restore of coordination alone, from before these.
        other = KeyObject(0, number, replace(issued.key, label=f"{number}"))
        data = encode_key_object(other)
        name = api_key_key(issued.key.key_id, 0, number)
        await harness.drive.put(name, [data], crc32c(data))

    if doing == "rotate":
        issued = await keys.rotate(issued.key.key_id, 0, nobody_checks)
    else:
        await keys.revoke(issued.key.key_id, nobody_checks)

    assert await is_good(harness, issued.credential) == (doing == "rotate")
    assert max(await objects_of(harness)) == (0, 9)
    assert await newest_object(harness) == (await keys.records.find(issued.key.key_id)).key


async def test_an_emptied_coordination_is_not_taken_for_one_without_keys() -> None:
    harness = await a_harness()
    keys = Keys(harness.context)
    issued = await create(keys)
    harness.coordination.lose()

    for asking in (
        keys.records.find(issued.key.key_id),
        keys.records.page("acme", "", 10),
        create(keys),
        keys.rotate(issued.key.key_id, 0, nobody_checks),
        keys.revoke(issued.key.key_id, nobody_checks),
    ):
        with pytest.raises(Unavailable) as caught:
            await asking
        assert caught.value.code is Code.COORDINATION_REGRESSED


# What is looked after


async def test_objects_that_a_rotation_replaced_are_swept() -> None:
    harness = await a_harness()
    keys = Keys(harness.context)
    issued = await create(keys)
    for _ in range(3):
        issued = await keys.rotate(issued.key.key_id, 0, nobody_checks)
    harness.clock.now += CREATION_MS

    await look_after(harness)

    assert await objects_of(harness) == [(0, 4)]
    assert await is_good(harness, issued.credential)
    assert await due_count(harness, TIDY_KEY) == 0


@pytest.mark.parametrize("ending", ["revoked", "expired"])
async def test_a_key_that_ended_is_listed_for_days_and_then_forgotten(ending: str) -> None:
    harness = await a_harness(manifest_key_keep_ms=7 * DAY_MS)
    keys = Keys(harness.context)
    issued = await create(keys, ends_at=harness.clock.now + 30 * DAY_MS)
    if ending == "revoked":
        await keys.revoke(issued.key.key_id, nobody_checks)
    else:
        harness.clock.now += 30 * DAY_MS

    for _ in range(6):
        harness.clock.now += DAY_MS
        await look_after(harness)
        [listed] = await keys.records.page("acme", "", 10)
        assert listed.key.state(harness.clock()).value == ending
    for _ in range(2):
        harness.clock.now += DAY_MS
        await look_after(harness)

    assert await keys.records.page("acme", "", 10) == []
    assert await keys.records.ids() == []
    assert await objects_of(harness) == []
    assert await due_count(harness, TIDY_KEY) == 0
    with pytest.raises(NotFound):
        await keys.records.find(issued.key.key_id)


async def test_a_clock_that_is_ahead_for_a_moment_forgets_no_key() -> None:
    """What is deleted for its age was looked at among records, and not among keys."""
    harness = await a_harness(manifest_key_keep_ms=7 * DAY_MS)
    harness.drive.has_own_clock = False
    keys = Keys(harness.context)
    await harness.context.time.look()
    issued = await create(keys, ends_at=harness.clock.now + 90 * DAY_MS)
    harness.clock.skew_ms = 200 * DAY_MS
    with pytest.raises(Unavailable):
        await look_after(harness)
    harness.clock.skew_ms = 0

    assert await is_good(harness, issued.credential)
    assert len(await objects_of(harness)) == 1


async def test_an_overlap_that_begins_while_the_clock_is_years_ahead_ends_in_time() -> None:
    """The checks with a wrong clock looked at what ends too early, and at nothing that lasts."""
    harness = await a_harness()
    harness.one_machine = True
    keys = Keys(harness.context)
    await harness.context.time.look()
    issued = await create(keys)
    harness.clock.skew_ms = 3_650 * DAY_MS
    newer = await keys.rotate(issued.key.key_id, HOUR_MS, nobody_checks)
    harness.clock.skew_ms = 0

    assert await is_good(harness, issued.credential)
    harness.clock.now += HOUR_MS
    assert not await is_good(harness, issued.credential)
    assert await is_good(harness, newer.credential)


async def test_a_revocation_that_is_not_in_the_bucket_is_tried_whatever_the_clock_said() -> None:
    harness = await a_harness(manifest_put_seconds=0.1)
    keys = Keys(harness.context)
    issued = await create(keys)
    harness.clock.skew_ms = 200 * DAY_MS
    harness.drive.failing = True
    with pytest.raises(Unavailable):
        await keys.revoke(issued.key.key_id, nobody_checks)
    harness.clock.skew_ms = 0
    harness.drive.failing = False

    await look_after(harness)

    record = await keys.records.look_at(issued.key.key_id)
    assert record is not None
    assert record.durable


async def test_a_creation_that_was_cut_off_is_forgotten_and_can_never_end() -> None:
    harness = await a_harness()
    keys = Keys(harness.context)

    async def hour_passes() -> None:
        # It stands still between its number and its object; the object comes all the same.
        harness.clock.now += CREATION_MS
        await look_after(harness)

    harness.drive.before_put = hour_passes
    with pytest.raises(Unavailable):
        await create(keys)

    assert await keys.records.ids() == []
    await look_after(harness)
    assert await due_count(harness, TIDY_KEY) == 0


async def test_a_creation_that_wakes_up_while_it_is_forgotten_does_not_end() -> None:
    harness = await a_harness()
    keys = Keys(harness.context)
    harness.fuse.left = 1
    with pytest.raises(Crash):
        await create(keys)
    harness.fuse.left = None
    [key_id] = await keys.records.ids()
    begun = await keys.records.look_at(key_id)
    assert begun is not None
    await keys._put(begun, begun.key)
    harness.clock.now += CREATION_MS
    woke = []

    async def wake() -> None:
        with pytest.raises(_Overtaken):
            await keys._confirm(begun, begun.key)
        woke.append(True)

    harness.drive.before_delete = wake
    await look_after(harness)

    assert woke == [True]
    assert await keys.records.ids() == []
    assert await objects_of(harness) == []


async def test_what_cannot_be_deleted_stays_due() -> None:
    harness = await a_harness()
    keys = Keys(harness.context)
    issued = await create(keys)
    await keys.revoke(issued.key.key_id, nobody_checks)
    harness.clock.now += 8 * DAY_MS
    harness.drive.stubborn = {api_key_key(issued.key.key_id, 0, 1)}

    with pytest.raises(Unavailable):
        await look_after(harness)
    # The newest goes last: what is left says that the key is revoked.
    assert (await newest_object(harness)).revoked_at is not None

    harness.drive.stubborn = set()
    await look_after(harness)
    assert await objects_of(harness) == []


async def test_an_id_that_is_taken_is_no_other_key() -> None:
    harness = await a_harness()
    keys = Keys(harness.context)
    object.__setattr__(harness.context, "new_uid", lambda: "0" * 32)
    issued = await create(keys)

    with pytest.raises(Unavailable):
        await create(keys)

    assert await is_good(harness, issued.credential)
    assert [one.key for one in await keys.records.page("acme", "", 10)] == [issued.key]
    assert issued.key.key_id == KeyId(f"{harness.clock.now:012x}" + "0" * 12)
