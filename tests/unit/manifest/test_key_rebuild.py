"""API keys after the loss of coordination: a key that was revoked never comes back.

Every step of every change is cut off by a crash, coordination is lost behind it, and what a
rebuild brings back is held against what callers were told.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import pytest
from support.api_keys import HOUR_MS, a_harness, create, is_good, nobody_checks
from support.manifest import Crash, ManifestHarness
from support.rebuilding import a_step, agree
from unit.formats.examples import API_KEY

from bottomless.errors import Exists, NotFound
from bottomless.formats.api_key import KeyObject, encode_key_object
from bottomless.formats.checks import crc32c
from bottomless.formats.keys import API_KEYS_PREFIX, ApiKeyKey, api_key_key
from bottomless.model.api_key import ApiKey, KeyId, KeyRecord, revoked
from bottomless_server.coordination.base import Changes
from bottomless_server.manifest.keys.core.key_rebuild_decision import FoundKeyObject, rebuild_key
from bottomless_server.manifest.keys.key_rebuild import discard_keys, restore_keys
from bottomless_server.manifest.keys.key_reconciling import RECONCILE_MS, reconcile_keys
from bottomless_server.manifest.keys.key_upkeep import KeyUpkeep
from bottomless_server.manifest.keys.keys import Issued, Keys
from bottomless_server.stores.keys import TIDY_KEY, ApiKeys
from bottomless_server.stores.streams import GENERATION_KEY

DEAD = revoked(API_KEY, 5)


async def rebuild(harness: ManifestHarness, generation: int = 1) -> tuple[int, int]:
    """What a rebuild does about keys; how many came back, and how many could not."""
    step, after = await a_step(harness.coordination, generation), ""
    while after := await discard_keys(harness.context, after, step):
        pass
    counts = [0, 0]
    while True:
        done = await restore_keys(harness.context, after, step)
        counts = [counts[0] + done.keys, counts[1] + done.unreadable_keys]
        if not (after := done.after):
            break
    await agree(harness, generation)
    return counts[0], counts[1]


async def look_after(harness: ManifestHarness) -> None:
    await KeyUpkeep(harness.context, Keys(harness.context)).make_pass()


async def damage(harness: ManifestHarness, place: ApiKeyKey) -> None:
    await harness.drive.delete([api_key_key(*place)])
    await harness.drive.put(api_key_key(*place), [b"{}"], crc32c(b"{}"))


# What is believed


def found(generation: int, version: int, key: ApiKey | None) -> FoundKeyObject:
    return FoundKeyObject(ApiKeyKey(API_KEY.key_id, generation, version), key)


NEWER = replace(API_KEY, label="newer")


@pytest.mark.parametrize(
    ("objects", "key"),
    [
        ([found(0, 1, API_KEY)], API_KEY),
        ([found(0, 1, API_KEY), found(0, 2, NEWER)], NEWER),
        ([found(0, 9, API_KEY), found(1, 2, NEWER)], NEWER),
        ([found(0, 1, None), found(0, 2, NEWER)], NEWER),
        # Dead is dead, whatever stands behind it.
        ([found(0, 1, API_KEY), found(0, 2, DEAD)], DEAD),
        ([found(0, 1, DEAD), found(0, 2, NEWER)], DEAD),
        ([found(0, 9, DEAD), found(1, 2, NEWER)], DEAD),
        ([found(0, 1, DEAD), found(0, 2, None)], DEAD),
        # What cannot be read may have been a revocation.
        ([found(0, 1, API_KEY), found(0, 2, None)], revoked(API_KEY, 77)),
        ([found(0, 1, API_KEY), found(1, 1, None)], revoked(API_KEY, 77)),
        ([found(0, 1, None)], None),
        ([], None),
    ],
)
def test_whatever_is_in_doubt_is_decided_against_the_key(
    objects: Sequence[FoundKeyObject], key: ApiKey | None
) -> None:
    for order in (objects, objects[::-1]):
        record = rebuild_key(order, 1, 2, now=77)
        assert (None if record is None else record.key) == key


def test_numbers_begin_anew_in_each_generation_whatever_is_put_late_of_an_older_one() -> None:
    """The number was the highest of older generations: an object that was put late changed it."""
    objects = [found(0, 7, API_KEY), found(1, 3, NEWER)]
    record = rebuild_key(objects, 1, 2, now=0)
    assert record == KeyRecord(NEWER, 2, 1, 1, durable=True)
    assert rebuild_key([*objects, found(1, 2, API_KEY)], 1, 2, now=0) == record
    assert rebuild_key([*objects, found(2, 1, NEWER)], 1, 2, now=0) == record


@pytest.mark.parametrize("left", [None, NEWER, DEAD])
def test_what_an_earlier_attempt_of_the_same_rebuild_has_left_is_passed_over(
    left: ApiKey | None,
) -> None:
    """It was believed, whatever had become of that attempt."""
    record = rebuild_key([found(0, 7, API_KEY), found(1, 7, left)], 0, 1, now=77)
    assert record == KeyRecord(API_KEY, 1, 8, 8, durable=True)
    assert rebuild_key([found(0, 7, API_KEY)], 0, 1, now=77) == KeyRecord(
        API_KEY, 1, 1, 1, durable=True
    )
    again = [found(0, 7, API_KEY), found(1, 7, left), found(1, 9, left)]
    assert rebuild_key(again, 0, 1, now=77) == KeyRecord(API_KEY, 1, 10, 10, durable=True)


async def test_a_key_that_was_forgotten_since_a_rebuild_was_given_up_does_not_come_back() -> None:
    """Only a copy of it is left, under a generation that never came."""
    harness = await a_harness()
    data = encode_key_object(KeyObject(1, 1, API_KEY))
    await harness.drive.put(api_key_key(API_KEY.key_id, 1, 1), [data], crc32c(data))
    harness.coordination.lose()

    assert await rebuild(harness) == (0, 0)

    assert await ApiKeys(harness.coordination, harness.streams).ids() == []


# What comes back


async def test_keys_come_back_as_they_were() -> None:
    harness = await a_harness()
    keys = Keys(harness.context)
    first, second = await create(keys), await create(keys, tenant="globex")
    rotated = await keys.rotate(first.key.key_id, HOUR_MS, nobody_checks)
    dead = await create(keys)
    gone = await keys.revoke(dead.key.key_id, nobody_checks)
    ending = await create(keys, ends_at=harness.clock.now + 500)
    harness.coordination.lose()

    assert await rebuild(harness) == (4, 0)

    for issued in (first, second, rotated, ending):
        assert await is_good(harness, issued.credential)
    assert not await is_good(harness, dead.credential)
    listed = [one.key for one in await keys.records.page("acme", "", 10)]
    assert sorted(listed, key=lambda key: key.key_id) == sorted(
        [rotated.key, gone, ending.key], key=lambda key: key.key_id
    )
    assert [one.key for one in await keys.records.page("globex", "", 10)] == [second.key]
    harness.clock.now += 500
    assert not await is_good(harness, ending.credential)


async def test_more_keys_than_one_step_takes_come_back() -> None:
    harness = await a_harness()
    keys = Keys(harness.context)
    made = [await create(keys) for _ in range(40)]
    harness.coordination.lose()

    assert await rebuild(harness) == (40, 0)

    for issued in made:
        assert await is_good(harness, issued.credential)


async def test_what_an_older_coordination_says_of_keys_is_forgotten() -> None:
    harness = await a_harness()
    keys = Keys(harness.context)
    issued = await create(keys)
    revoked_one = await create(keys)
    await keys.revoke(revoked_one.key.key_id, nobody_checks)
    # Known to coordination alone: nobody was told of it.
    stray = replace(issued.key, key_id=KeyId("f" * 24))
    await keys.records.change(stray.key_id, lambda _: KeyRecord(stray, 0, 1, 1, durable=True))
    await agree(harness, 1)
    harness.coordination.write(Changes({GENERATION_KEY: b'{"generation":0,"bucket":true}'}))

    assert await rebuild(harness, 2) == (2, 0)

    with pytest.raises(NotFound):
        await keys.records.find(stray.key_id)
    assert await is_good(harness, issued.credential)
    assert not await is_good(harness, revoked_one.credential)


async def test_a_rebuild_that_begins_anew_discards_no_key_that_is_restored_already() -> None:
    """That was tested for streams and consumers alone. A process that is paused before it discards a
    key wakes up while another one has restored it already, and the generation is still the old one."""
    harness = await a_harness()
    keys = Keys(harness.context)
    issued = await create(keys)
    harness.coordination.lose()
    step = await a_step(harness.coordination, 1)
    await restore_keys(harness.context, "", step)

    await keys.records.discard(issued.key.key_id, step)
    assert await discard_keys(harness.context, "", step) == issued.key.key_id
    assert await discard_keys(harness.context, issued.key.key_id, step) == ""

    await agree(harness, 1)
    assert await is_good(harness, issued.credential)
    [listed] = await keys.records.page("acme", "", 10)
    assert listed.key == issued.key


async def test_a_rebuilt_key_goes_on_like_any_other() -> None:
    harness = await a_harness()
    keys = Keys(harness.context)
    issued = await create(keys)
    harness.coordination.lose()
    await rebuild(harness)

    rotated = await keys.rotate(issued.key.key_id, 0, nobody_checks)
    assert await is_good(harness, rotated.credential)
    harness.coordination.lose()
    await rebuild(harness, 2)
    assert await is_good(harness, rotated.credential)
    await keys.revoke(issued.key.key_id, nobody_checks)
    harness.coordination.lose()
    await rebuild(harness, 3)
    assert not await is_good(harness, rotated.credential)
    await look_after(harness)
    left = [one.object_key async for one in harness.drive.list(API_KEYS_PREFIX)]
    assert left == [api_key_key(issued.key.key_id, 3, 1)]
    assert len(await harness.coordination.due(TIDY_KEY, 2**52, 10)) == 1


async def test_a_key_whose_newest_object_is_damaged_comes_back_revoked() -> None:
    harness = await a_harness()
    keys = Keys(harness.context)
    issued = await create(keys)
    await keys.revoke(issued.key.key_id, nobody_checks)
    await damage(harness, ApiKeyKey(issued.key.key_id, 0, 2))
    harness.coordination.lose()

    assert await rebuild(harness) == (1, 0)

    assert not await is_good(harness, issued.credential)
    [listed] = await keys.records.page("acme", "", 10)
    assert listed.key.revoked_at == harness.clock.now


async def test_a_key_of_which_nothing_can_be_read_is_counted_and_disturbs_no_other() -> None:
    harness = await a_harness()
    keys = Keys(harness.context)
    lost, issued = await create(keys), await create(keys)
    await damage(harness, ApiKeyKey(lost.key.key_id, 0, 1))
    stranger = KeyObject(0, 1, API_KEY)
    data = encode_key_object(stranger)
    await harness.drive.put(api_key_key(KeyId("e" * 24), 0, 1), [data], crc32c(data))
    await harness.drive.put(f"{API_KEYS_PREFIX}notes.txt", [data], crc32c(data))
    harness.coordination.lose()

    assert await rebuild(harness) == (1, 2)

    assert await is_good(harness, issued.credential)
    assert not await is_good(harness, lost.credential)


async def test_a_revocation_is_not_answered_by_a_history_that_was_lost_meanwhile() -> None:
    harness = await a_harness()
    keys = Keys(harness.context)
    issued = await create(keys)

    async def lost_and_rebuilt() -> None:
        harness.coordination.lose()
        await rebuild(harness)

    # Between the EXEC and the put: the rebuild does not see the object.
    harness.drive.before_put = lost_and_rebuilt
    key = await keys.revoke(issued.key.key_id, nobody_checks)

    # It was noticed, and done again in the history that counts.
    assert key.revoked_at is not None
    assert not await is_good(harness, issued.credential)
    assert (await keys.records.find(key.key_id)).generation == 1
    harness.coordination.lose()
    await rebuild(harness, 2)
    assert not await is_good(harness, issued.credential)


# Coordination from a backup


async def test_a_coordination_from_a_backup_is_told_what_it_has_lost_of_keys() -> None:
    harness = await a_harness()
    keys = Keys(harness.context)
    dead, leaked, untouched = [await create(keys) for _ in range(3)]
    backup = harness.coordination.copy()
    await keys.revoke(dead.key.key_id, nobody_checks)
    rotated = await keys.rotate(leaked.key.key_id, 0, nobody_checks)
    later = await create(keys)
    harness.coordination.put_back(backup)
    assert await is_good(harness, dead.credential)

    assert await reconcile_keys(harness.context) == 3
    assert await reconcile_keys(harness.context) == 0

    for issued in (dead, leaked):
        assert not await is_good(harness, issued.credential)
    for issued in (rotated, later, untouched):
        assert await is_good(harness, issued.credential)
    assert await keys.records.count("acme") == 4
    again = await keys.rotate(leaked.key.key_id, 0, nobody_checks)
    await keys.revoke(later.key.key_id, nobody_checks)
    harness.coordination.lose()
    await rebuild(harness)
    assert await is_good(harness, again.credential)
    assert not await is_good(harness, later.credential)


async def test_a_process_that_starts_looks_at_what_the_bucket_knows_of_keys() -> None:
    harness = await a_harness()
    keys = Keys(harness.context)
    dead = await create(keys)
    backup = harness.coordination.copy()
    await keys.revoke(dead.key.key_id, nobody_checks)
    upkeep = KeyUpkeep(harness.context, keys)
    await upkeep.make_pass()
    harness.coordination.put_back(backup)

    await upkeep.make_pass()
    assert await is_good(harness, dead.credential)
    harness.clock.now += RECONCILE_MS
    await upkeep.make_pass()
    assert not await is_good(harness, dead.credential)
    harness.coordination.put_back(backup)
    await look_after(harness)
    assert not await is_good(harness, dead.credential)


@pytest.mark.parametrize("steps", range(4))
async def test_a_reconciliation_that_died_is_done_again(steps: int) -> None:
    harness = await a_harness()
    keys = Keys(harness.context)
    dead = await create(keys)
    backup = harness.coordination.copy()
    key = await keys.revoke(dead.key.key_id, nobody_checks)
    # Of a history that went back as well, and was newer than the revocation.
    late = KeyObject(0, 3, dead.key)
    data = encode_key_object(late)
    await harness.drive.put(api_key_key(key.key_id, 0, 3), [data], crc32c(data))
    harness.coordination.put_back(backup)
    harness.fuse.left = steps

    with pytest.raises(Crash):
        await reconcile_keys(harness.context)
    harness.fuse.left = None
    await reconcile_keys(harness.context)

    assert not await is_good(harness, dead.credential)
    assert (await keys.records.find(key.key_id)).key == key
    harness.coordination.lose()
    await rebuild(harness)
    assert not await is_good(harness, dead.credential)


async def test_a_reconciliation_leaves_what_was_changed_meanwhile() -> None:
    harness = await a_harness()
    keys = Keys(harness.context)
    key_id = (await create(keys)).key.key_id
    backup = harness.coordination.copy()
    await keys.rotate(key_id, HOUR_MS, nobody_checks)
    harness.coordination.put_back(backup)

    async def revoke() -> None:
        await keys.revoke(key_id, nobody_checks)

    harness.drive.before_put = revoke
    assert await reconcile_keys(harness.context) == 0

    record = await keys.records.find(key_id)
    assert record.key.revoked_at is not None
    assert (record.version, record.durable) == (3, True)


async def test_a_rotation_in_a_coordination_that_went_back_meets_what_was_lost() -> None:
    harness = await a_harness()
    keys = Keys(harness.context)
    dead = await create(keys)
    backup = harness.coordination.copy()
    await keys.revoke(dead.key.key_id, nobody_checks)
    harness.coordination.put_back(backup)

    with pytest.raises(Exists):
        await keys.rotate(dead.key.key_id, HOUR_MS, nobody_checks)

    assert not await is_good(harness, dead.credential)


async def test_what_is_under_way_is_not_taken_for_a_coordination_that_went_back() -> None:
    harness = await a_harness()
    keys = Keys(harness.context)
    issued = await create(keys)

    async def reconcile() -> None:
        assert await reconcile_keys(harness.context) == 0

    for doing in (
        lambda: create(keys),
        lambda: keys.rotate(issued.key.key_id, 0, nobody_checks),
        lambda: keys.revoke(issued.key.key_id, nobody_checks),
    ):
        harness.drive.before_put = reconcile
        await doing()
        await reconcile()


# A crash at every step


class Told:
    """What callers were told of one key."""

    def __init__(self, issued: Issued) -> None:
        self.key_id = issued.key.key_id
        self.shown = {issued.credential}
        self.good = {issued.credential}
        """Of these nobody has asked for the end."""
        self.dead: set[str] = set()
        """Secrets of which it was answered that they are good for nothing."""

    async def check(self, harness: ManifestHarness) -> None:
        for one in self.good:
            assert await is_good(harness, one), "a secret that was shown is lost"
        for one in self.dead:
            assert not await is_good(harness, one), "a secret that was taken back is good again"


async def rotate(keys: Keys, told: Told) -> None:
    issued = await keys.rotate(told.key_id, HOUR_MS, nobody_checks)
    told.shown.add(issued.credential)
    told.good.add(issued.credential)


async def rotate_at_once(keys: Keys, told: Told) -> None:
    told.good = set()
    issued = await keys.rotate(told.key_id, 0, nobody_checks)
    told.dead |= told.shown
    told.shown.add(issued.credential)
    told.good = {issued.credential}


async def revoke(keys: Keys, told: Told) -> None:
    told.good = set()
    await keys.revoke(told.key_id, nobody_checks)
    told.dead |= told.shown


Doing = Callable[[Keys, Told], Awaitable[None]]
STEP_COUNT_MAX = 12


async def live_through(doing: Doing, steps: int, *, lost: bool) -> bool:
    """One change by a process that dies after so many steps, and all that comes behind it.

    Whether it died; where not, it had fewer steps.
    """
    harness = await a_harness()
    told, other = [Told(await create(Keys(harness.context))) for _ in range(2)]
    await rotate(Keys(harness.context), told)
    harness.fuse.left = steps
    died = False
    try:
        await doing(Keys(harness.context), told)
    except Crash:
        died = True
    harness.fuse.left = None
    if lost:
        harness.coordination.lose()
        await rebuild(harness)
    await told.check(harness)
    # Whoever was not answered does the same again, and then revokes the key.
    with suppress(Exists):
        await doing(Keys(harness.context), told)
    await told.check(harness)
    await revoke(Keys(harness.context), told)
    await look_after(harness)
    harness.coordination.lose()
    await rebuild(harness, 2)
    assert told.dead == told.shown
    await told.check(harness)
    await other.check(harness)
    return died


@pytest.mark.parametrize("lost", [False, True], ids=["restarted", "rebuilt"])
@pytest.mark.parametrize("doing", [rotate, rotate_at_once, revoke])
async def test_whenever_the_process_dies_what_was_told_of_a_key_holds(
    doing: Doing, lost: bool
) -> None:
    died = [await live_through(doing, steps, lost=lost) for steps in range(STEP_COUNT_MAX)]
    # Every step was cut off once, and the whole was seen too.
    assert died == sorted(died, reverse=True)
    assert 4 < died.count(True) < STEP_COUNT_MAX


@pytest.mark.parametrize("lost", [False, True], ids=["restarted", "rebuilt"])
async def test_whenever_the_process_dies_a_key_that_was_shown_is_there(lost: bool) -> None:
    died = []
    for steps in range(STEP_COUNT_MAX):
        harness = await a_harness()
        harness.fuse.left = steps
        try:
            issued = await create(Keys(harness.context))
        except Crash:
            issued = None
        harness.fuse.left = None
        if lost:
            harness.coordination.lose()
            await rebuild(harness)
        if issued is not None:
            await Told(issued).check(harness)
        died.append(issued is None)
        assert len(await Keys(harness.context).records.page("acme", "", 10)) <= 1
    assert died == sorted(died, reverse=True)
    assert 4 < died.count(True) < STEP_COUNT_MAX


class HastyKeys(Keys):
    """Answers a revocation before the bucket knows of it: what must never be."""

    async def save(self, record: KeyRecord) -> KeyRecord:
        return record


class ForgetfulKeys(Keys):
    """Answers a revocation when its object is put, whatever became of coordination meanwhile."""

    async def save(self, record: KeyRecord) -> KeyRecord:
        await self._put(record, record.key)
        return replace(record, durable=True)


async def test_a_revocation_that_is_answered_before_its_object_would_be_caught() -> None:
    harness = await a_harness()
    told = Told(await create(Keys(harness.context)))
    await revoke(HastyKeys(harness.context), told)
    await told.check(harness)

    harness.coordination.lose()
    await rebuild(harness)

    with pytest.raises(AssertionError, match="good again"):
        await told.check(harness)


async def test_a_revocation_that_is_answered_without_looking_again_would_be_caught() -> None:
    harness = await a_harness()
    told = Told(await create(Keys(harness.context)))

    async def lost_and_rebuilt() -> None:
        harness.coordination.lose()
        await rebuild(harness)

    harness.drive.before_put = lost_and_rebuilt
    await revoke(ForgetfulKeys(harness.context), told)

    with pytest.raises(AssertionError, match="good again"):
        await told.check(harness)
