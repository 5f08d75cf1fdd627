"""What a rebuild makes of leaderless streams, over whatever an older store still has of them.

There was one test of it: over an empty store, of a stream that takes appends, with a tail that the
test had made itself. So a rebuild lifted each fence, a stream that was being deleted took appends
again, and entries, names and held members of before the loss lay under the new records.
"""

from dataclasses import replace
from typing import Any

import pytest
from support.guards import remove
from unit.formats.examples import UID
from unit.stores.test_tails import GENERATION, IDS, KEY, LOADER, TRACKED, Stores

from bottomless.errors import Unavailable
from bottomless.model.config import parse_stored_config
from bottomless.model.names import StreamId
from bottomless.model.stream import EpochStart, StreamRecord, StreamState
from bottomless_server.coordination.base import Changes
from bottomless_server.leaderless.decided import KnownName, NewKnown
from bottomless_server.leaderless.instance import WalInstance
from bottomless_server.leaderless.tail import Tail, TailState, check_index, first_epoch
from bottomless_server.stores import tails, wal
from bottomless_server.stores.operations import encode_operation, new_operation, operation_key
from bottomless_server.stores.rebuild_step import RebuildStep
from bottomless_server.stores.restored_streams import discard_stream
from bottomless_server.stores.restored_tails import (
    PAGE_COUNT,
    discard_instances,
    discard_tail,
    restore,
    restore_instance,
)
from bottomless_server.stores.streams import stream_key
from bottomless_server.stores.tail_keys import (
    SILENT_KEY,
    entries_from,
    known_index_key,
    known_key,
    load_tails,
    tail_index_key,
    tail_key,
)

LATER = GENERATION + 1
KNOWN = {LOADER: NewKnown([TRACKED], 9_000)}
FENCED = parse_stored_config({"profile": "leaderless", "fenced": True})
STATES: dict[str, tuple[dict[str, Any], TailState]] = {
    "open": ({}, TailState.OPEN),
    "fenced": ({"config": FENCED}, TailState.FENCED),
    "deleting": ({"state": StreamState.DELETING}, TailState.CLOSED),
    "deleting and fenced": (
        {"config": FENCED, "state": StreamState.DELETING},
        TailState.CLOSED,
    ),
}


def begin_rebuild(stores: Stores) -> RebuildStep:
    """The store shows no generation any more, and else all that it had."""
    operation = new_operation("0f" * 16, "rebuild", 0, tenant="default")
    key = operation_key(operation.operation_id)
    stores.coordination.write(Changes({key: encode_operation(operation)}))
    stores.generation(GENERATION - 1)
    return RebuildStep(LATER, operation)


def found_again(stores: Stores, **changes: Any) -> StreamRecord:
    """A stream as a rebuild finds it: 40 records are published."""
    epoch = first_epoch(LATER)
    record: StreamRecord = replace(
        stores.record(),
        generation=LATER,
        epoch=epoch,
        epochs=(EpochStart(epoch, 40),),
        published_next=40,
        version=77,
        last_timestamp=8,
    )
    return replace(record, **changes)


async def restored_tail(stores: Stores) -> Tail:
    stores.generation(LATER)
    found = (await load_tails(stores.coordination, IDS[:1], LATER))[IDS[0]]
    assert isinstance(found, Tail)
    return found


@pytest.mark.parametrize("state", STATES)
async def test_a_restored_tail_is_as_the_record_says(state: str) -> None:
    stores = Stores()
    changes, expected = STATES[state]
    record = found_again(stores, **changes)

    found = await restore(
        stores.coordination, record, {}, Changes(), begin_rebuild(stores), last_timestamp=9
    )

    assert found is None
    tail = await restored_tail(stores)
    assert tail.state is expected
    assert (tail.next_offset, tail.pruned_next, tail.published_next) == (40, 40, 40)
    # A reader has perhaps a root of before: by the version it asks for the new one.
    assert (tail.manifest_version, tail.epoch, tail.last_timestamp) == (77, record.epoch, 9)


async def test_a_stream_that_is_created_fenced_is_fenced() -> None:
    stores = Stores()
    await tails.create(stores.streams, replace(stores.record(), config=FENCED))
    assert (await stores.tail()).state is TailState.FENCED


@pytest.mark.parametrize("epochs", [(), (EpochStart(first_epoch(GENERATION), 1),)])
async def test_a_tail_without_the_start_of_its_epoch_is_never_made(epochs: Any) -> None:
    """Every fragment of the stream would be refused."""
    stores = Stores()
    with pytest.raises(AssertionError):
        await tails.create(stores.streams, replace(stores.record(), epochs=epochs))


async def an_older_store() -> Stores:
    """All kinds of keys that leaderless streams have, of the generation before."""
    stores = Stores()
    await stores.open()
    known = {LOADER: NewKnown([TRACKED], 9_000), KEY: NewKnown([TRACKED], 8_000)}
    for _ in range(3):
        await stores.commit(0, known=known)
    return stores


def left(stores: Stores) -> list[str]:
    """Keys with anything of a tail or an instance, but for leases, which run out."""
    stored = stores.coordination.copy()
    indexes = [key for key, found in stored.indexes.items() if found]
    queues = [key for key, found in stored.queues.items() if found]
    keys = [key for key in (*stored.values, *indexes, *queues) if ":wal-live:" not in key]
    return [key for key in keys if "tail" in key or "wal" in key]


