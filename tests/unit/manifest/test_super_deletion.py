"""Deleting and changing a super stream: all partitions, whatever is cut off."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from support.manifest import NODE, OWNER, Crash, Fault, ManifestHarness
from unit.manifest.test_super_registry import NAME, THREE, WEEK, a_harness, named, super_objects

from bottomless.errors import NotFound, Unavailable, WrongOffset
from bottomless.model.config import StreamConfig
from bottomless.model.names import FullName
from bottomless.model.offset_spec import parse_timestamp
from bottomless.model.stream import StreamState
from bottomless.model.super_stream import SuperRecord, SuperState
from bottomless_server.manifest.mutators.mutator import Mutators
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.registry.registry import Registry
from bottomless_server.manifest.registry.super_description import super_etag
from bottomless_server.manifest.streams.deletion import Deletions
from bottomless_server.manifest.streams.super_deletion import SuperDeletions
from bottomless_server.stores.freed_names import shown_names
from bottomless_server.stores.operations import OPERATIONS_KEY, Operation
from bottomless_server.stores.streams import STREAMS_KEY
from bottomless_server.stores.supers import SUPERS_KEY


class Deleting:
    """A manifest process, as far as it deletes."""

    def __init__(self, harness: ManifestHarness) -> None:
        self.harness = harness
        self.registry = Registry(harness.context)
        self.mutators = Mutators(harness.context)
        self.operations = Operations(harness.context)
        self.deletions = Deletions(harness.context, self.registry, self.mutators, self.operations)
        self.supers = SuperDeletions(
            harness.context, self.registry, self.deletions, self.operations
        )

    async def begin(self, if_match: str | None = None) -> Operation:
        return await self.supers.begin(NAME, if_match)

    async def finish(self) -> None:
        """Let all time pass that anything waits for."""
        for _ in range(60):
            await self.operations.make_pass()
            await self.operations.settled()
            queued = await self.harness.coordination.due(OPERATIONS_KEY, 2**52, 100)
            found = [await self.operations.find(one.member.decode("ascii")) for one in queued]
            if all(one.finished for one in found):
                return
            self.harness.clock.now += 600_000

    async def aclose(self) -> None:
        await self.mutators.aclose()


async def nothing_is_left(harness: ManifestHarness) -> None:
    for index in (STREAMS_KEY, SUPERS_KEY, "bottomless:super-names:default"):
        assert await harness.coordination.member_count(index) == 0
    assert [facts async for facts in harness.drive.list("default/")] == []


async def is_gone(harness: ManifestHarness, name: FullName) -> bool:
    registry = Registry(harness.context)
    for find in (registry.find, registry.supers.find):
        try:
            await find(name)
        except NotFound:
            continue
        return False
    return True


async def test_a_deleted_super_stream_goes_with_all_its_partitions() -> None:
    """P10."""
    harness = a_harness()
    deleting = Deleting(harness)
    await deleting.registry.supers.declare(NAME, THREE)
    before = await shown_names(harness.coordination)
    operation = await deleting.begin()

    assert await shown_names(harness.coordination) != before
    for name in (NAME, named(0), named(1), named(2)):
        assert await is_gone(harness, name)
    assert [one.state for one in await super_objects(harness)] == [
        SuperState.ACTIVE,
        SuperState.DELETING,
    ]
    again, created = await deleting.registry.supers.declare(NAME, THREE)
    assert created
    assert again.super_id != operation.arguments["super_id"]

    await deleting.finish()
    done = await deleting.operations.find(operation.operation_id)
    assert done.result == {"super_id": operation.arguments["super_id"], "partitions": 3}
    assert await super_objects(harness) == [again]
    await deleting.begin()
    await deleting.finish()
    await nothing_is_left(harness)
    await deleting.aclose()


async def test_a_deletion_says_until_when_it_waits_and_then_looks_soon() -> None:
    harness = a_harness()
    deleting = Deleting(harness)
    await deleting.registry.supers.declare(NAME, THREE)
    operation = await deleting.begin()

    async def passed(ms: int) -> Operation:
        harness.clock.now += ms
        for _ in range(3):
            await deleting.operations.make_pass()
            await deleting.operations.settled()
        return await deleting.operations.find(operation.operation_id)

    settings = harness.context.settings
    grace_ms = max(settings.manifest_delete_grace_ms, settings.manifest_upload_deadline_ms)
    waiting = (await passed(0)).progress
    ends_at = parse_timestamp(waiting["waits_until"])
    assert ends_at == operation.created_at + grace_ms
    assert (waiting["phase"], waiting["partitions_left"]) == ("waiting", 3)

    over = await passed(ends_at - harness.clock.now)
    looks = 0
    while not over.finished and looks < 20:
        over, looks = await passed(1_000), looks + 1
    assert over.result == {"super_id": operation.arguments["super_id"], "partitions": 3}
    assert looks <= 5
    await deleting.aclose()


async def test_a_super_stream_is_deleted_as_it_was_seen_or_not_at_all() -> None:
    harness = a_harness()
    deleting = Deleting(harness)
    record, _ = await deleting.registry.supers.declare(NAME, THREE)
    changed = await deleting.registry.supers.update(NAME, lambda _: WEEK)
    with pytest.raises(WrongOffset):
        await deleting.begin(super_etag(record))
    assert not await is_gone(harness, named(0))
    await deleting.begin(super_etag(changed))
    with pytest.raises(NotFound):
        await deleting.begin()
    await deleting.aclose()


async def test_a_deletion_says_that_it_is_done_though_an_owner_is_silent() -> None:
    harness = a_harness(manifest_close_ms=50)
    deleting = Deleting(harness)
    record, _ = await deleting.registry.supers.declare(NAME, THREE)
    harness.owners.closing = False
    owned = record.partitions[1].stream_id
    await harness.streams.update(
        owned, lambda one: replace(one, home=NODE, owner_url=OWNER, dirty=True, epoch=1)
    )
    await harness.coordination.hold(f"bottomless:node:{NODE}", b"alive", 2**40)
    with pytest.raises(Unavailable) as caught:
        await deleting.begin()
    assert caught.value.outcome == "committed"
    assert (await harness.streams.load(owned)).state is StreamState.DELETING
    harness.owners.closing = True
    await deleting.finish()
    await nothing_is_left(harness)
    await deleting.aclose()


@pytest.mark.parametrize("fault", [Fault.LOST_APPLIED, Fault.LOST_LATE])
async def test_a_deletion_whose_reply_was_lost_is_begun_once(fault: Fault) -> None:
    harness = a_harness()
    deleting = Deleting(harness)
    await deleting.registry.supers.declare(NAME, THREE)
    harness.coordination.faults = [fault]
    await deleting.begin()
    assert harness.coordination.arrive() == 0
    # Its own operation, and one of each partition.
    assert await harness.coordination.member_count(OPERATIONS_KEY) == 4
    await deleting.aclose()


async def test_wherever_a_deletion_is_cut_off_it_goes_on_to_its_end_or_has_not_begun() -> None:
    harness = a_harness()
    deleting = Deleting(harness)
    await deleting.registry.supers.declare(NAME, THREE)
    harness.fuse.left = 1_000
    await deleting.begin()
    assert harness.fuse.left is not None
    changes = 1_000 - harness.fuse.left
    await deleting.aclose()
    begun = 0
    for place in range(changes):
        harness = a_harness()
        first = Deleting(harness)
        await first.registry.supers.declare(NAME, THREE)
        harness.fuse.left = place
        with pytest.raises((Crash, Unavailable)):
            await first.begin()
        harness.fuse.left = None
        await first.aclose()

        later = Deleting(harness)
        if not await is_gone(harness, NAME):
            record = await later.registry.supers.find(NAME)
            assert record.state is SuperState.ACTIVE
            assert not await is_gone(harness, named(2))
        else:
            begun += 1
            await later.finish()
            await nothing_is_left(harness)
        await later.aclose()
    assert begun > changes // 2


async def test_a_change_of_configuration_reaches_all_partitions() -> None:
    harness = a_harness()
    registry = Registry(harness.context)
    record, _ = await registry.supers.declare(NAME, THREE)
    changed = await registry.supers.update(NAME, lambda _: WEEK)
    assert (changed.config, changed.config_version) == (WEEK, 2)
    assert super_etag(changed) != super_etag(record)
    for index in range(3):
        stream = await registry.find(named(index))
        assert (stream.config, stream.config_version) == (WEEK, 2)
    assert (await super_objects(harness))[-1].config == WEEK
    assert await registry.supers.update(NAME, lambda _: WEEK) == changed


async def test_wherever_a_change_is_cut_off_the_next_touch_ends_it() -> None:
    harness = a_harness()
    await Registry(harness.context).supers.declare(NAME, THREE)
    harness.fuse.left = 1_000
    await Registry(harness.context).supers.update(NAME, lambda _: WEEK)
    assert harness.fuse.left is not None
    changed = 0
    for place in range(1_000 - harness.fuse.left):
        harness = a_harness()
        await Registry(harness.context).supers.declare(NAME, THREE)
        harness.fuse.left = place
        with pytest.raises(Crash):
            await Registry(harness.context).supers.update(NAME, lambda _: WEEK)
        harness.fuse.left = None
        later = Registry(harness.context)
        found = await later.supers.find(NAME)
        changed += found.config == WEEK
        for index in range(3):
            assert (await later.find(named(index))).config == found.config
        assert (await super_objects(harness))[-1].config == found.config
    assert changed


def on_day(day: int) -> Callable[[SuperRecord], StreamConfig]:
    return lambda _: WEEK.model_copy(update={"labels": {"day": str(day)}})


async def test_only_the_newest_super_objects_stay() -> None:
    harness = a_harness()
    supers = Registry(harness.context).supers
    await supers.declare(NAME, THREE)
    for day in range(11):
        await supers.update(NAME, on_day(day))
    versions = [one.registry_version for one in await super_objects(harness)]
    assert versions == [9, 10, 11, 12]
