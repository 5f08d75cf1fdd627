"""What is believed of a wall clock, and what is deleted by one that is wrong for a moment.

No earlier check saw these faults, since all of them (unit tests, model, simulation) gave a process
one clock: the time of day was the time that passed, and the object store had it too. Scenarios
A26 and M28 do set clocks, and looked at ingest alone, which has a guard of its own.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.manifest import STREAM, ManifestHarness, from_the_first_start
from unit.manifest.test_edits import HOUR, configure, tens
from unit.manifest.test_range_leases import fragments_left, hold, stored

from bottomless.errors import Code, Unavailable
from bottomless.model.config import parse_config
from bottomless_server.coordination.base import Changes, CoordinationUnavailable, Due
from bottomless_server.manifest.common.core.clock_trust import (
    SETTLE_MS,
    SKEW_MS_MAX,
    STAND_MS,
    ClockTrust,
    Doubt,
    KnownClock,
    Others,
)
from bottomless_server.manifest.common.trusted_time import elapsed_ms
from bottomless_server.manifest.mutators.mutator import Mutators
from bottomless_server.manifest.mutators.retention import evaluate, trim
from bottomless_server.manifest.mutators.sessions import begin, intend
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.recovery.far_times import FarTimes
from bottomless_server.manifest.removal.deleter import Deleter
from bottomless_server.manifest.removal.garbage import GC, collect_step, gc_arguments, register_gc
from bottomless_server.manifest.removal.garbage_timer import GarbageTimer
from bottomless_server.manifest.removal.range_leases import give_back, renew
from bottomless_server.manifest.removal.retention_timer import LEASE_KEY, RetentionTimer
from bottomless_server.manifest.tree.committer import Committer
from bottomless_server.manifest.tree.core.retention_decision import RetentionDecision
from bottomless_server.stores.operations import OPERATIONS_KEY, Operation
from bottomless_server.stores.streams import DELETES_KEY

MINUTE = 60_000
DAY = 24 * HOUR
YEARS = 10 * 365 * DAY
ALONE = Others(store=None, coordination=0)
CONFIRMED = Others(store=0, coordination=0)
WALL, UP = 1_750_000_000_000, 5_000


async def by_timer(harness: ManifestHarness, committer: Committer) -> None:
    mutators = Mutators(harness.context)
    timer = RetentionTimer(harness.context, mutators)
    await timer.walk()
    # The next one is of the same process, and walks too.
    await harness.coordination.release(LEASE_KEY, timer._holder)
    await mutators.aclose()
    await committer.refresh()


async def when_asked(harness: ManifestHarness, committer: Committer) -> None:
    await evaluate(harness.context, committer)


Evaluation = Callable[[ManifestHarness, Committer], Awaitable[None]]


@pytest.mark.parametrize("evaluation", [by_timer, when_asked])
@pytest.mark.parametrize("one_machine", [True, False])
async def test_a_clock_that_is_ahead_for_a_moment_deletes_no_fresh_record(
    evaluation: Evaluation, *, one_machine: bool
) -> None:
    harness = ManifestHarness()
    harness.one_machine = one_machine
    committer = await tens(harness, 5)
    await configure(harness, committer, max_age="7D")
    await evaluation(harness, committer)

    harness.clock.skew_ms = 10 * DAY
    await evaluation(harness, committer)
    assert harness.context.time.doubt is not None
    harness.clock.now += 5_000
    await evaluation(harness, committer)
    harness.clock.skew_ms = 0
    await evaluation(harness, committer)

    assert len(await harness.leaves()) == 5
    assert harness.context.time.doubt is None
    # It is no pause for ever: what is really old goes.
    harness.clock.now += 8 * DAY
    await evaluation(harness, committer)
    assert len(await harness.leaves()) == 1


async def test_an_evaluation_says_that_it_pauses_and_so_does_the_alarm() -> None:
    harness = ManifestHarness()
    harness.one_machine = True
    committer = await tens(harness, 5)
    await configure(harness, committer, max_age="7D")
    assert not (await evaluate(harness.context, committer)).described()["age_paused"]
    harness.clock.skew_ms = 10 * DAY

    assert (await evaluate(harness.context, committer)).described()["age_paused"]

    mutators = Mutators(harness.context)
    timer = RetentionTimer(harness.context, mutators)
    await timer.walk()
    assert (timer.paused_count, harness.context.time.doubt) == (1, Doubt.AHEAD)
    await mutators.aclose()


@pytest.mark.parametrize("ahead_ms", [SKEW_MS_MAX, 2 * MINUTE])
async def test_what_a_clock_is_ahead_within_the_tolerance_makes_nothing_older(
    ahead_ms: int,
) -> None:
    harness = ManifestHarness()
    harness.one_machine = True
    committer = await tens(harness, 5)
    age = harness.clock.now + 60_000
    await configure(harness, committer, max_age=f"{age // 1000}s")
    await evaluate(harness.context, committer)
    harness.clock.skew_ms = ahead_ms

    decision: RetentionDecision = await evaluate(harness.context, committer)

    assert (decision.evaluated_at, decision.age_paused) == (harness.clock.true_now, False)
    assert len(await harness.leaves()) == 5


async def test_a_process_whose_clock_is_ahead_condemns_nothing_under_a_live_lease() -> None:
    """Ten minutes ahead from its start: nothing but another clock can tell."""
    harness = ManifestHarness(manifest_delete_grace_ms=0, manifest_fanout=100)
    harness.drive.has_own_clock = False
    committer, _ = await stored(harness, 6)
    await hold(harness, 20, 8 * MINUTE)
    await trim(harness.context, committer, 40, allow_empty=False)
    other = replace(harness.context, clock=lambda: harness.clock.now + 10 * MINUTE)

    with pytest.raises(Unavailable) as caught:
        await Deleter(other).make_pass()

    assert caught.value.code is Code.CLOCK_SKEW
    assert len(await fragments_left(harness)) == 6
    assert (await harness.record()).condemned_next == 0
    await Deleter(harness.context).make_pass()
    assert await fragments_left(harness) == [20, 30, 40, 50]


@pytest.mark.parametrize("ends", [False, True])
async def test_who_takes_or_ends_a_lease_while_the_clock_is_ahead_ends_no_other(ends: bool) -> None:
    """Only the deleter was looked at with a clock that is wrong; who writes leases drops them too."""
    harness = ManifestHarness(manifest_delete_grace_ms=0, manifest_fanout=100)
    harness.drive.has_own_clock = False
    committer, _ = await stored(harness, 6)
    await harness.context.time.look()
    await hold(harness, 20, 6 * HOUR, "ls_first")
    await hold(harness, 50, 6 * HOUR, "ls_other")
    harness.clock.skew_ms = 10 * DAY
    over = await harness.context.time.over()
    if ends:
        await give_back(harness.streams, STREAM, "ls_other", over)
    else:
        await hold(harness, 50, HOUR, "ls_third")
        await renew(harness.streams, STREAM, "ls_first", harness.clock() + HOUR, over)
    harness.clock.skew_ms = 0

    await trim(harness.context, committer, 40, allow_empty=False)
    await Deleter(harness.context).make_pass()

    assert over == 0
    assert await fragments_left(harness) == [20, 30, 40, 50]


async def test_a_lease_that_was_granted_by_a_clock_years_ahead_ends_when_any_would() -> None:
    """No check looked at what lasts too long: a job that died held its stream for ten years."""
    harness = ManifestHarness(manifest_delete_grace_ms=0, manifest_fanout=100)
    committer, _ = await stored(harness, 6)
    await hold(harness, 20, YEARS)
    await trim(harness.context, committer, 40, allow_empty=False)
    longest_ms = harness.context.settings.manifest_lease_seconds_max * 1000

    await Deleter(harness.context).make_pass()
    harness.clock.now += longest_ms
    await Deleter(harness.context).make_pass()
    assert await fragments_left(harness) == [20, 30, 40, 50]
    harness.clock.now += HOUR
    await Deleter(harness.context).make_pass()

    assert await fragments_left(harness) == [40, 50]


async def test_four_minutes_ahead_are_no_doubt_and_still_end_no_lease_early() -> None:
    harness = ManifestHarness(manifest_delete_grace_ms=0, manifest_fanout=100)
    committer, _ = await stored(harness, 6)
    await hold(harness, 20, 3 * MINUTE)
    await trim(harness.context, committer, 40, allow_empty=False)
    other = replace(harness.context, clock=lambda: harness.clock.now + 4 * MINUTE)
    from_the_first_start(other)

    await Deleter(other).make_pass()

    assert await fragments_left(harness) == [20, 30, 40, 50]


async def test_a_grace_that_a_slow_clock_began_is_not_shorter_for_it() -> None:
    harness = ManifestHarness(manifest_delete_grace_ms=10 * MINUTE, manifest_fanout=100)
    committer, _ = await stored(harness, 6)
    await harness.context.time.look()
    harness.clock.skew_ms = -4 * MINUTE
    await trim(harness.context, committer, 40, allow_empty=False)
    harness.clock.skew_ms = 0
    harness.clock.now += 9 * MINUTE

    await Deleter(harness.context).make_pass()

    assert len(await fragments_left(harness)) == 6


async def test_no_garbage_is_collected_by_a_clock_that_is_ahead() -> None:
    harness = ManifestHarness()
    harness.one_machine = True
    committer = await tens(harness, 2)
    await harness.put_fragment(harness.context.new_uid(), 20)
    await harness.context.time.look()
    harness.clock.skew_ms = 10 * DAY
    arguments = gc_arguments(dry_run=False, minimum_age_ms=DAY, tenant=None)
    collection = Operation("op_1", GC, "default", None, 0, 0, arguments=arguments)

    with pytest.raises(Unavailable) as caught:
        await collect_step(harness.context, collection, 100)

    assert caught.value.code is Code.CLOCK_SKEW
    assert committer.record.published_next == 20


async def test_what_a_clock_years_ahead_has_queued_is_brought_forward_and_goes() -> None:
    """By a process that could not tell, or of an earlier release. No check looked at what stays."""
    harness = ManifestHarness(manifest_delete_grace_ms=HOUR, manifest_fanout=100)
    committer, _ = await stored(harness, 6)
    ahead = replace(harness.context, clock=lambda: harness.clock.now + YEARS)
    await trim(ahead, await Committer.open(ahead, STREAM), 40, allow_empty=False)
    timer = GarbageTimer(harness.context, Operations(harness.context))
    await timer.look()
    far = Due("bottomless:gc", b"all", harness.clock.now + YEARS)
    harness.coordination.write(Changes(queued=[far]))
    walker, deleter = FarTimes(harness.context), Deleter(harness.context)
    await committer.refresh()

    assert await walker.walk() > 1
    assert await walker.walk() == 0
    await deleter.make_pass()
    assert len(await fragments_left(harness)) == 6
    for _ in range(3):
        harness.clock.now += DAY
        await deleter.make_pass()

    assert await fragments_left(harness) == [40, 50]
    assert await timer.look()


async def test_no_time_is_brought_forward_by_a_clock_that_is_doubted() -> None:
    """A clock that was set back years, and is no doubt by itself, differs from the others."""
    harness = ManifestHarness()
    await harness.context.time.look()
    harness.coordination.write(Changes(queued=[Due(DELETES_KEY, b"x", harness.clock.now + DAY)]))
    harness.clock.skew_ms = -YEARS

    with pytest.raises(Unavailable):
        await FarTimes(harness.context).walk()


async def test_given_up_fragments_go_in_their_time_while_the_clock_is_doubted() -> None:
    """The quarantine is bounded: no check let a doubt last until it was full, and uploads stopped."""
    harness = ManifestHarness(manifest_delete_grace_ms=0, manifest_fanout=100)
    harness.one_machine = True
    committer, _ = await stored(harness, 60)
    await harness.context.time.look()
    harness.clock.now += HOUR
    await harness.context.time.look()
    await trim(harness.context, committer, 500, allow_empty=False)
    before = len(await fragments_left(harness))
    harness.clock.skew_ms = 6 * MINUTE
    (uid,) = await intend(harness.context, committer, "s1", [600])
    await harness.put_fragment(uid, 600)
    await begin(harness.context, committer, "s2")
    (other,) = await intend(harness.context, committer, "s2", [600])
    await begin(harness.context, committer, "s3")
    assert {one.uid for one in (await harness.record()).quarantine} == {uid, other}
    deleter = Deleter(harness.context, page_count=2)

    harness.clock.now += harness.context.settings.manifest_upload_deadline_ms - 1
    await deleter.make_pass()
    assert harness.context.time.doubt is Doubt.AHEAD
    assert len((await harness.record()).quarantine) == 2
    harness.clock.now += SKEW_MS_MAX + 1
    await deleter.make_pass()

    assert harness.context.time.doubt is Doubt.AHEAD
    assert (await harness.record()).quarantine == ()
    # And nothing else: what was trimmed is due for longer, and fills the queue's beginning.
    assert len(await fragments_left(harness)) == before
    assert (await harness.record()).condemned_next == 0


async def test_a_doubt_that_lasts_gathers_no_collections_of_garbage() -> None:
    """Each of them waits until the doubt is over, and they all went on at once then."""
    harness = ManifestHarness()
    operations = Operations(harness.context)
    register_gc(operations)
    timer = GarbageTimer(harness.context, operations)
    await timer.look()
    harness.drive.clock_skew_ms = 6 * MINUTE
    for _ in range(30):
        harness.clock.now += DAY
        assert not await timer.look()
    assert await harness.coordination.member_count(OPERATIONS_KEY) == 0
    harness.drive.clock_skew_ms = 0
    harness.clock.now += MINUTE

    assert await timer.look()
    assert await harness.coordination.member_count(OPERATIONS_KEY) == 1


@pytest.mark.parametrize("back_ms", [HOUR, 366 * DAY])
async def test_a_clock_that_is_set_back_does_not_stop_publishing(back_ms: int) -> None:
    """A register armed a moment of the wall clock, which came again an hour later."""
    harness = ManifestHarness()
    committer = await harness.open()
    infos = await harness.register(committer, (0, 10))
    harness.clock.skew_ms -= back_ms
    harness.clock.now += harness.context.settings.manifest_debounce_ms

    await committer.register("s1", infos)
    assert committer.wake_at is not None
    assert committer.wake_at <= harness.context.elapsed()
    await committer.wake()

    assert (await harness.record()).published_next == 10


async def test_what_is_known_of_the_clock_outlives_the_process(tmp_path: Path) -> None:
    """A restart while the clock is ahead is no word for it."""
    harness = ManifestHarness()
    harness.one_machine = True
    context = replace(harness.context, clock_directory=tmp_path / "manifest")
    assert (await context.time.look()).doubt is None
    committer = await tens(harness, 5)
    config = parse_config({"retention": {"max_age": "7D"}})
    await harness.streams.update(STREAM, lambda record: replace(record, config=config))
    assert (await context.time.look()).doubt is None

    harness.clock.skew_ms = 10 * DAY
    restarted = replace(context)
    await evaluate(restarted, committer)
    assert restarted.time.doubt is Doubt.AHEAD
    harness.clock.skew_ms = 0
    again = replace(context)
    await evaluate(again, committer)

    assert again.time.doubt is None
    assert len(await harness.leaves()) == 5


async def test_a_note_of_the_clock_that_is_damaged_is_no_first_start(tmp_path: Path) -> None:
    harness = ManifestHarness()
    harness.one_machine = True
    (tmp_path / "clock.json").write_bytes(b'{"boot_id":')

    context = replace(harness.context, clock_directory=tmp_path)

    assert (await context.time.look()).doubt is Doubt.NEW_START
    harness.clock.now += SETTLE_MS
    assert (await context.time.look()).doubt is None


async def fresh_records(harness: ManifestHarness) -> Committer:
    committer = await tens(harness, 5)
    await configure(harness, committer, max_age="7D")
    return committer


async def test_a_clock_that_is_ahead_for_hours_on_a_host_with_its_own_s3_deletes_nothing() -> None:
    """As in docker-compose.yml: the store's clock agrees for as long as ours is wrong."""
    harness = ManifestHarness()
    harness.one_machine = True
    harness.drive.has_own_clock = True
    committer = await fresh_records(harness)
    await evaluate(harness.context, committer)
    harness.clock.now += HOUR
    await evaluate(harness.context, committer)
    harness.clock.skew_ms = 10 * DAY
    for _ in range(30):
        harness.clock.now += MINUTE
        await evaluate(harness.context, committer)
    assert harness.context.time.doubt is Doubt.AHEAD
    harness.clock.skew_ms = 0
    await evaluate(harness.context, committer)

    assert len(await harness.leaves()) == 5
    assert harness.context.time.doubt is None


