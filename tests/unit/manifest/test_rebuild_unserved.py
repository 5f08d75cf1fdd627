"""A rebuild by a release that cannot read every stream: one of before a roll-back, or beside a later one.

Each test of a rebuild read with the release that had written; the one value of a later release in
them was a record in coordination, which a rebuild forgets. So nobody saw that a registry object of a
later release counted as damaged: its stream had no record any more, its name was free, and when
somebody had taken the name, the next rebuild deleted the older stream.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from support.guards import remove
from support.manifest import NEIGHBOUR, SERVES_NONE, STREAM, ManifestHarness, a_record
from support.object_keys import registry_key
from support.rebuilding import a_harness, firsts, nothing, put, put_registry, rebuild
from unit.manifest.test_operations import OperationsHarness, work

from bottomless.errors import Code, NotFound, NotServed, Unavailable
from bottomless.formats.keys import generation_key
from bottomless.formats.sealed_json import parse_object, seal
from bottomless.formats.stream_record import encode_registry
from bottomless.model.config import parse_stored_config
from bottomless.model.names import TENANT_DEFAULT, StreamId, StreamName
from bottomless.model.stream import StreamRecord, StreamState
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.recovery.rebuild import Rebuild
from bottomless_server.stores.generation import check_generation, held_generation
from bottomless_server.stores.operations import (
    OPERATIONS_KEY,
    Operation,
    OperationState,
    OperationStore,
)

LATER = a_record(
    stream_id=NEIGHBOUR,
    name=StreamName("orders-of-later"),
    home=None,
    owner_url=None,
    dirty=False,
    reserved_next=0,
)
LATER_KEY = registry_key(NEIGHBOUR, 1)


def of_a_later_version(record: StreamRecord) -> bytes:
    members = parse_object("registry object", encode_registry(record))
    members.pop("crc32c")
    return seal(members, 99)


def leaderless(record: StreamRecord) -> bytes:
    config = parse_stored_config({"profile": "leaderless"})
    return encode_registry(replace(record, config=config))


OF_OTHERS = {
    "of a later release": (of_a_later_version, "version 99"),
    "leaderless": (leaderless, "feature leaderless"),
}
each_kind = pytest.mark.parametrize(("encode", "why"), OF_OTHERS.values(), ids=OF_OTHERS)
Encode = Callable[[StreamRecord], bytes]


async def rolled_back(encode: Encode) -> ManifestHarness:
    """A stream that this release serves, beside one that it cannot read."""
    harness = await a_harness(0, 10, served=SERVES_NONE)
    await put(harness, LATER_KEY, encode(LATER))
    return harness


def upgrade(harness: ManifestHarness) -> None:
    """From now on the other stream can be read."""
    harness.drive.damage(LATER_KEY, encode_registry(LATER))


def a_process(harness: ManifestHarness) -> tuple[Operations, Rebuild]:
    operations = Operations(harness.context)
    return operations, Rebuild(harness.context, operations, nothing)


async def try_to_rebuild(harness: ManifestHarness) -> Operation:
    """A process is asked for a rebuild, and does what it can."""
    operations, rebuilding = a_process(harness)
    begun = await rebuilding.begin(TENANT_DEFAULT)
    await work(operations)
    return await operations.find(begun.operation_id)


async def objects(harness: ManifestHarness) -> list[str]:
    return [facts.object_key async for facts in harness.drive.list("")]


def held(harness: ManifestHarness) -> Any:
    """All that coordination holds but operations."""
    stored = harness.coordination.copy()
    return (
        {key: kept.value for key, kept in stored.values.items() if "operation" not in key},
        {key: dict(queue) for key, queue in stored.queues.items() if key != OPERATIONS_KEY},
        {key: set(index) for key, index in stored.indexes.items()},
    )


async def is_lost(harness: ManifestHarness) -> bool:
    """Whether every service refuses what it is asked, as after any loss of coordination."""
    try:
        await check_generation(harness.drive, harness.coordination)
    except Unavailable as error:
        return error.code is Code.COORDINATION_REGRESSED
    return False


async def an_older_store(harness: ManifestHarness) -> None:
    """The bucket is of a generation that coordination does not know, though it holds much."""
    await put(harness, generation_key(1), b'{"generation":1}')


@each_kind
async def test_a_rebuild_that_cannot_read_a_stream_changes_nothing_and_names_it(
    encode: Encode, why: str
) -> None:
    harness = await rolled_back(encode)
    await an_older_store(harness)
    before = held(harness), await objects(harness)

    found = await try_to_rebuild(harness)

    assert found.state is OperationState.FAILED
    assert found.error is not None
    assert found.error["code"] == "data-corrupt"
    for word in (why, "orders-of-later", LATER_KEY):
        assert word in found.error["detail"]
    assert (held(harness), await objects(harness)) == before
    assert await is_lost(harness)


@each_kind
async def test_without_that_look_much_is_discarded_before_it_stops(
    monkeypatch: pytest.MonkeyPatch, encode: Encode, why: str
) -> None:
    async def seen(*_: object) -> bool:
        return False

    remove(monkeypatch, "a look at every registry object before a rebuild discards anything", seen)
    harness = await rolled_back(encode)
    await an_older_store(harness)
    before = held(harness)

    found = await try_to_rebuild(harness)

    assert held(harness) != before
    # Yet it ends nowhere: whoever reads the stream may go on.
    assert found.state is OperationState.RUNNING
    assert found.error is not None
    assert why in found.error["detail"]
    assert await is_lost(harness)


@each_kind
async def test_a_release_that_reads_all_rebuilds_at_once_and_no_name_is_given_away(
    encode: Encode, why: str
) -> None:
    harness = await rolled_back(encode)
    harness.coordination.lose()
    failed = await try_to_rebuild(harness)
    again = await try_to_rebuild(harness)
    # Each is an attempt of its own, and who waits for the first one is not told of the second.
    assert (failed.state, again.state) == (OperationState.FAILED, OperationState.FAILED)
    assert why in str(again.error)
    assert again.operation_id == failed.operation_id
    assert again.created_at > failed.updated_at

    upgrade(harness)
    done = await try_to_rebuild(harness)

    assert done.state is OperationState.SUCCEEDED
    assert done.result is not None
    assert (done.result["streams"], done.result["unknown"]) == (2, 0)
    harness.streams.generation = await check_generation(harness.drive, harness.coordination)
    assert (await harness.streams.load(NEIGHBOUR)).state is StreamState.ACTIVE
    assert await harness.streams.find(LATER.full_name) == NEIGHBOUR
    assert await firsts(harness) == [0, 10]


@each_kind
async def test_no_stream_of_a_later_release_is_deleted_after_a_roll_back_and_an_upgrade(
    encode: Encode, why: str
) -> None:
    """Coordination was lost while the older release ran, a stream took the name, and coordination
    was lost once more after the upgrade: the stream that had the name first was deleted."""
    del why
    harness = await rolled_back(encode)
    harness.coordination.lose()
    await try_to_rebuild(harness)
    if not await is_lost(harness):
        harness.streams.generation = await check_generation(harness.drive, harness.coordination)
        other = StreamId("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2cff")
        generation = await held_generation(harness.coordination) or 0
        taken = replace(LATER, stream_id=other, generation=generation)
        await harness.streams.create(taken)
        await put_registry(harness, taken)
        harness.coordination.lose()
    upgrade(harness)

    result = await rebuild(harness)

    assert result["deleted_streams"] == 0
    assert (await harness.streams.load(NEIGHBOUR)).state is StreamState.ACTIVE


@pytest.mark.parametrize("phase", ["streams", "tails"])
async def test_a_rebuild_that_a_later_release_is_at_is_left_to_it(phase: str) -> None:
    """It reads all of it, or it has a phase that this release knows nothing of: the generation was
    raised then, over what was not restored."""
    harness = await rolled_back(leaderless)
    harness.coordination.lose()
    operations, rebuilding = a_process(harness)
    begun = await rebuilding.begin(TENANT_DEFAULT)
    progress = {"phase": phase, "_looked": True}
    await OperationStore(harness.coordination).move(begun, 0, 0, progress=progress)
    before = await objects(harness)

    await work(operations)

    found = await operations.find(begun.operation_id)
    assert (found.state, found.progress) == (OperationState.RUNNING, progress)
    assert found.error is not None
    assert found.error["code"] == "data-corrupt"
    assert await is_lost(harness)
    # The one that it can read is restored in the phase that it knows, as the later release would.
    added = [key for key in await objects(harness) if key not in before]
    assert all(STREAM in key for key in added)


async def test_of_two_that_ask_anew_after_a_failure_both_are_told_one_rebuild() -> None:
    harness = await rolled_back(leaderless)
    harness.coordination.lose()
    await try_to_rebuild(harness)

    _, one = a_process(harness)
    _, other = a_process(harness)
    first = await one.begin(TENANT_DEFAULT)
    assert await other.begin(TENANT_DEFAULT) == first
    assert first.state is OperationState.PENDING
    [due] = await harness.coordination.due(OPERATIONS_KEY, 2**52, 10)
    assert due.due_at <= harness.clock.now


async def test_one_that_was_taken_up_anew_is_not_forgotten_for_the_one_before() -> None:
    harness = await rolled_back(leaderless)
    harness.coordination.lose()
    failed = await try_to_rebuild(harness)
    [due] = await harness.coordination.due(OPERATIONS_KEY, 2**52, 10)
    store = OperationStore(harness.coordination)
    _, rebuilding = a_process(harness)
    begun: list[Operation] = []

    async def ask() -> None:
        begun.append(await rebuilding.begin(TENANT_DEFAULT))

    harness.coordination.after_due_at = ask
    await store.forget(due)

    assert (await store.find(failed.operation_id)) == begun[0]
    assert len(await harness.coordination.due(OPERATIONS_KEY, 2**52, 10)) == 1


async def test_a_step_that_meets_what_only_a_later_release_reads_is_left_to_others() -> None:
    """It failed for good, and whoever had begun it with the later release was told so."""
    harness = OperationsHarness()
    process = harness.process()
    begun = await process.begin("count", tenant="default", arguments={"to": 1})
    harness.meets = [NotServed("a feature of tomorrow")]

    await work(process)

    found = await process.find(begun.operation_id)
    assert found.state is OperationState.RUNNING
    assert found.error == {"code": "data-corrupt", "detail": "a feature of tomorrow"}
    harness.manifest.clock.now += 1_000
    # Whoever looks next may be of the later release.
    later = harness.process()
    await work(later)
    assert (await later.find(begun.operation_id)).state is OperationState.SUCCEEDED


async def test_without_that_it_fails_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    remove(
        monkeypatch,
        "what only a later release can read, left to it by operations",
        lambda error: isinstance(error, Unavailable),
    )
    harness = OperationsHarness()
    process = harness.process()
    begun = await process.begin("count", tenant="default", arguments={"to": 1})
    harness.meets = [NotServed("a feature of tomorrow")]

    await work(process)

    assert (await process.find(begun.operation_id)).state is OperationState.FAILED


async def test_a_registry_object_that_is_damaged_is_still_told_from_one_of_others() -> None:
    """Only one that says so is of a later release; a damaged one stops no rebuild."""
    harness = await rolled_back(leaderless)
    harness.drive.flip(LATER_KEY, -10)
    harness.coordination.lose()

    assert (await rebuild(harness))["unknown"] == 1
    with pytest.raises(NotFound):
        await harness.streams.load(NEIGHBOUR)
