"""Who may own a stream: the table of decisions, and the service by them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.guards import remove
from support.waiting import eventually

from bottomless.errors import Code, Corrupt, Fenced, NotFound, Unavailable
from bottomless.formats.segment import decode_checkpoint
from bottomless.model.config import ReplicationConfig, StreamConfig
from bottomless.model.names import NodeId
from bottomless.model.stream import (
    NOBODY,
    EpochStart,
    StreamRecord,
    StreamState,
    gap_due,
    unknown_epoch,
)
from bottomless_server.coordination.base import CoordinationUnavailable
from bottomless_server.manifest.tree.core.rebuild_decision import record_before
from bottomless_server.manifest.tree.core.takeovers import fence
from bottomless_server.node.core import in_sync
from bottomless_server.node.core.ownership import (
    RESERVE_COUNT,
    LocalView,
    claim,
    is_noted,
    is_outdated,
    is_past,
    leave_clean,
    reserve,
)
from bottomless_server.node.data_directory import load_node_id
from bottomless_server.node.file_calls import RealFileCalls
from unit.ingest.harness import INTERNAL, NAME, STREAM, IngestHarness, problem

MINE, OTHER = NodeId("a" * 32), NodeId("b" * 32)
FRESH = StreamRecord(STREAM, NAME, "default", StreamState.ACTIVE, 0, StreamConfig())
USED = replace(
    FRESH,
    epoch=4,
    version=7,
    home=MINE,
    dirty=True,
    reserved_next=RESERVE_COUNT,
    published_next=100,
    epochs=(EpochStart(2, 0), EpochStart(3, 90), EpochStart(4, 120)),
)
EMPTY = LocalView(next_offset=0, empty=True)
FULL = LocalView(next_offset=150, empty=False, epoch=4, version=7, published_next=100)


def claimed(record: StreamRecord, local: LocalView, home_held: bool = False) -> StreamRecord:
    return claim(record, MINE, "unix:///mine.sock", local, home_held=home_held)


def test_a_new_stream_is_anybodys() -> None:
    record = claimed(FRESH, EMPTY)

    assert (record.epoch, record.home, record.owner_url) == (1, MINE, "unix:///mine.sock")
    assert record.epochs == (EpochStart(1, 0),)
    assert not record.dirty


def test_an_empty_log_that_follows_goes_on_where_all_is_published() -> None:
    record = replace(USED, home=OTHER, members=(OTHER, MINE), in_sync=(OTHER, MINE))
    begun = LocalView(next_offset=0, empty=True, epoch=4, version=7, published_next=100)

    def go_on(local: LocalView) -> StreamRecord:
        return in_sync.claim(record, MINE, "unix:///mine.sock", local, home_held=False)

    assert go_on(begun).epochs[-1] == EpochStart(5, 100)
    # In sync it has all that owners showed whom it never heard of.
    assert go_on(replace(begun, epoch=3)).epochs[-1] == EpochStart(5, 100)
    for lost in (
        EMPTY,
        replace(begun, published_next=90),
        replace(begun, empty=False, next_offset=99),
    ):
        with pytest.raises(Unavailable, match="lost data"):
            go_on(lost)


def test_the_home_claims_a_dirty_stream_and_drops_epochs_that_are_published() -> None:
    record = claimed(USED, FULL, home_held=True)

    assert record.epoch == 5
    assert record.epochs == (EpochStart(3, 90), EpochStart(4, 120), EpochStart(5, 150))


def test_a_clean_stream_whose_home_is_silent_starts_where_it_is_published() -> None:
    record = claimed(replace(USED, home=OTHER, dirty=False), EMPTY)

    assert (record.home, record.epochs[-1]) == (MINE, EpochStart(5, 100))


@pytest.mark.parametrize(
    ("record", "local", "home_held", "code"),
    [
        (replace(USED, home=OTHER), EMPTY, False, Code.NOT_OWNER),
        (replace(USED, home=OTHER, dirty=False), EMPTY, True, Code.NOT_OWNER),
        (replace(USED, epoch=3, epochs=()), FULL, False, Code.COORDINATION_REGRESSED),
        (replace(USED, version=6), FULL, False, Code.COORDINATION_REGRESSED),
        (replace(USED, published_next=99), FULL, False, Code.COORDINATION_REGRESSED),
        (replace(USED, dirty=False), FULL, False, Code.COORDINATION_REGRESSED),
        (replace(USED, reserved_next=149), FULL, False, Code.COORDINATION_REGRESSED),
        (replace(FRESH, home=OTHER), FULL, False, Code.COORDINATION_REGRESSED),
        (USED, replace(FULL, next_offset=99), False, Code.STORAGE_FAILED),
        (USED, EMPTY, False, Code.STORAGE_FAILED),
        (
            replace(USED, dirty=False),
            replace(FULL, next_offset=99),
            False,
            Code.STORAGE_FAILED,
        ),
    ],
)
def test_claims_that_are_refused(
    record: StreamRecord, local: LocalView, home_held: bool, code: Code
) -> None:
    with pytest.raises(Unavailable) as caught:
        claimed(record, local, home_held)

    assert caught.value.code is code


def test_the_bucket_is_told_of_a_home_that_has_followed_the_owner_who_gave_it_the_stream() -> None:
    wanted = StreamConfig(replication=ReplicationConfig(replicas=2))
    both = (OTHER, MINE)
    theirs = replace(USED, config=wanted, home=OTHER, members=both, in_sync=both)
    given = in_sync.transfer(theirs, OTHER, theirs.epoch, MINE, "unix:///mine.sock", live=True)
    # Its disk has seen the epoch of the owner that it followed.
    record = in_sync.claim(given, MINE, "unix:///mine.sock", FULL, home_held=False)
    assert not is_noted(record, given.home, FULL)


def test_a_clean_home_with_an_empty_disk_starts_where_it_is_published() -> None:
    assert claimed(replace(USED, dirty=False), EMPTY).epochs[-1] == EpochStart(5, 100)


def test_a_stream_that_is_being_deleted_is_not_there() -> None:
    with pytest.raises(NotFound):
        claimed(replace(FRESH, state=StreamState.DELETING), EMPTY)


def test_a_log_is_outdated_only_if_the_stream_is_clean_and_lives_elsewhere() -> None:
    elsewhere = replace(USED, home=OTHER, dirty=False)

    assert is_outdated(elsewhere, MINE, FULL)
    assert not is_outdated(replace(elsewhere, home=MINE), MINE, FULL)
    assert not is_outdated(replace(elsewhere, dirty=True), MINE, FULL)
    assert not is_outdated(replace(elsewhere, epoch=3, epochs=()), MINE, FULL)
    assert not is_outdated(replace(elsewhere, state=StreamState.DELETING), MINE, FULL)


def test_a_log_stays_between_the_fence_of_a_takeover_and_its_gap() -> None:
    """It was set aside with the fence. Coordination was lost before the gap; the rebuild gave the
    stream back to this home, as the bucket said, and of a stream of which nothing was published it
    began anew at 0: `./dev sim 176`."""
    fresh = replace(USED, published_next=0, epochs=(EpochStart(4, 0),))
    local = replace(FULL, published_next=0)
    fenced = fence(fresh, MINE, 4, home_held=False)

    assert gap_due(fenced) == RESERVE_COUNT
    assert not is_outdated(fenced, MINE, local)
    with pytest.raises(Unavailable):
        claimed(fenced, local)

    rebuilt = record_before(fresh, None, 1)
    assert claimed(rebuilt, local).epochs[-1].first_offset == local.next_offset

    freed = replace(fenced, home=None, dirty=False, published_next=RESERVE_COUNT)
    assert is_outdated(freed, MINE, local)


def test_a_log_that_the_gap_of_a_takeover_overtakes_while_it_is_opened_is_not_claimed_with() -> (
    None
):
    """Whether it is outdated was asked before the claim alone, and the gap came between: the old
    end of the log, and what was appended after the gap, were one log with a hole, which readers
    met as damage. `./dev sim 151` and `26` saw it once logs stayed until the gap."""
    fenced = fence(USED, MINE, 4, home_held=False)
    freed = replace(fenced, home=None, dirty=False, published_next=gap_due(fenced) or 0)
    assert not is_outdated(fenced, MINE, FULL)

    with pytest.raises(Unavailable) as raised:
        claimed(freed, FULL)

    assert raised.value.code is Code.NOT_OWNER
    set_aside = replace(FULL, next_offset=0, empty=True)
    assert claimed(freed, set_aside).epochs[-1].first_offset == freed.published_next


def test_reserving_makes_a_stream_dirty_and_raises_the_bound_when_half_is_used() -> None:
    first = reserve(replace(FRESH, epoch=1), 1, 10)
    soon = reserve(first, 1, 20)
    half = reserve(first, 1, 10 + RESERVE_COUNT // 2 + 1)

    assert (first.dirty, first.reserved_next) == (True, 10 + RESERVE_COUNT)
    assert soon.reserved_next == first.reserved_next
    assert half.reserved_next == 11 + RESERVE_COUNT + RESERVE_COUNT // 2
    for record in (replace(first, epoch=2), replace(first, state=StreamState.DELETING)):
        with pytest.raises(Fenced):
            reserve(record, 1, 30)


def test_only_a_stream_that_is_published_whole_is_left_clean() -> None:
    assert not leave_clean(USED, 4, 100).dirty
    with pytest.raises(Unavailable):
        leave_clean(USED, 4, 101)
    with pytest.raises(Fenced):
        leave_clean(USED, 3, 100)


# The service.


async def test_the_first_append_makes_the_stream_dirty_and_reserves(harness: IngestHarness) -> None:
    await harness.append("a")
    record = await harness.record()

    assert record.dirty
    assert record.reserved_next == 1 + RESERVE_COUNT
    assert record.epochs == (EpochStart(1, 0),)
    assert record.owner_url == "unix:///here.sock"


async def test_every_start_is_a_new_epoch_and_goes_on_where_the_log_ended(
    harness: IngestHarness,
) -> None:
    await harness.append("a", "b")
    after = harness.after_crash()
    await after.start()

    assert (await after.append("c")).json()["first_offset"] == 2
    record = await after.record()
    assert [tuple(start) for start in map(_pair, record.epochs)] == [(1, 0), (2, 2)]
    assert await after.values() == [b"a", b"b", b"c"]
    await after.aclose()


def _pair(start: EpochStart) -> tuple[int, int]:
    return start.epoch, start.first_offset


async def test_the_bucket_says_where_a_stream_is_before_anything_is_acknowledged(
    harness: IngestHarness,
) -> None:
    harness.manifest.knows_homes = False
    refused = await harness.append("a")
    assert (refused.status_code, refused.json()["outcome"]) == (503, "none")
    again = await harness.append("a")
    assert (again.status_code, harness.manifest.homes) == (503, [])

    harness.manifest.knows_homes = True
    assert (await harness.append("a")).json()["first_offset"] == 0
    await harness.append("b")
    assert harness.manifest.homes == [STREAM]


async def test_a_start_between_the_claim_and_the_bucket_acknowledges_nothing_either(
    harness: IngestHarness,
) -> None:
    """That the bucket had not been told was known in memory alone. No test started a node anew
    between the two, so an acknowledged tail could be set aside after the loss of coordination."""
    harness.manifest.knows_homes = False
    assert (await harness.append("a")).status_code == 503
    assert (await harness.record()).home is not None
    again = await harness.after_crash().start()
    again.manifest.knows_homes = False

    try:
        for _ in range(2):
            assert (await again.append("a")).status_code == 503
        assert not (await again.record()).dirty
        again.manifest.knows_homes = True
        assert (await again.append("a")).status_code == 200
        assert again.manifest.homes == [STREAM]
    finally:
        await again.aclose()


def test_a_disk_that_saw_the_last_epoch_of_its_own_stream_proves_what_the_bucket_says() -> None:
    claimed = replace(USED, epoch=5)

    assert is_noted(claimed, MINE, FULL)
    assert not is_noted(claimed, MINE, replace(FULL, epoch=3))
    assert not is_noted(claimed, OTHER, FULL)
    assert not is_noted(claimed, None, FULL)


async def test_who_comes_back_to_its_own_streams_asks_nobody(harness: IngestHarness) -> None:
    await harness.append("a")
    after = harness.after_crash()
    await after.start()
    assert (await after.append("b")).status_code == 200
    assert after.manifest.homes == []
    await after.aclose()


async def test_a_claim_by_a_newer_process_fences_this_one(harness: IngestHarness) -> None:
    await harness.append("a")
    after = harness.after_crash()
    await after.start()
    # The old process comes back after a pause in which its lease ran out.
    harness.time.advance(20_000)
    await harness.lease.renew()

    refused = await harness.append("from the past")
    tail = await harness.chunks(0)

    # Both share a directory's id here, so the old one may claim again, with its own log:
    # what it must not do is go on under its old epoch.
    assert (await harness.record()).epoch > 2 or problem(refused)[0] == 503
    assert tail.status_code in (200, 503)
    await after.aclose()


async def test_nothing_is_served_once_the_lease_may_have_run_out(harness: IngestHarness) -> None:
    await harness.append("a")
    harness.time.advance(8_001)

    for answer in (
        await harness.append("b"),
        await harness.chunks(0),
        await harness.internal.get(f"{INTERNAL}/locate", params={"timestamp": 0}),
        await harness.internal.get("/internal/v1/commits"),
    ):
        assert problem(answer) == (503, "not-owner")
    await harness.lease.renew()
    assert (await harness.append("b")).json()["first_offset"] == 1


async def test_a_lease_that_runs_out_during_the_sync_leaves_the_outcome_unknown(
    harness: IngestHarness,
) -> None:
    await harness.append("a")
    real = harness.files.fdatasync

    def slow(fd: int) -> None:
        real(fd)
        harness.time.advance(9_000)

    harness.files.fdatasync = slow  # type: ignore[method-assign]
    answer = await harness.append("b")
    harness.files.fdatasync = real  # type: ignore[method-assign]

    assert problem(answer) == (503, "not-owner")
    assert answer.json()["outcome"] == "unknown"
    await harness.lease.renew()
    assert await harness.values() == [b"a", b"b"]


async def test_a_dirty_stream_of_another_home_is_refused(
    tmp_path: Path, harness: IngestHarness
) -> None:
    await harness.append("a")
    harness.time.advance(60_000)
    other = IngestHarness(tmp_path / "other", before=harness)
    await other.start()

    assert problem(await other.append("b")) == (503, "not-owner")
    await other.aclose()


async def test_a_clean_stream_moves_after_the_lease_and_starts_where_it_is_published(
    tmp_path: Path, harness: IngestHarness
) -> None:
    await harness.append("a", "b")
    await harness.published(2)
    await harness.internal.post(f"{INTERNAL}/close")
    assert not (await harness.record()).dirty
    other = IngestHarness(tmp_path / "other", before=harness)
    await other.start()

    early = await other.append("too early")
    harness.time.advance(13_000)
    await other.lease.renew()
    late = await other.append("c")

    assert problem(early) == (503, "not-owner")
    assert late.json()["first_offset"] == 2
    moved = await other.chunks(0)
    assert problem(moved) == (409, "moved")
    assert moved.json()["local_first_offset"] == 2
    assert moved.json()["published_next"] == 2
    await harness.lease.renew()
    assert problem(await harness.append("from the past")) == (503, "not-owner")
    await other.aclose()


async def test_a_stream_that_comes_back_starts_anew_and_its_published_log_goes(
    tmp_path: Path, harness: IngestHarness
) -> None:
    await harness.append("a", "b")
    await harness.published(2)
    await harness.internal.post(f"{INTERNAL}/close")
    other = IngestHarness(tmp_path / "other", before=harness)
    await other.start()
    harness.time.advance(13_000)
    await other.lease.renew()
    await other.append("c", "d")
    await other.published(4, version=2)
    await other.aclose()
    await harness.lease.renew()

    back = await harness.append("e")

    assert back.json()["first_offset"] == 4
    assert [row["value"] for row in await harness.rows(4)] == [b"e"]
    assert list((harness.data_dir / "streams-aside").iterdir()) == []


async def test_a_clean_stop_leaves_a_stream_clean_only_if_all_is_published(
    harness: IngestHarness,
) -> None:
    await harness.append("a", "b")
    await harness.published(1)
    await harness.internal.post(f"{INTERNAL}/close")
    assert (await harness.record()).dirty

    await harness.append("c")
    await harness.published(3)
    await harness.internal.post(f"{INTERNAL}/close")
    assert not (await harness.record()).dirty


async def test_coordination_that_forgot_is_refused_and_nothing_changes(
    harness: IngestHarness,
) -> None:
    await harness.append("a")
    old = await harness.record()
    await harness.published(1, version=5)
    await harness.append("b")
    checkpoint = harness.directory / "checkpoint"
    await eventually(lambda: decode_checkpoint(checkpoint.read_bytes()).version == 5)
    after = harness.after_crash()
    await harness.streams.update(STREAM, lambda _: old)
    await after.start()

    assert problem(await after.append("c")) == (503, "coordination-regressed")
    assert await after.record() == old
    await after.aclose()


async def test_nothing_is_accepted_while_coordination_has_lost_its_generation(
    harness: IngestHarness,
) -> None:
    await harness.append("a")
    harness.show_generation(None)
    await harness.lease.renew()

    assert problem(await harness.append("b")) == (503, "coordination-regressed")

    harness.show_generation(0)
    await harness.lease.renew()
    assert (await harness.append("b")).json()["first_offset"] == 1


async def test_after_a_rebuild_the_tail_is_claimed_again_and_goes_on_at_its_own_end(
    harness: IngestHarness,
) -> None:
    await harness.append("a", "b")
    epoch = unknown_epoch(1)

    def rebuilt(record: StreamRecord) -> StreamRecord:
        return replace(
            record, generation=1, epoch=epoch, version=10**6, epochs=(EpochStart(epoch, 0),)
        )

    await harness.streams.update(STREAM, rebuilt)
    harness.show_generation(1)
    await harness.lease.renew()

    assert (await harness.append("c")).json()["first_offset"] == 2
    assert (await harness.record()).epochs == (EpochStart(epoch, 0), EpochStart(epoch + 1, 2))


async def test_a_record_of_a_rebuild_that_has_not_ended_is_not_claimed(
    harness: IngestHarness,
) -> None:
    await harness.append("a")
    after = harness.after_crash()
    await harness.streams.update(STREAM, lambda record: replace(record, generation=1))
    await after.start()

    assert problem(await after.append("b")) == (503, "coordination-regressed")
    assert (await after.record()).epoch == (await harness.record()).epoch
    await after.aclose()


async def test_a_stream_that_is_missing_where_all_are_missing_was_not_deleted(
    harness: IngestHarness,
) -> None:
    harness.show_generation(None)
    nobody = "/internal/v1/streams/0198d2a4-5b1e-7c3a-9a51-000000000000/chunks?first_offset=0"

    assert problem(await harness.internal.get(nobody)) == (503, "coordination-regressed")


async def test_appends_go_on_without_coordination_until_the_lease_runs_out(
    harness: IngestHarness,
) -> None:
    await harness.append("a")

    async def down(*_: Any, **__: Any) -> Any:
        raise CoordinationUnavailable("down")

    for call in ("get", "transact", "hold"):
        setattr(harness.coordination, call, down)

    assert (await harness.append("b")).status_code == 200
    harness.time.advance(8_001)
    await harness.lease.renew()
    assert (await harness.append("c")).status_code == 503
    assert problem(await harness.chunks(0)) == (503, "not-owner")


async def test_a_first_append_without_coordination_is_refused_and_not_written(
    harness: IngestHarness,
) -> None:
    await harness.chunks(0)

    async def down(*_: Any, **__: Any) -> Any:
        raise CoordinationUnavailable("down")

    real = harness.coordination.transact
    setattr(harness.coordination, "transact", down)  # noqa: B010
    refused = await harness.append("a")
    setattr(harness.coordination, "transact", real)  # noqa: B010

    assert problem(refused) == (503, "coordination-unavailable")
    assert refused.json()["outcome"] == "none"
    assert harness.segments() == []
    assert (await harness.append("b")).json()["first_offset"] == 0


async def test_a_damaged_stream_is_set_apart_and_others_work(harness: IngestHarness) -> None:
    await harness.append("a")
    await harness.published(1)
    await harness.append("b")
    after = harness.after_crash()
    after.segments()[0].write_bytes(b"x" * 100)
    await after.start()

    for answer in (await after.append("c"), await after.chunks(0)):
        assert problem(answer) == (502, "data-corrupt")
    other = replace(FRESH, stream_id=type(STREAM)(STREAM[:-1] + "2"), name=type(NAME)("others"))
    await after.streams.create(other)
    body = {"records": [{"value": "a"}]}
    answer = await after.client.post("/v1/streams/others/records", json=body)
    assert answer.status_code == 200
    await after.aclose()


async def test_a_second_process_on_a_directory_cannot_start(harness: IngestHarness) -> None:
    second = IngestHarness(harness.data_dir, before=harness)

    with pytest.raises(Exception, match="another ingest process"):
        await second.start()


async def test_a_node_keeps_its_id(harness: IngestHarness) -> None:
    node = (harness.data_dir / "node.json").read_bytes()
    after = harness.after_crash()
    await after.start()

    assert (after.data_dir / "node.json").read_bytes() == node
    await after.aclose()


@pytest.mark.parametrize("held", ["", "[]", "{}", '{"node_id":7}', '{"node_id":"x"}'])
def test_a_node_that_cannot_read_its_id_does_not_make_up_another(tmp_path: Path, held: str) -> None:
    (tmp_path / "node.json").write_text(held)
    with pytest.raises(Corrupt):
        load_node_id(RealFileCalls(), tmp_path, "0" * 32)
    assert (tmp_path / "node.json").read_text() == held


async def test_a_clock_that_jumps_ahead_stops_appends_until_it_is_back(
    harness: IngestHarness,
) -> None:
    await harness.append("a")
    harness.time.wall += 3_600_000
    refused = await harness.append("b")
    harness.time.wall -= 3_600_000
    back = await harness.append("c")
    harness.time.wall -= 1_000
    earlier = await harness.append("d")

    assert problem(refused) == (503, "clock-skew")
    assert refused.json()["outcome"] == "none"
    assert back.json()["first_offset"] == 1
    assert earlier.json()["timestamp"] == back.json()["timestamp"]


def test_a_former_log_goes_only_when_object_storage_has_all_of_it() -> None:
    local = LocalView(10, empty=False, epoch=3, version=2, published_next=4)
    record = replace(FRESH, home=OTHER, epoch=3, version=2, dirty=True, published_next=10)
    assert is_past(record, MINE, local)
    for changes in (
        {"published_next": 9},
        {"home": MINE},
        {"home": None},
        {"home": NOBODY},
        {"members": (OTHER, MINE)},
        {"epoch": 2},
        {"version": 1},
        {"state": StreamState.DELETING},
    ):
        assert not is_past(replace(record, **changes), MINE, local), changes


async def parted_with_too_early(path: Path) -> bool:
    """Whether a log goes of which nothing is in object storage, of a stream that moved."""
    harness = await (await IngestHarness(path / "ingest").declare()).start()
    assert (await harness.append("a")).status_code == 200
    await harness.service.streams.close(STREAM)
    await harness.streams.update(STREAM, lambda record: replace(record, home=OTHER))
    gone = await harness.service.giving.part_with(STREAM)
    assert bool(harness.segments()) is not gone
    await harness.aclose()
    return gone


async def test_a_former_log_stays_that_may_be_needed(tmp_path: Path) -> None:
    assert not await parted_with_too_early(tmp_path)


async def test_without_that_a_former_log_goes_that_may_be_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch, "all of a former log in object storage before it goes", lambda *_: True)
    assert await parted_with_too_early(tmp_path)