@pytest.mark.parametrize("kept", [False, True])
async def test_a_process_that_finds_nothing_written_down_waits_where_there_are_streams(
    tmp_path: Path, *, kept: bool
) -> None:
    """Its directory was not kept, or the release before wrote nothing down. The tests knew only a
    directory that is kept."""
    harness = ManifestHarness()
    harness.one_machine = True
    committer = await fresh_records(harness)
    harness.clock.skew_ms = 10 * DAY
    without = replace(harness.context, clock_directory=tmp_path if kept else None)

    await evaluate(without, committer)
    assert without.time.doubt is Doubt.NEW_START
    harness.clock.skew_ms = 0
    await evaluate(without, committer)
    harness.clock.now += SETTLE_MS

    assert (await without.time.look()).doubt is None
    assert len(await harness.leaves()) == 5


async def test_a_process_that_finds_no_streams_believes_its_clock_at_once() -> None:
    harness = ManifestHarness()

    assert (await replace(harness.context).time.look()).doubt is None


async def test_a_clock_that_cannot_be_asked_is_a_doubt_until_it_answers() -> None:
    harness = ManifestHarness()
    harness.coordination.clock = no_clock  # type: ignore[method-assign]
    with pytest.raises(CoordinationUnavailable):
        await harness.context.time.look()
    assert harness.context.time.doubt is Doubt.UNKNOWN
    del harness.coordination.clock

    assert (await harness.context.time.look()).doubt is None
    assert harness.context.time.doubt is None


