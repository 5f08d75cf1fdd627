"""The registry behind HTTP: versions of its objects, lost replies, a coordination that was emptied."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import pytest
from support.manifest import Fault, ManifestHarness, a_record
from support.object_keys import registry_key

from bottomless.errors import Code, Overloaded, Unavailable, WrongOffset
from bottomless.formats.stream_record import decode_registry, encode_record
from bottomless.model.config import StreamConfig, parse_config
from bottomless.model.names import TENANT_DEFAULT, FullName, NodeId, StreamId, StreamName
from bottomless.model.stream import StreamRecord, StreamState
from bottomless_server.coordination.base import Changes, CoordinationUnknown, Decide, Room, Values
from bottomless_server.coordination.memory import MemoryCoordination
from bottomless_server.core.preconditions import require_match
from bottomless_server.manifest.registry.registry import Registry
from bottomless_server.manifest.registry.stream_description import etag
from bottomless_server.stores.streams import DELETES_KEY, GENERATION_KEY, STREAMS_KEY, Streams

NAME = FullName(TENANT_DEFAULT, StreamName("orders"))
WEEK = parse_config({"retention": {"max_age": "7D"}})
DAY = parse_config({"retention": {"max_age": "1D"}})


@pytest.fixture
def harness() -> ManifestHarness:
    made = ManifestHarness()
    made.coordination.write(Changes({GENERATION_KEY: b'{"generation":0,"bucket":true}'}))
    made.streams.generation = 0
    return made


async def newest(harness: ManifestHarness, stream_id: StreamId) -> StreamRecord:
    """What a rebuild would find of a stream."""
    prefix = f"default/{stream_id}/stream."
    keys = [facts.object_key async for facts in harness.drive.list(prefix)]
    return decode_registry(await harness.drive.get(max(keys)))


def to(config: StreamConfig, if_match: str | None = None) -> Callable[[StreamRecord], StreamConfig]:
    def change(record: StreamRecord) -> StreamConfig:
        require_match(if_match, etag(record))
        return config

    return change


async def test_every_change_is_a_new_object_and_the_older_goes_only_then(
    harness: ManifestHarness,
) -> None:
    registry = Registry(harness.context)
    record, _ = await registry.declare(NAME, StreamConfig())
    changed = await registry.update(NAME, to(WEEK))

    assert (changed.registry_version, changed.config_version) == (2, 2)
    assert (await newest(harness, record.stream_id)).config == WEEK
    later = harness.clock.now + harness.context.settings.manifest_root_grace_ms
    [due] = await harness.coordination.due(DELETES_KEY, later, 10)
    assert due.member.decode() == registry_key(record.stream_id, 1)


async def test_an_older_object_stays_while_the_newer_is_not_there(harness: ManifestHarness) -> None:
    registry = Registry(harness.context)
    record, _ = await registry.declare(NAME, StreamConfig())
    harness.drive.failing = True
    with pytest.raises(Unavailable) as caught:
        await registry.update(NAME, to(WEEK))
    assert caught.value.outcome == "committed"
    assert await harness.coordination.due(DELETES_KEY, 2**50, 10) == []
    assert (await newest(harness, record.stream_id)).config == StreamConfig()

    harness.drive.failing = False
    # Another process, after the crash of the first.
    await Registry(harness.context).find(NAME)
    assert (await newest(harness, record.stream_id)).config == WEEK
    assert len(await harness.coordination.due(DELETES_KEY, 2**50, 10)) == 1


async def test_a_claim_that_changed_the_home_is_noticed_at_the_next_touch(
    harness: ManifestHarness,
) -> None:
    registry = Registry(harness.context)
    record, _ = await registry.declare(NAME, StreamConfig())
    home = NodeId("1" * 32)
    await harness.streams.update(record.stream_id, lambda record: replace(record, home=home))
    found = await registry.find(NAME)

    assert found.registry_version == 2
    assert (await newest(harness, record.stream_id)).home == home
    puts = len(harness.drive.calls)
    assert (await registry.find(NAME)).registry_version == 2
    assert len(harness.drive.calls) == puts


async def test_of_two_processes_with_different_records_the_newest_one_counts(
    harness: ManifestHarness,
) -> None:
    record, _ = await Registry(harness.context).declare(NAME, StreamConfig())
    old = await harness.streams.load(record.stream_id)
    home = NodeId("1" * 32)
    new = await harness.streams.update(record.stream_id, lambda record: replace(record, home=home))
    await Registry(harness.context).ensure_object(new)
    # One that read the record before the claim, and comes late.
    await Registry(harness.context).ensure_object(old)
    await Registry(harness.context).ensure_object(await harness.streams.load(record.stream_id))
    assert (await newest(harness, record.stream_id)).home == home


@pytest.mark.parametrize("fault", [Fault.LOST_APPLIED, Fault.LOST_LATE])
async def test_a_change_whose_reply_was_lost_is_made_once(
    harness: ManifestHarness, fault: Fault
) -> None:
    registry = Registry(harness.context)
    record, _ = await registry.declare(NAME, StreamConfig())
    harness.coordination.faults = [fault]
    changed = await registry.update(NAME, to(WEEK, etag(record)))
    assert harness.coordination.arrive() == 0
    assert (changed.config, changed.config_version) == (WEEK, 2)
    assert (await harness.streams.load(record.stream_id)).config_version == 2


async def test_two_lost_replies_are_an_unknown_outcome(harness: ManifestHarness) -> None:
    registry = Registry(harness.context)
    await registry.declare(NAME, StreamConfig())
    harness.coordination.faults = [Fault.LOST_LATE, Fault.LOST_LATE]
    with pytest.raises(CoordinationUnknown):
        await registry.update(NAME, to(WEEK))


async def test_of_two_changes_from_one_state_the_second_is_refused(
    harness: ManifestHarness,
) -> None:
    registry = Registry(harness.context)
    record, _ = await registry.declare(NAME, StreamConfig())
    await registry.update(NAME, to(WEEK, etag(record)))
    with pytest.raises(WrongOffset) as caught:
        await registry.update(NAME, to(DAY, etag(record)))
    assert caught.value.code is Code.ETAG_MISMATCH
    assert caught.value.facts == {"current_etag": f'"{record.stream_id}.c2"'}
    # The twin: without the condition the second change wins silently.
    assert (await registry.update(NAME, to(DAY))).config == DAY


async def test_a_change_meets_a_change_in_the_middle_of_its_transaction(
    harness: ManifestHarness,
) -> None:
    registry = Registry(harness.context)
    record, _ = await registry.declare(NAME, StreamConfig())
    tag, seen = etag(record), []

    def change(current: StreamRecord) -> StreamConfig:
        seen.append(current.config_version)
        if len(seen) == 1:
            other = replace(current, config=DAY, config_version=2)
            key = f"bottomless:stream:{record.stream_id}"
            harness.coordination.write(Changes({key: encode_record(other)}))
        require_match(tag, etag(current))
        return WEEK

    with pytest.raises(WrongOffset):
        await registry.update(NAME, change)
    assert seen == [1, 2]
    assert (await harness.streams.load(record.stream_id)).config == DAY


@pytest.mark.parametrize("held", [None, b'{"generation":7,"bucket":true}'])
async def test_a_coordination_that_was_emptied_or_is_another_one_is_never_a_404(
    harness: ManifestHarness, held: bytes | None
) -> None:
    registry = Registry(harness.context)
    harness.coordination.write(Changes({GENERATION_KEY: held}))
    for call in (
        registry.declare(NAME, StreamConfig()),
        registry.find(NAME),
        registry.load(StreamId("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11")),
        harness.streams.names("default", StreamState.ACTIVE, b"", 10),
    ):
        with pytest.raises(Unavailable) as caught:
            await call
        assert caught.value.code is Code.COORDINATION_REGRESSED
        assert not caught.value.retryable
    assert await harness.coordination.members(STREAMS_KEY, b"", 10) == []


async def test_without_the_watch_a_stream_would_be_created_in_an_emptied_store(
    harness: ManifestHarness,
) -> None:
    """The twin: who does not know the generation creates streams that a rebuild meets."""
    harness.coordination.write(Changes({GENERATION_KEY: None}))
    harness.streams.generation = None
    assert (await Registry(harness.context).declare(NAME, StreamConfig())).created


T = TypeVar("T")


class _FlushedOnce(MemoryCoordination):
    """Loses the generation while the first transaction looks at it."""

    flushed = False

    async def transact(
        self,
        redis_keys: Sequence[str],
        decide: Decide[T],
        attempts: int = 16,
        room: Room | None = None,
    ) -> T:
        def look(values: Values) -> tuple[Changes, T]:
            decided = decide(values)
            if not self.flushed:
                self.flushed = True
                self.write(Changes({GENERATION_KEY: None}))
            return decided

        return await super().transact(redis_keys, look, attempts, room)


async def test_the_generation_may_go_in_the_middle_of_a_creation(harness: ManifestHarness) -> None:
    coordination = _FlushedOnce(harness.clock)
    coordination.write(Changes({GENERATION_KEY: b'{"generation":0,"bucket":true}'}))
    streams = Streams(coordination)
    streams.generation = 0
    with pytest.raises(Unavailable) as caught:
        await streams.create(a_record())
    assert caught.value.code is Code.COORDINATION_REGRESSED
    assert await coordination.members(STREAMS_KEY, b"", 10) == []


def named(name: str, tenant: str = TENANT_DEFAULT) -> FullName:
    return FullName(tenant, StreamName(name))


async def test_a_tenant_has_only_so_many_streams_whatever_others_have() -> None:
    harness = ManifestHarness(manifest_tenant_stream_count_max=2)
    registry = Registry(harness.context)
    for name in ("a", "b"):
        await registry.declare(named(name, "acme"), StreamConfig())
    for name in ("a", "b"):
        await registry.declare(named(name), StreamConfig())
    with pytest.raises(Overloaded) as caught:
        await registry.declare(named("c"), StreamConfig())
    assert (caught.value.code, caught.value.facts) == (Code.QUOTA_EXCEEDED, {"limit": 2})
    assert not (await registry.declare(named("a"), StreamConfig())).created
    with pytest.raises(Overloaded):
        await registry.declare(named("c", "acme"), StreamConfig())
