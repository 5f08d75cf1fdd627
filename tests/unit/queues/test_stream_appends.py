"""Messages of queues on their way to a stream: what is refused for itself, and what waits."""

from typing import Any, cast

import orjson
import pytest

from bottomless.errors import StoreError
from bottomless.model.record import Content
from bottomless_server.node.forwarding import Answer, Forwarding
from bottomless_server.node.stream_nodes import StreamNodes
from bottomless_server.queues.outgoing.stream_appends import StreamAppends
from bottomless_server.queues.ports import OutgoingRecord, RecordRefused
from bottomless_server.stores.streams import Streams


class Refusing:
    """A stream, the node that has it, and the way there: every append is refused with one code."""

    def __init__(self, status: int, code: str) -> None:
        self._status = status
        self._code = code

    async def find(self, _: Any) -> str:
        return "stream"

    async def url_of(self, _: Any) -> str:
        return "unix:///nowhere"

    async def send(self, *_: Any) -> Answer:
        problem = {"code": self._code, "status": self._status, "detail": "no", "outcome": "none"}
        return Answer(self._status, [], orjson.dumps(problem))


async def is_home(_: str) -> None:
    """The queues of every tenant are here."""


async def append(refusing: Refusing, *values: bytes) -> None:
    appends = StreamAppends(
        cast("Streams", refusing),
        cast("StreamNodes", refusing),
        cast("Forwarding", refusing),
        is_home,
    )
    records = [
        OutgoingRecord(number, value, Content.BYTES, (), 0) for number, value in enumerate(values)
    ]
    await appends.append("default", "log", "queue", records)


async def test_a_record_that_no_body_has_room_for_is_refused_for_itself() -> None:
    """It would hold up all that comes after it."""
    with pytest.raises(RecordRefused) as refused:
        await append(Refusing(413, "body-too-large"), bytes(7 * 2**20))
    assert refused.value.number == 0


async def test_what_is_refused_for_no_record_waits() -> None:
    with pytest.raises(StoreError):
        await append(Refusing(429, "rate-limited"), b"a")