async def no_clock() -> int:
    raise CoordinationUnavailable("nobody answers")


def test_without_a_boot_clock_the_monotonic_one_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS: manifest did not start there, and no test has run on such a system."""
    monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)
    before = int(time.monotonic() * 1000)

    assert before <= elapsed_ms() <= int(time.monotonic() * 1000)


def settled(line: int = WALL - UP) -> ClockTrust:
    return ClockTrust("boot", KnownClock("boot", line, settled=True))


def test_the_first_process_believes_its_clock() -> None:
    assert ClockTrust("boot", None).look(WALL, UP, ALONE) is None


def test_a_sleep_of_the_machine_is_no_jump() -> None:
    """CLOCK_BOOTTIME goes on meanwhile, as the wall clock does."""
    trust = settled()
    assert trust.look(WALL, UP, ALONE) is None

    assert trust.look(WALL + 30 * DAY, UP + 30 * DAY, ALONE) is None


def test_after_a_start_of_the_machine_its_clock_has_to_stand_for_a_while() -> None:
    """NTP corrects it within that time; each correction begins it anew."""
    trust = ClockTrust("second", KnownClock("first", 0, settled=True))
    assert trust.look(WALL + DAY, UP, ALONE) is Doubt.NEW_START
    assert trust.look(WALL + DAY + SETTLE_MS - 1, UP + SETTLE_MS - 1, ALONE) is Doubt.NEW_START
    assert trust.look(WALL + SETTLE_MS, UP + SETTLE_MS, ALONE) is Doubt.NEW_START

    assert trust.look(WALL + 2 * SETTLE_MS, UP + 2 * SETTLE_MS, ALONE) is None


def test_after_a_start_of_the_machine_a_store_that_agrees_changes_nothing() -> None:
    """It may stand on this machine, whose clock was wrong before NTP set it."""
    trust = ClockTrust("second", KnownClock("first", 0, settled=True))

    assert trust.look(WALL, UP, CONFIRMED) is Doubt.NEW_START
    assert trust.look(WALL + SETTLE_MS, UP + SETTLE_MS, CONFIRMED) is None


def test_a_store_that_made_the_same_step_confirms_nothing() -> None:
    """It stands on the same machine, as everything does in docker-compose.yml. No test saw that,
    since the one machine of the tests had a directory, which has no clock."""
    trust = settled()
    assert trust.look(WALL, UP, CONFIRMED) is None
    for passed in (MINUTE, SETTLE_MS + MINUTE, STAND_MS):
        assert trust.look(WALL + DAY + passed, UP + passed, CONFIRMED) is Doubt.AHEAD

    passed = STAND_MS + MINUTE
    assert trust.look(WALL + DAY + passed, UP + passed, CONFIRMED) is None


def test_a_store_that_is_heard_first_while_the_clock_is_ahead_confirms_nothing() -> None:
    trust = settled()

    assert trust.look(WALL + DAY, UP, CONFIRMED) is Doubt.AHEAD
    assert trust.look(WALL + DAY + SETTLE_MS, UP + SETTLE_MS, CONFIRMED) is Doubt.AHEAD


def test_a_store_that_did_not_make_the_step_confirms_it_after_a_while() -> None:
    """Our clock was a day late, and was set right: no clock alone is believed at once."""
    trust = ClockTrust("boot", None)
    late = Others(store=DAY, coordination=DAY)
    assert trust.look(WALL, UP, late) is Doubt.STORE
    assert trust.look(WALL + SETTLE_MS, UP + SETTLE_MS, late) is Doubt.STORE
    passed = SETTLE_MS + MINUTE
    assert trust.look(WALL + DAY + passed, UP + passed, CONFIRMED) is Doubt.AHEAD
    passed += SETTLE_MS

    assert trust.look(WALL + DAY + passed, UP + passed, CONFIRMED) is None


def test_a_store_that_made_the_step_at_another_time_confirms_it_after_a_while() -> None:
    """A virtual machine was paused for a day: first the store is a day ahead of both our clocks,
    then our wall clock is set right."""
    trust = settled()
    assert trust.look(WALL, UP, CONFIRMED) is None
    assert trust.look(WALL + MINUTE, UP + MINUTE, Others(DAY, DAY)) is Doubt.STORE
    passed = 2 * MINUTE
    assert trust.look(WALL + DAY + passed, UP + passed, CONFIRMED) is Doubt.AHEAD
    passed += SETTLE_MS

    assert trust.look(WALL + DAY + passed, UP + passed, CONFIRMED) is None


def test_small_steps_ahead_do_not_add_up_within_a_day() -> None:
    trust, ahead = settled(), 0
    for passed in range(0, STAND_MS, SETTLE_MS + MINUTE):
        ahead += 4 * MINUTE
        for also in range(0, SETTLE_MS + MINUTE, MINUTE):
            up = passed + also
            if trust.look(WALL + up + ahead, UP + up, ALONE) is None:
                assert trust.earliest(WALL + up + ahead, UP + up, ALONE) - WALL - up <= SKEW_MS_MAX

    assert ahead > 100 * MINUTE


def test_a_clock_that_is_set_a_little_every_few_minutes_stands() -> None:
    trust, doubts = ClockTrust("second", KnownClock("first", 0, settled=True)), set[Doubt | None]()
    for passed in range(SETTLE_MS, SETTLE_MS + DAY, MINUTE):
        wrong = 2_000 if passed // (5 * MINUTE) % 2 else 0
        doubts.add(trust.look(WALL + passed + wrong, UP + passed, ALONE))

    assert trust.look(WALL + 2 * DAY, UP + 2 * DAY, ALONE) is None
    assert doubts == {Doubt.NEW_START, None}


def test_where_a_start_of_the_machine_has_no_name_each_process_is_one_of_another_start() -> None:
    trust = ClockTrust("", KnownClock("", WALL, settled=True))

    assert trust.look(WALL, UP, ALONE) is Doubt.NEW_START
    assert trust.look(WALL + SETTLE_MS, UP + SETTLE_MS, ALONE) is None


@pytest.mark.parametrize(
    ("wall", "others"),
    [
        (WALL + YEARS, Others(0, 0)),
        (WALL + YEARS, Others(None, 0)),
        (WALL + YEARS, Others(-YEARS, -YEARS)),
        (WALL, Others(0, YEARS)),
        (WALL, Others(YEARS, YEARS)),
    ],
)
def test_a_grace_that_begins_while_any_clock_is_years_ahead_ends_in_minutes(
    wall: int, others: Others
) -> None:
    trust = ClockTrust("boot", None)
    trust.look(WALL, UP, replace(others, store=others.store and 0, coordination=0))
    trust.look(wall + MINUTE, UP + MINUTE, others)

    assert WALL <= trust.latest(wall + MINUTE, UP + MINUTE, others) <= WALL + MINUTE + SKEW_MS_MAX
    assert trust.passed(wall + MINUTE, UP + MINUTE) == WALL + MINUTE


def test_a_grace_that_begins_while_our_clock_is_late_counts_from_those_that_are_right() -> None:
    trust = ClockTrust("boot", None)
    late = Others(3 * HOUR, 3 * HOUR)
    trust.look(WALL, UP, late)

    assert trust.latest(WALL, UP, late) == WALL + 3 * HOUR


def test_a_jump_that_nothing_confirms_is_believed_after_a_day() -> None:
    trust = settled()
    for passed in (0, SETTLE_MS, STAND_MS - 1):
        assert trust.look(WALL + DAY + passed, UP + passed, ALONE) is Doubt.AHEAD

    assert trust.look(WALL + DAY + STAND_MS, UP + STAND_MS, ALONE) is None


def test_a_clock_that_was_ahead_at_the_start_is_no_excuse_once_it_was_set_right() -> None:
    trust = ClockTrust("boot", None)
    assert trust.look(WALL + 10 * DAY, UP, ALONE) is None
    for passed in (1_000, 1_000 + SETTLE_MS):
        assert trust.look(WALL + passed, UP + passed, ALONE) is None

    assert trust.look(WALL + 10 * DAY, UP + SETTLE_MS + 2_000, ALONE) is Doubt.AHEAD


@pytest.mark.parametrize(
    ("others", "doubt"),
    [
        (Others(SKEW_MS_MAX, -SKEW_MS_MAX), None),
        (Others(SKEW_MS_MAX + 1, 0), Doubt.STORE),
        (Others(-SKEW_MS_MAX - 1, 0), Doubt.STORE),
        (Others(None, SKEW_MS_MAX + 1), Doubt.COORDINATION),
        (Others(0, -SKEW_MS_MAX - 1), Doubt.COORDINATION),
    ],
)
def test_other_clocks_have_to_agree(others: Others, doubt: Doubt | None) -> None:
    assert settled().look(WALL, UP, others) is doubt


@given(
    steps=st.lists(
        st.tuples(
            st.integers(0, 2 * SETTLE_MS),
            st.sampled_from([0, -DAY, -MINUTE, SKEW_MS_MAX + 1, HOUR, 10 * DAY]),
        ),
        max_size=30,
    ),
    restarts=st.sets(st.integers(0, 30)),
)
def test_nothing_is_older_than_the_time_that_passed_makes_it(
    steps: list[tuple[int, int]], restarts: set[int]
) -> None:
    """A clock that was right and is ahead for less than a day at a time makes nothing older, in
    whatever steps and with whatever restarts; and when it is right again, age is judged again."""
    trust, elapsed = settled(), UP
    trust.look(WALL, UP, ALONE)
    for number, (passed, skew_ms) in enumerate(steps):
        for _ in range(2):
            true = WALL + elapsed - UP
            if trust.look(true + skew_ms, elapsed, ALONE) is None:
                assert trust.earliest(true + skew_ms, elapsed, ALONE) <= true
            elapsed += passed
        if number in restarts:
            trust = ClockTrust("boot", trust.known)
    true = WALL + elapsed - UP
    trust.look(true, elapsed, ALONE)
    if all(skew_ms >= 0 for _, skew_ms in steps):
        assert trust.look(true, elapsed, ALONE) is None
