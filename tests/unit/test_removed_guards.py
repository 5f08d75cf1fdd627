"""Guards taken out one at a time: the test that stands for each of them then fails.

What a guard holds is shown where it belongs; here it is shown that it is the guard that holds
it. A test that passes with its guard and without it shows nothing. All guards of the product,
with their places and with such a run for each, stand in docs/guarantees.md, "Guards".
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from contracts.test_drives import test_a_key_is_put_once as a_key_is_put_once
from contracts.test_drives import (
    test_bytes_that_do_not_match_their_checksum_are_not_stored as damage_is_refused,
)
from contracts.test_local_drive import (
    test_bytes_are_durable_before_they_have_a_name_and_the_name_before_the_return as named_durably,
)
from support.asgi import client_of
from support.guards import guarded, remove
from support.lane import by_lane

from bottomless.model.fragment import FragmentInfo
from bottomless_server.drives.drive_calls import DriveCalls
from bottomless_server.drives.local import LocalDrive
from bottomless_server.ingest.log import recovery, recovery_damage
from bottomless_server.ingest.log.recovery import Recovered
from unit.ingest import test_append_order, test_failing_disk, test_ownership, test_recovery
from unit.ingest.harness import IngestHarness, RecordedFiles
from unit.manifest import test_edits, test_publish_decision
from unit.reader import test_reader_records
from unit.reader.harness import ReaderHarness
from unit.stores import test_nodes

Removal = Callable[[pytest.MonkeyPatch], None]
FAILS: Final = (AssertionError, pytest.fail.Exception)


def _nothing(*_: Any) -> None:
    return None


def _without_index(patch: pytest.MonkeyPatch) -> None:
    remove(patch, "index records, written after the sync", _nothing)


def _without_later_round(patch: pytest.MonkeyPatch) -> None:
    remove(patch, "a later round after a bad chunk", lambda *_: False)


def _without_checkpoint(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "CHECKPOINT_NAME", "nothing is called so")


def _without_body_checksum(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery_damage, "verify_body", _nothing)


def _without_groups(patch: pytest.MonkeyPatch) -> None:
    remove(patch, "the flag that an append goes on", lambda _: False)


def _without_writing_again(patch: pytest.MonkeyPatch) -> None:
    remove(patch, "the second write of what no index record proves", _nothing)


def _a_round_behind_a_failed_sync(directory: Path) -> None:
    test = (
        test_recovery.test_what_is_offered_after_a_death_behind_a_failed_sync_outlives_a_power_cut
    )
    test(directory, 4, indexed=True)


def _a_bad_last_chunk(directory: Path) -> None:
    test_recovery.test_a_bad_chunk_that_the_index_names_is_damage_and_the_others_stay(directory, 2)


def _a_torn_group(directory: Path) -> None:
    test = test_recovery.test_a_log_cut_at_any_byte_of_its_last_two_rounds_keeps_the_whole_ones
    test(directory, 20_000)


RECOVERY: Final[dict[str, tuple[Removal, Callable[[Path], None]]]] = {
    "the index, which tells damage from tearing": (_without_index, _a_bad_last_chunk),
    "a later round, which tells it too": (
        _without_later_round,
        test_recovery.test_a_bad_chunk_with_a_later_round_behind_it_is_damage_and_stays,
    ),
    "the checkpoint": (
        _without_checkpoint,
        test_recovery.test_damage_below_the_checkpoint_is_never_cut,
    ),
    "the checksum of a chunk": (
        _without_body_checksum,
        test_recovery.test_damage_below_the_checkpoint_is_never_cut,
    ),
    "the second write of what no index record proves": (
        _without_writing_again,
        _a_round_behind_a_failed_sync,
    ),
    "the end of a group": (
        _without_groups,
        _a_torn_group,
    ),
}


@pytest.mark.parametrize("guard", RECOVERY)
def test_without_a_guard_of_recovery_its_test_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guard: str
) -> None:
    removal, test = RECOVERY[guard]
    test(tmp_path / "with")
    removal(monkeypatch)
    with pytest.raises(FAILS):
        test(tmp_path / "without")


def _without_memory_of_coordination(patch: pytest.MonkeyPatch) -> None:
    name = "what a disk has seen of coordination"
    view = guarded(name)

    def forgetful(found: Recovered) -> Any:
        return replace(view(found), epoch=0, version=0, published_next=0)

    remove(patch, name, forgetful)


def _without_generation(patch: pytest.MonkeyPatch) -> None:
    remove(patch, "the generation", lambda *_: False)


def _without_asking_the_bucket_again(patch: pytest.MonkeyPatch) -> None:
    remove(patch, "what the bucket knows of a home", lambda record, home, _: home == record.home)


def _without_reservation(patch: pytest.MonkeyPatch) -> None:
    async def reserved(*_: Any) -> None:
        return None

    remove(patch, "reserved offsets", reserved)


def _without_cut_after_a_failed_sync(patch: pytest.MonkeyPatch) -> None:
    remove(patch, "the cut after a failed sync", lambda size, *_: size)


def _without_cut_after_a_short_write(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RecordedFiles, "truncate", _nothing)


INGEST: Final[dict[str, tuple[Removal, Callable[[IngestHarness], Awaitable[None]]]]] = {
    "what a disk has seen of coordination": (
        _without_memory_of_coordination,
        test_ownership.test_coordination_that_forgot_is_refused_and_nothing_changes,
    ),
    "the generation": (
        _without_generation,
        test_ownership.test_nothing_is_accepted_while_coordination_has_lost_its_generation,
    ),
    "what the bucket knows of a home": (
        _without_asking_the_bucket_again,
        test_ownership.test_a_start_between_the_claim_and_the_bucket_acknowledges_nothing_either,
    ),
    "the reservation of offsets": (
        _without_reservation,
        test_ownership.test_the_first_append_makes_the_stream_dirty_and_reserves,
    ),
    "the cut after a failed sync": (
        _without_cut_after_a_failed_sync,
        test_failing_disk.test_a_sync_is_not_tried_again_on_what_it_failed_for,
    ),
    "the cut after a short write": (
        _without_cut_after_a_short_write,
        test_failing_disk.test_a_short_write_is_cut_and_synced_before_the_next_one,
    ),
}


@pytest.mark.parametrize("guard", INGEST)
async def test_without_a_guard_of_ingest_its_test_fails(
    harness: IngestHarness, monkeypatch: pytest.MonkeyPatch, guard: str
) -> None:
    removal, test = INGEST[guard]
    removal(monkeypatch)
    with pytest.raises(FAILS):
        await test(harness)


ON_THE_LANE: Final = ("the cut after a failed sync", "the cut after a short write")


@pytest.mark.parametrize("guard", ON_THE_LANE)
async def test_what_a_guard_of_ingest_prevents_it_prevents_on_the_lane_too(
    harness: IngestHarness, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, guard: str
) -> None:
    removal, test = INGEST[guard]
    harness.client = client_of(by_lane(harness.service))
    await test(harness)
    other = await IngestHarness(tmp_path / "without").declare()
    await other.start()
    other.client = client_of(by_lane(other.service))
    removal(monkeypatch)
    with pytest.raises(FAILS):
        await test(other)
    await other.aclose()


@pytest.fixture
async def harness(tmp_path: Path) -> Any:
    """A started ingest with one empty stream."""
    made = await IngestHarness(tmp_path / "ingest").declare()
    await made.start()
    yield made
    await made.aclose()


async def test_without_the_sync_of_a_directory_a_segment_may_lose_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = test_append_order.test_a_new_segment_and_its_name_are_synced_before_its_first_reply
    await test(tmp_path / "with")
    monkeypatch.setattr(RecordedFiles, "fsync_dir", _nothing)
    with pytest.raises(FAILS):
        await test(tmp_path / "without")


def test_without_the_contiguity_of_runs_a_hole_is_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The tree refuses it once more: an assertion, since nobody else may have let it through."""

    def all_of_them(held: dict[int, FragmentInfo], _: int) -> tuple[FragmentInfo, ...]:
        return tuple(held[first] for first in sorted(held))

    remove(monkeypatch, "contiguity of runs", all_of_them)
    with pytest.raises(FAILS):
        test_publish_decision.test_a_hole_holds_back_later_fragments_until_it_closes()