async def test_what_lay_there_is_discarded(monkeypatch: pytest.MonkeyPatch) -> None:
    stores = await an_older_store()
    assert len({key.split(":")[1] for key in left(stores)}) == 9
    step = begin_rebuild(stores)

    await discard_tail(stores.coordination, IDS[0], step, limit=2)
    await discard_stream(stores.coordination, IDS[0], step)
    assert await discard_instances(stores.coordination, b"", step) == UID.encode("ascii")
    assert await discard_instances(stores.coordination, UID.encode("ascii"), step) == b""

    assert left(stores) == [SILENT_KEY]


async def restore_all(stores: Stores, step: RebuildStep) -> None:
    await restore(
        stores.coordination, found_again(stores), KNOWN, Changes(), step, last_timestamp=9
    )
    await restore_instance(stores.coordination, UID, WalInstance(None, LATER, 7, 7), step)


async def test_nothing_of_before_lies_under_what_is_restored() -> None:
    """Also if nothing led to it any more, so that it was not discarded."""
    stores = await an_older_store()

    await restore_all(stores, begin_rebuild(stores))

    await _is_whole(stores)


async def test_without_that_entries_of_before_lie_under_the_new_tail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def nothing(*_: object) -> None:
        return None

    remove(monkeypatch, "what a rebuild takes away before it restores a tail", nothing)
    stores = await an_older_store()
    await restore_all(stores, begin_rebuild(stores))
    with pytest.raises(AssertionError):
        await _is_whole(stores)


async def _is_whole(stores: Stores) -> None:
    tail = await restored_tail(stores)
    check_index(tail, await entries_from(stores.coordination, IDS[0], 0))
    assert stores.coordination.peek_members(known_index_key(IDS[0])) == [LOADER.member]
    assert (tail.producer_count, tail.key_count) == (1, 0)
    assert stores.coordination.peek(known_key(IDS[0], KEY)) is None
    assert stores.held() == []
    assert (await wal.load_instances(stores.coordination))[UID] == WalInstance(None, LATER, 7, 7)


async def test_what_was_restored_already_stays() -> None:
    """A rebuild that is taken up anew discards and restores over what the attempt before has done."""
    stores = await an_older_store()
    step = begin_rebuild(stores)
    await restore_all(stores, step)
    before = stores.coordination.copy()

    await discard_tail(stores.coordination, IDS[0], step)
    await discard_stream(stores.coordination, IDS[0], step)
    await discard_instances(stores.coordination, b"", step)
    assert stores.coordination.copy().values == before.values
    assert stores.coordination.copy().indexes == before.indexes
    await restore_all(stores, step)

    await _is_whole(stores)


async def test_who_is_not_what_goes_on_discards_and_restores_nothing() -> None:
    stores = await an_older_store()
    step = begin_rebuild(stores)
    stores.generation(LATER)
    before = stores.coordination.copy()

    for work in (
        discard_tail(stores.coordination, IDS[0], step),
        discard_instances(stores.coordination, b"", step),
        restore_all(stores, step),
        restore_instance(stores.coordination, UID, WalInstance(None, LATER, 7, 7), step),
    ):
        with pytest.raises(Unavailable):
            await work
    assert stores.coordination.copy() == before


@pytest.mark.parametrize("where", range(1, 5))
async def test_a_rebuild_that_dies_between_two_pages_goes_on(where: int) -> None:
    stores = Stores()
    step = begin_rebuild(stores)
    names = {
        KnownName(f"p{number}", is_producer=True): NewKnown([TRACKED], 9_000)
        for number in range(2 * PAGE_COUNT + 1)
    }
    record = found_again(stores)
    real, count = stores.coordination.execute, 0

    def dies(*arguments: Any) -> bool:
        nonlocal count
        count += 1
        if count == where:
            raise Unavailable("it dies here")
        return real(*arguments)

    stores.coordination.execute = dies  # type: ignore[assignment, method-assign]
    with pytest.raises(Unavailable):
        await restore(stores.coordination, record, names, Changes(), step, last_timestamp=9)
    stores.coordination.execute = real  # type: ignore[method-assign]
    await restore(stores.coordination, record, names, Changes(), step, last_timestamp=9)

    tail = await restored_tail(stores)
    found = stores.coordination.peek_members(known_index_key(IDS[0]))
    assert len(found) == tail.producer_count == len(names)
    assert all(stores.coordination.peek(known_key(IDS[0], name)) for name in names)
    assert len(stores.coordination.peek_queue(SILENT_KEY)) == len(names)


async def test_of_a_stream_whose_name_is_taken_nothing_is_written() -> None:
    stores = Stores()
    step = begin_rebuild(stores)
    other = StreamId(IDS[1])
    first = found_again(stores, stream_id=other)
    await restore(stores.coordination, first, {}, Changes(), step, last_timestamp=9)

    found = await restore(
        stores.coordination, found_again(stores), KNOWN, Changes(), step, last_timestamp=9
    )

    assert found == other
    for key in (stream_key(IDS[0]), tail_key(IDS[0]), known_key(IDS[0], LOADER)):
        assert stores.coordination.peek(key) is None
    assert stores.coordination.peek_members(tail_index_key(IDS[0])) == []
