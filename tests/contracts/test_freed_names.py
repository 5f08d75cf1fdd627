"""The mark of freed names, over every coordination store."""

import asyncio
from dataclasses import replace

import pytest

from bottomless.errors import Exists, NotFound
from bottomless.model.config import StreamConfig
from bottomless.model.names import FullName, StreamId, StreamName
from bottomless.model.stream import StreamRecord, StreamState
from bottomless_server.coordination.base import Changes, Values
from bottomless_server.stores.freed_names import NamesShown, shown_names
from bottomless_server.stores.streams import FREED_KEY, GENERATION_KEY, Streams
from contracts.conftest import Shared

_COUNT = 64


def _id(number: int) -> StreamId:
    return StreamId(f"0198d2a4-5b1e-7c3a-9a51-{number:012x}")


def _name(number: int) -> FullName:
    return FullName("default", StreamName(f"orders-{number}"))


async def _create(streams: Streams, number: int) -> None:
    name = _name(number)
    await streams.create(
        StreamRecord(_id(number), name.name, name.tenant, StreamState.ACTIVE, 0, StreamConfig())
    )


def _tombstone(record: StreamRecord) -> StreamRecord:
    if record.state is not StreamState.ACTIVE:
        raise NotFound("there is no such stream")
    return replace(record, state=StreamState.DELETING, epoch=record.epoch + 1)


async def _bury(streams: Streams, number: int) -> StreamRecord:
    return await streams.bury(_id(number), _name(number), _tombstone, Changes())


@pytest.fixture
async def streams(shared: Shared) -> Streams:
    """With a generation, and no name freed yet."""

    def change(_: Values) -> tuple[Changes, None]:
        return Changes({GENERATION_KEY: b'{"generation":3,"bucket":true}'}), None

    assert await shown_names(shared.coordination) == NamesShown(None, None)
    await shared.coordination.transact([GENERATION_KEY], change)
    return Streams(shared.coordination)


async def test_another_mark_is_shown_for_each_name_that_is_freed_and_for_nothing_else(
    shared: Shared, streams: Streams
) -> None:
    seen = [await shown_names(shared.coordination)]
    assert seen == [NamesShown(3, None)]
    for number in range(3):
        await _create(streams, number)
        with pytest.raises(Exists):
            await _create(streams, number)
        await streams.update(_id(number), lambda record: replace(record, epoch=record.epoch + 1))
        await streams.leave(_id(number), lambda record: record, b"producers")
    assert await shown_names(shared.coordination) == seen[0]

    for number in range(3):
        record = await _bury(streams, number)
        seen.append(await shown_names(shared.coordination))
        with pytest.raises(NotFound):
            await _bury(streams, number)
        await _create(streams, number + 10)
        await streams.forget(record)
        assert await shown_names(shared.coordination) == seen[-1]
    assert len(set(seen)) == 4


async def test_a_name_that_a_burial_leaves_with_another_stream_is_not_freed(
    shared: Shared, streams: Streams
) -> None:
    await _create(streams, 1)
    await _create(streams, 2)
    before = await shown_names(shared.coordination)
    await streams.bury(_id(1), _name(2), _tombstone, Changes())

    assert await streams.find(_name(2)) == _id(2)
    assert await shown_names(shared.coordination) == before


async def test_whoever_reads_the_mark_before_a_name_reads_it_differently_after_it_was_freed(
    shared: Shared, streams: Streams
) -> None:
    """Many are freed at once, and nobody stands in another's way."""
    for number in range(_COUNT):
        await _create(streams, number)
    freed: list[int] = []

    async def bury(number: int) -> None:
        await _bury(streams, number)
        freed.append(number)

    async def look(number: int) -> None:
        """The mark, the name, and the mark: where it stands, the name does."""
        while number not in freed:
            before = await shown_names(shared.coordination)
            found = _name(number) in await streams.find_many([_name(number)])
            gone = _name(number) not in await streams.find_many([_name(number)])
            after = await shown_names(shared.coordination)
            assert not (found and gone and before == after)

    await asyncio.gather(*map(bury, range(_COUNT)), *map(look, range(_COUNT)))
    assert len(freed) == _COUNT


async def test_a_mark_of_any_form_is_only_compared(shared: Shared, streams: Streams) -> None:
    """One that a later release wrote must not end the renewal of a lease."""
    shown = set()
    for mark in (b"\xff\x00", b"", b"17"):

        def change(_: Values, mark: bytes = mark) -> tuple[Changes, None]:
            return Changes({FREED_KEY: mark}), None

        await shared.coordination.transact([FREED_KEY], change)
        shown.add(await shown_names(shared.coordination))
    assert len(shown) == 3
    assert streams.generation is None
