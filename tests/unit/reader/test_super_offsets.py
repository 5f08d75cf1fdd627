"""The bounds of all partitions of a super stream: each as a stream's, or none."""

import asyncio
from typing import Any

import pytest
from support.peers import SilentPeer
from unit.formats.examples import SUPER_RECORD

from bottomless.errors import NotFound, Unavailable
from bottomless.model.names import FullName, StreamId
from bottomless_server.protocol.peer import PeerAnswer
from bottomless_server.protocol.supers import encode_super_stream, super_by_name
from bottomless_server.reader.bounds import StreamBounds
from bottomless_server.reader.super_offsets import SuperOffsets

NAME = SUPER_RECORD.full_name


class Manifest(SilentPeer):
    """Knows one super stream."""

    async def call(self, _: str, path: str, /, *, params: Any = None, **__: Any) -> PeerAnswer:
        if (path, params) != (super_by_name(NAME), {"tenant": NAME.tenant}):
            raise NotFound("there is no such super stream")
        return PeerAnswer(200, {}, encode_super_stream(SUPER_RECORD))


class Bounds(StreamBounds):
    """Says a bound of each partition, or that it cannot be told."""

    def __init__(self, lost: StreamId | None = None) -> None:
        self.lost = lost
        self.under_way = 0

    async def show(
        self,
        name: FullName,
        stream_id: StreamId | None = None,
        after: int | None = None,
        wait_ms: int = 0,
    ) -> dict[str, Any]:
        del after, wait_ms
        self.under_way += 1
        try:
            if stream_id == self.lost:
                raise Unavailable("nobody owns it")
            await asyncio.sleep(0 if self.lost is None else 3_600)
        finally:
            self.under_way -= 1
        return {"stream_id": stream_id, "next_offset": len(name.name)}


async def test_each_partition_is_told_as_the_stream_that_it_is() -> None:
    told = await SuperOffsets(Manifest(), Bounds()).show(NAME)
    assert (told["name"], told["super_id"]) == (NAME.name, SUPER_RECORD.super_id)
    assert told["layout"] == SUPER_RECORD.layouts[-1].version
    assert told["partitions"] == [
        {
            "index": one.index,
            "stream": one.name,
            "stream_id": one.stream_id,
            "next_offset": len(one.name),
        }
        for one in SUPER_RECORD.partitions
    ]


async def test_where_one_cannot_be_told_none_is_and_nothing_goes_on() -> None:
    bounds = Bounds(SUPER_RECORD.partitions[-1].stream_id)
    with pytest.raises(Unavailable):
        await SuperOffsets(Manifest(), bounds).show(NAME)
    assert bounds.under_way == 0


async def test_a_super_stream_that_is_not_there_has_no_offsets() -> None:
    with pytest.raises(NotFound):
        await SuperOffsets(Manifest(), Bounds()).show(NAME._replace(tenant="other"))
