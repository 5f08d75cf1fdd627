"""Deletion step by step: the tombstone, the owner, leases, pages, and what fails in between."""

import asyncio
from collections.abc import AsyncIterator, Callable
from collections.abc import Set as AbstractSet
from dataclasses import replace
from pathlib import Path

import pytest
from support.manifest import OWNER, Fault, ManifestHarness, a_fragment
from support.object_keys import fragment_key, registry_key

from bottomless.errors import Code, Fenced, NotFound, Unavailable, WrongOffset
from bottomless.formats.checks import crc32c
from bottomless.formats.stream_record import SERVED, decode_registry
from bottomless.model.config import StreamConfig
from bottomless.model.consumer import StoredOffset
from bottomless.model.names import (
    TENANT_DEFAULT,
    FullName,
    NodeId,
    Reference,
    StreamId,
    StreamName,
    Uid,
)
from bottomless.model.stream import EpochStart, Lease, StreamRecord, StreamState
from bottomless_server.coordination.base import Changes
from bottomless_server.drives.local import LocalDrive
from bottomless_server.manifest.common.failing_deletes import note_stream
from bottomless_server.manifest.mutators.mutator import Mutators
from bottomless_server.manifest.mutators.sessions import begin, intend
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.registry.registry import Registry
from bottomless_server.manifest.removal.deleter import Deleter
from bottomless_server.manifest.streams.deletion import Deletions
from bottomless_server.manifest.tree.committer import Committer
from bottomless_server.stores.consumers import ConsumerOffsets
from bottomless_server.stores.operations import Operation, OperationState
from bottomless_server.stores.streams import STREAMS_KEY, name_key, node_key

NAME = FullName(TENANT_DEFAULT, StreamName("orders"))
HOME = NodeId("1" * 32)
GRACE, DEADLINE = 1_000, 5_000
MINUTE, HOUR = 60_000, 3_600_000


class DeletionHarness:
    """A manifest with one stream, and the parts of a process that delete it."""

    def __init__(self, *, served: AbstractSet[str] = SERVED, **bounds: int) -> None:
        self._bounds = bounds
        self.manifest = ManifestHarness(
            served,
            manifest_delete_grace_ms=GRACE,
            manifest_upload_deadline_ms=DEADLINE,
            manifest_close_ms=0,
        )
        self.restart()
        self.stream_id = StreamId("")

    def restart(self) -> None:
        """The parts of another process."""
        self.registry = Registry(self.manifest.context)
        self.operations = Operations(self.manifest.context)
        self.mutators = Mutators(self.manifest.context)
        self.deletions = Deletions(
            self.manifest.context, self.registry, self.mutators, self.operations, **self._bounds
        )

    async def declare(self) -> "DeletionHarness":
        """A stream that a node owns, with a session begun, an object and a consumer."""

        def claim(record: StreamRecord) -> StreamRecord:
            return replace(
                record,
                epoch=1,
                epochs=(EpochStart(1, 0),),
                home=HOME,
                owner_url=OWNER,
                dirty=True,
                reserved_next=1_000_000,
            )

        record, _ = await self.registry.declare(NAME, StreamConfig())
        self.stream_id = record.stream_id
        await self.manifest.streams.update(self.stream_id, claim)
        committer = await Committer.open(self.manifest.context, self.stream_id)
        await begin(self.manifest.context, committer, "s1")
        await self.put(1)
        offsets = ConsumerOffsets(self.manifest.coordination)
        stored = StoredOffset(Reference("c"), 0, 1, 1)
        await offsets.change(self.stream_id, stored.consumer, lambda _: stored, 1)
        return self

    async def put(self, number: int) -> None:
        key = fragment_key(self.stream_id, number, Uid(f"{number:032x}"))
        await self.manifest.drive.put(key, [b"x"], crc32c(b"x"))

    async def objects(self) -> list[str]:
        return [facts.object_key async for facts in self.manifest.drive.list("default/")]

    async def work(self, ms: int = 0) -> None:
        self.manifest.clock.now += ms
        await self.operations.make_pass()
        await self.operations.settled()

    async def phase(self, operation: Operation) -> object:
        found = await self.operations.find(operation.operation_id)
        return found.state if found.finished else found.progress.get("phase")

    async def record(self) -> StreamRecord:
        return await self.manifest.streams.load(self.stream_id)


@pytest.fixture
async def harness() -> AsyncIterator[DeletionHarness]:
    made = await DeletionHarness().declare()
    yield made
    await made.mutators.aclose()