def test_without_the_epoch_in_its_exec_an_owner_of_the_past_reserves_offsets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    test = test_ownership.test_reserving_makes_a_stream_dirty_and_raises_the_bound_when_half_is_used
    test()
    remove(monkeypatch, "the epoch in the EXEC of an owner", _nothing)
    with pytest.raises(FAILS):
        test()


async def test_without_the_look_at_the_home_a_stream_is_taken_from_who_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "the home's lease, at the fence of a takeover"
    fence = guarded(name)

    def blind(*asked: Any, home_held: bool) -> Any:
        del home_held
        return fence(*asked, home_held=False)

    comes_back = test_edits.test_a_home_that_comes_back_between_the_check_and_the_exec_loses_nothing
    await comes_back()
    remove(monkeypatch, name, blind)
    with pytest.raises(FAILS):
        await comes_back()


async def test_without_the_checksum_of_a_node_another_one_is_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pointer's: it tells that node from a whole one that was not meant."""
    await test_nodes.test_another_size_or_checksum_than_was_noted_is_damage(0, 1)
    remove(monkeypatch, "the checksum of a manifest node", lambda data, size, _: len(data) == size)
    with pytest.raises(FAILS):
        await test_nodes.test_another_size_or_checksum_than_was_noted_is_damage(0, 1)


async def test_without_its_memory_of_epochs_a_reader_believes_an_owner_of_the_past(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = ReaderHarness()
    await test_reader_records.test_an_owner_of_an_older_epoch_is_not_believed(harness)
    await harness.aclose()
    remove(monkeypatch, "the highest epoch that a reader has seen", lambda *_: 0)
    harness = ReaderHarness()
    with pytest.raises(KeyError, match="code"):
        await test_reader_records.test_an_owner_of_an_older_epoch_is_not_believed(harness)
    await harness.aclose()


async def test_without_the_checksum_of_a_put_damaged_bytes_get_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drives = LocalDrive(tmp_path / "with"), LocalDrive(tmp_path / "without")
    await damage_is_refused(drives[0])
    remove(monkeypatch, "the checksum of a put, before the object is there", _nothing)
    with pytest.raises(FAILS):
        await damage_is_refused(drives[1])
    for drive in drives:
        await drive.aclose()


class _Replacing(DriveCalls):
    """A directory in which the second of a name wins."""

    def link(self, source: Path, target: Path) -> None:
        target.unlink(missing_ok=True)
        super().link(source, target)


async def test_without_put_if_absent_a_second_writer_overwrites(tmp_path: Path) -> None:
    drives = LocalDrive(tmp_path / "with"), LocalDrive(tmp_path / "without", _Replacing())
    await a_key_is_put_once(drives[0])
    with pytest.raises(FAILS):
        await a_key_is_put_once(drives[1])
    for drive in drives:
        await drive.aclose()


async def test_without_the_sync_of_its_directory_an_object_may_lose_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("with", "without"):
        (tmp_path / name).mkdir()
    await named_durably(tmp_path / "with")
    remove(monkeypatch, "sync of the directory of an object (directory drive)", _nothing)
    with pytest.raises(FAILS):
        await named_durably(tmp_path / "without")
