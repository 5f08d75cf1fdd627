"""A record is found by its name with one question, and is never an old one."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from support.manifest import STREAM, ManifestHarness, a_record

from bottomless.errors import NotFound
from bottomless.model.names import FullName, StreamId
from bottomless.model.stream import StreamRecord

OTHER = StreamId("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d0099")


async def found(harness: ManifestHarness, name: FullName) -> tuple[StreamRecord, list[int]]:
    """The record of a name, and how many keys each question for it had."""
    asked: list[int] = []
    get_many, get = harness.coordination.get_many, harness.coordination.get

    async def counted(keys: Sequence[str]) -> Any:
        asked.append(len(keys))
        return await get_many(keys)

    async def counted_one(key: str) -> Any:
        asked.append(1)
        return await get(key)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(harness.coordination, "get_many", counted)
        patch.setattr(harness.coordination, "get", counted_one)
        return await harness.streams.find_record(name), asked


async def test_a_name_that_is_known_is_asked_for_once_and_its_record_is_as_it_is_now() -> None:
    harness = ManifestHarness()
    await harness.streams.create(a_record())
    name = a_record().full_name
    assert await found(harness, name) == (await harness.streams.load(STREAM), [1, 2])
    assert await found(harness, name) == (await harness.streams.load(STREAM), [2])

    changed = await harness.streams.update(STREAM, lambda one: replace(one, dirty=not one.dirty))
    assert await found(harness, name) == (changed, [2])


async def test_a_name_that_another_stream_has_by_now_is_that_streams() -> None:
    harness = ManifestHarness()
    await harness.streams.create(a_record())
    name = a_record().full_name
    await found(harness, name)
    harness.coordination.lose()
    with pytest.raises(NotFound):
        await found(harness, name)

    await harness.streams.create(replace(a_record(), stream_id=OTHER))
    record, _ = await found(harness, name)
    assert record.stream_id == OTHER