async def test_a_deletion_from_tombstone_to_nothing(harness: DeletionHarness) -> None:
    committed = await Committer.open(harness.manifest.context, harness.stream_id)
    operation = await harness.deletions.begin(NAME, None)

    assert harness.manifest.owners.closed == [harness.stream_id]
    record = await harness.record()
    assert harness.manifest.owners.meant == [record.home]
    assert (record.state, record.epoch) == (StreamState.DELETING, 2)
    assert await harness.manifest.coordination.get(name_key(NAME)) is None
    tombstone = registry_key(harness.stream_id, record.registry_version)
    assert (
        decode_registry(await harness.manifest.drive.get(tombstone)).state is StreamState.DELETING
    )
    with pytest.raises(NotFound):
        await intend(harness.manifest.context, committed, "s1", [7])

    await harness.work(GRACE - 1)
    assert await harness.phase(operation) == "waiting"
    assert len(await harness.objects()) > 1
    await harness.work(1)
    assert await harness.phase(operation) == "waiting again"
    assert await harness.objects() == [tombstone]

    # A fragment that was under way since before the deletion.
    await harness.put(2)
    await harness.work(DEADLINE - GRACE)
    assert await harness.objects() == []
    assert await harness.manifest.coordination.members(STREAMS_KEY, b"", 9) == []
    assert await ConsumerOffsets(harness.manifest.coordination).all(harness.stream_id) == ()
    found = await harness.operations.find(operation.operation_id)
    assert found.state == "succeeded"
    assert found.result is not None
    assert found.result["deleted_objects"] == 3


async def test_without_the_second_sweep_a_late_upload_would_stay(harness: DeletionHarness) -> None:
    """The twin: what the second sweep is for."""
    await harness.deletions.begin(NAME, None)
    await harness.work(GRACE)
    await harness.put(2)
    assert any(key.endswith("fragment") for key in await harness.objects())


async def test_nothing_goes_before_a_lease_has_ended(harness: DeletionHarness) -> None:
    until = harness.manifest.clock.now + 10 * GRACE
    lease = Lease("ls_1", 0, 10, until, "spark")
    await harness.manifest.streams.update(
        harness.stream_id, lambda record: replace(record, leases=(lease,))
    )
    operation = await harness.deletions.begin(NAME, None)
    await harness.work(10 * GRACE - 1)
    assert await harness.phase(operation) == "waiting"
    assert any(key.endswith("fragment") for key in await harness.objects())
    await harness.work(1)
    assert not any(key.endswith("fragment") for key in await harness.objects())


async def test_a_lease_that_a_clock_granted_that_was_years_ahead_does_not_hold_for_years(
    harness: DeletionHarness,
) -> None:
    lease = Lease("ls_1", 0, 10, harness.manifest.clock.now + 3_650 * 24 * HOUR, "spark")
    await harness.manifest.streams.update(
        harness.stream_id, lambda record: replace(record, leases=(lease,))
    )
    longest_ms = harness.manifest.context.settings.manifest_lease_seconds_max * 1000
    operation = await harness.deletions.begin(NAME, None)
    await harness.work(longest_ms)
    assert await harness.phase(operation) == "waiting"

    await harness.work(HOUR)
    assert not any(key.endswith("fragment") for key in await harness.objects())


