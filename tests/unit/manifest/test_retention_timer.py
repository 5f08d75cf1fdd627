"""The walk that evaluates the retention of all streams."""

from dataclasses import replace

import pytest
from support.manifest import (
    NEIGHBOUR,
    OF_OTHERS,
    SERVES_NONE,
    STREAM,
    ManifestHarness,
    a_record,
    damage_a_neighbour,
)
from unit.manifest.test_edits import tens

from bottomless.model.config import parse_config
from bottomless.model.names import StreamId, StreamName
from bottomless.model.stream import StreamState
from bottomless_server.manifest.mutators.mutator import Mutators
from bottomless_server.manifest.removal.retention_timer import RetentionTimer
from bottomless_server.stores.streams import stream_key


async def limited(harness: ManifestHarness, **retention: object) -> None:
    config = parse_config({"retention": retention})
    await harness.streams.update(STREAM, lambda record: replace(record, config=config))


async def test_a_stream_that_nobody_touches_is_evaluated() -> None:
    harness = ManifestHarness()
    await tens(harness, 5)
    await limited(harness, max_bytes=1)
    mutators = Mutators(harness.context)

    assert await RetentionTimer(harness.context, mutators).walk() == 1

    assert [leaf.first_offset for leaf in await harness.leaves()] == [40]
    await mutators.aclose()


async def test_streams_without_a_limit_without_an_object_or_being_deleted_cost_nothing() -> None:
    harness = ManifestHarness()
    await tens(harness, 5)
    for number, state in enumerate(StreamState):
        await harness.streams.create(
            a_record(
                stream_id=StreamId(f"0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c{number:02x}"),
                name=StreamName(f"other-{number}"),
                config=parse_config({"retention": {"max_bytes": 1}}),
                state=state,
            )
        )
    mutators = Mutators(harness.context)

    assert await RetentionTimer(harness.context, mutators).walk() == 0

    await mutators.aclose()


async def test_one_process_walks_and_another_after_its_lease() -> None:
    harness = ManifestHarness(manifest_retention_interval_ms=1_000)
    await tens(harness, 5)
    await limited(harness, max_bytes=1)
    mutators = Mutators(harness.context)
    first, second = (RetentionTimer(harness.context, mutators) for _ in range(2))
    assert await first.walk() == 1

    assert await second.walk() == 0
    assert await first.walk() == 1
    harness.clock.now += 12_000
    assert await second.walk() == 1

    await mutators.aclose()


async def test_streams_that_pause_are_counted_for_the_alarm() -> None:
    harness = ManifestHarness()
    await tens(harness, 5)
    await limited(harness, max_age="1s")
    harness.drive.clock_skew_ms = 3_600_000
    mutators = Mutators(harness.context)
    timer = RetentionTimer(harness.context, mutators)

    await timer.walk()
    assert timer.paused_count == 1
    harness.drive.clock_skew_ms = 0
    harness.clock.now += 60_000
    await timer.walk()

    assert timer.paused_count == 0
    assert [leaf.first_offset for leaf in await harness.leaves()] == [40]
    await mutators.aclose()


@pytest.mark.parametrize("which", OF_OTHERS)
async def test_a_record_that_cannot_be_read_ends_the_walk_for_no_other(which: str) -> None:
    """All tests of the walk had records of this very release."""
    harness = ManifestHarness(SERVES_NONE)
    await tens(harness, 5)
    await limited(harness, max_bytes=1)
    await damage_a_neighbour(harness, count=0)
    await OF_OTHERS[which](harness)
    before = harness.coordination.peek(stream_key(NEIGHBOUR))
    mutators = Mutators(harness.context)
    timer = RetentionTimer(harness.context, mutators)

    assert await timer.walk() == 1

    assert [leaf.first_offset for leaf in await harness.leaves()] == [40]
    assert timer.unreadable_count == 1
    assert harness.coordination.peek(stream_key(NEIGHBOUR)) == before
    await mutators.aclose()