async def test_a_clock_that_is_minutes_ahead_ends_no_lease_of_a_deleted_stream_early(
    harness: DeletionHarness,
) -> None:
    """Below the five minutes that are no doubt, and the bare clock was asked."""
    manifest = harness.manifest
    await manifest.context.time.look()
    end = manifest.clock.now + HOUR
    lease = Lease("ls_job", 0, 10, end, "spark")
    await manifest.streams.update(
        harness.stream_id, lambda record: replace(record, leases=(lease,))
    )
    await harness.deletions.begin(NAME, None)
    before = await harness.objects()
    await harness.work(HOUR - 4 * MINUTE)
    manifest.clock.skew_ms = 4 * MINUTE + 50_000
    for _ in range(4):
        await harness.work(MINUTE // 2)

    assert await harness.objects() == before


async def test_an_owner_that_does_not_say_that_it_stopped_is_no_202(
    harness: DeletionHarness,
) -> None:
    manifest = harness.manifest
    manifest.owners.closing = False
    await manifest.coordination.hold(node_key(HOME), b"lives", 60_000)
    with pytest.raises(Unavailable) as caught:
        await harness.deletions.begin(NAME, None)
    assert (caught.value.code, caught.value.outcome) == (Code.PEER_UNAVAILABLE, "committed")
    operation = await harness.operations.find(str(caught.value.facts["operation_id"]))

    await harness.work()
    assert await harness.phase(operation) == "closing"
    await harness.work(GRACE)
    assert await harness.phase(operation) == "closing"
    # Its lease, with the margin in it, runs out.
    await harness.work(60_000)
    assert await harness.phase(operation) == "succeeded"
    assert await harness.objects() == []


async def test_an_owner_whose_lease_ran_out_has_stopped(harness: DeletionHarness) -> None:
    harness.manifest.owners.closing = False
    await harness.deletions.begin(NAME, None)
    assert (await harness.record()).state is StreamState.DELETING


@pytest.mark.parametrize("fault", [Fault.LOST_APPLIED, Fault.LOST_LATE])
async def test_a_tombstone_whose_reply_was_lost_is_written_once(
    harness: DeletionHarness, fault: Fault
) -> None:
    harness.manifest.coordination.faults = [fault]
    operation = await harness.deletions.begin(NAME, None)
    assert harness.manifest.coordination.arrive() == 0
    assert (await harness.record()).epoch == 2
    assert (await harness.operations.find(operation.operation_id)).stream_id == harness.stream_id


async def test_of_two_deletions_at_once_one_finds_nothing(harness: DeletionHarness) -> None:
    results = await asyncio.gather(
        *(harness.deletions.begin(NAME, None) for _ in range(2)), return_exceptions=True
    )
    assert sorted(type(result).__name__ for result in results) == ["NotFound", "Operation"]


async def test_a_stale_condition_deletes_nothing(harness: DeletionHarness) -> None:
    with pytest.raises(WrongOffset):
        await harness.deletions.begin(NAME, '"other"')
    assert (await harness.record()).state is StreamState.ACTIVE


async def test_the_name_of_a_newer_stream_is_not_freed(harness: DeletionHarness) -> None:
    """A deletion that comes late must not take the name from the stream that has it now."""
    other = StreamId("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11")
    harness.manifest.coordination.write(Changes({name_key(NAME): other.encode()}))
    await harness.manifest.streams.bury(
        harness.stream_id,
        NAME,
        lambda record: replace(record, state=StreamState.DELETING),
        Changes(),
    )
    assert await harness.manifest.streams.find(NAME) == other


async def test_a_crash_before_the_tombstone_object_is_mended_before_anything_goes(
    harness: DeletionHarness,
) -> None:
    harness.manifest.drive.failing = True
    with pytest.raises(Unavailable) as caught:
        await harness.deletions.begin(NAME, None)
    assert caught.value.outcome == "committed"
    before = await harness.objects()
    harness.restart()
    await harness.work(2 * GRACE)
    assert await harness.objects() == before

    harness.manifest.drive.failing = False
    for _ in range(20):
        await harness.work(GRACE)
    assert await harness.objects() == []


async def test_objects_that_cannot_be_deleted_are_tried_again(harness: DeletionHarness) -> None:
    operation = await harness.deletions.begin(NAME, None)
    harness.manifest.drive.failing = True
    await harness.work(GRACE)
    assert await harness.phase(operation) == "sweeping"
    harness.manifest.drive.failing = False
    for _ in range(20):
        await harness.work(GRACE)
    assert await harness.phase(operation) == "succeeded"
    assert await harness.objects() == []


async def test_a_crash_in_each_page_is_gone_on_from() -> None:
    """M44: of each page one object is deleted when the process dies."""
    harness = await DeletionHarness(page_count=2).declare()
    for number in range(2, 9):
        await harness.put(number)
    operation = await harness.deletions.begin(NAME, None)
    await harness.work(GRACE - 1)
    fragments = [key for key in await harness.objects() if key.endswith("fragment")]
    for key in fragments[:-2:2]:
        await harness.manifest.drive.delete([key])
        harness.manifest.drive.failing = True
        await harness.work(1)
        harness.restart()
    harness.manifest.drive.failing = False
    assert len(await harness.objects()) > 3
    for _ in range(20):
        await harness.work(GRACE)
    assert await harness.phase(operation) == "succeeded"
    assert await harness.objects() == []


async def test_after_the_tombstone_no_fragment_is_registered_and_no_epoch_is_live(
    harness: DeletionHarness,
) -> None:
    """M43: a late uploader's register fails, also where its process knows the old record."""
    manifest = harness.manifest
    committer = await Committer.open(manifest.context, harness.stream_id)
    (uid,) = await intend(manifest.context, committer, "s1", [0])
    await harness.deletions.begin(NAME, None)
    with pytest.raises((NotFound, Fenced)):
        await committer.register("s1", [a_fragment(0, 10, uid=uid)])
    assert (await harness.record()).published_next == 0


async def test_who_waits_for_the_manifest_of_a_deleted_stream_is_woken(
    harness: DeletionHarness,
) -> None:
    mutator = harness.mutators.of(harness.stream_id)
    record, _ = await mutator.refresh()
    assert record.epoch == 1
    change = mutator.next_change
    await harness.deletions.begin(NAME, None)
    assert change.is_set()
    assert mutator.record is None
    await harness.mutators.aclose()


async def test_a_forgotten_record_ends_the_operation(harness: DeletionHarness) -> None:
    """A crash between the record's end and the operation's."""
    operation = await harness.deletions.begin(NAME, None)
    await harness.manifest.streams.forget(await harness.record())
    await harness.work(GRACE)
    assert await harness.phase(operation) == "succeeded"


async def test_objects_that_the_store_keeps_hold_up_no_others_and_are_told() -> None:
    """A page full of them was listed again for ever: found by attack. The tests before had one
    object at a time that could not be deleted, and a page has a thousand places."""
    harness = await DeletionHarness(page_count=10).declare()
    for number in range(2, 100):
        await harness.put(number)
    keys = [key for key in await harness.objects() if "/data/" in key]
    harness.manifest.drive.stubborn = set(keys[:10])
    operation = await harness.deletions.begin(NAME, None)
    deleter = Deleter(harness.manifest.context)
    for _ in range(60):
        await harness.work(MINUTE)

    found = await harness.operations.find(operation.operation_id)
    assert found.error == {"code": Code.OBJECT_STORE_UNAVAILABLE.value, "detail": "not this one"}
    assert found.progress["phase"] == "sweeping"
    assert [key for key in await harness.objects() if "/data/" in key] == keys[:10]
    counts = harness.manifest.context.counts
    # The first pass counts, and the second would sweep out what nobody knows.
    for _ in range(2):
        await deleter.make_pass()
    assert counts.failing_deletes == 1
    assert counts.failing_delete_ms > 30 * MINUTE

    harness.manifest.drive.stubborn = set()
    for _ in range(5):
        await harness.work(MINUTE)
    assert await harness.phase(operation) == OperationState.SUCCEEDED
    assert await harness.objects() == []
    await deleter.make_pass()
    assert counts.failing_deletes == 0
    await harness.mutators.aclose()


async def test_a_sweep_that_fails_is_tried_again_at_least_once_a_minute() -> None:
    harness = await DeletionHarness(page_count=10).declare()
    [key] = [key for key in await harness.objects() if "/data/" in key]
    harness.manifest.drive.stubborn = {key}
    await harness.deletions.begin(NAME, None)
    tries = 0

    async def tried() -> None:
        nonlocal tries
        tries += 1
        harness.manifest.drive.before_delete = tried

    for _ in range(10):
        harness.manifest.drive.before_delete = tried
        await harness.work(MINUTE)
    # The one that begins it waits for its graces first.
    assert tries >= 9
    await harness.mutators.aclose()


async def test_what_is_counted_of_a_stream_goes_with_its_record() -> None:
    """A crash between the two leaves it, and the deleter finds it."""
    harness = await DeletionHarness(page_count=10).declare()
    coordination = harness.manifest.coordination
    await note_stream(coordination, f"default/{harness.stream_id}/", 1)
    deleter = Deleter(harness.manifest.context)
    for _ in range(2):
        await deleter.make_pass()
    assert harness.manifest.context.counts.failing_deletes == 1
    await harness.deletions.begin(NAME, None)
    for _ in range(5):
        await harness.work(MINUTE)
    for _ in range(2):
        await deleter.make_pass()
    assert harness.manifest.context.counts.failing_deletes == 0
    await harness.mutators.aclose()


def below(root: Path) -> list[str]:
    return sorted(path.name for path in root.rglob("*"))


class _Confirmed(LocalDrive):
    """With a clock of its own, so that the manifest's is believed."""

    has_own_clock = True
    now: Callable[[], int]

    async def clock(self) -> int:
        return self.now()


async def test_a_deleted_stream_leaves_no_directory(tmp_path: Path) -> None:
    """The simulation looks for tables that grow with streams that are gone; its drive is in
    memory, and has no directories."""
    harness = DeletionHarness()
    drive = _Confirmed(tmp_path)
    harness.manifest.context = replace(harness.manifest.context, drive=drive)
    drive.now = harness.manifest.clock
    harness.restart()
    record, _ = await harness.registry.declare(NAME, StreamConfig())
    key = fragment_key(record.stream_id, 1, Uid(f"{1:032x}"))
    await drive.put(key, [b"x"], crc32c(b"x"))
    operation = await harness.deletions.begin(NAME, None)
    for _ in range(5):
        await harness.work(15 * MINUTE)
    assert await harness.phase(operation) == OperationState.SUCCEEDED
    assert below(tmp_path) == [".tmp", "default"]
    await harness.mutators.aclose()
    await drive.aclose()
