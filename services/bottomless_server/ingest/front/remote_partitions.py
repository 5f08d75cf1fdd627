"""Partitions of super streams, wherever their owners are: on this node, or asked over HTTP.

Nothing is repeated here. Where no connection to an owner came about nothing was sent, so the outcome
is none; where the owner may have a part and does not answer, it is unknown, and that is said of
the part.

On the record's path: after super_produce.py, before part_routes.py of another node.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

import orjson

from bottomless.errors import Outcome, Unavailable
from bottomless.model.names import StreamId
from bottomless_server.core.restated import restated
from bottomless_server.ingest.front.metrics import AppendCounts
from bottomless_server.ingest.ports import PartitionPort, Partitions
from bottomless_server.ingest.producers.producers import Appended
from bottomless_server.ingest.producers.super_requests import request_of_part
from bottomless_server.ingest.records.intake import Append
from bottomless_server.node.core.ownership import OwnedElsewhere
from bottomless_server.node.forwarding import Forwarding, said_in
from bottomless_server.protocol.parts import (
    LAYOUT,
    PARTS,
    PARTS_MEDIA_TYPE,
    STEPS,
    PartAsked,
    StepAsked,
    StepSaid,
    decode_part,
    decode_step_said,
    encode_layout,
    encode_step,
)
from bottomless_server.protocol.paths import of_stream

T = TypeVar("T")

_JSON: Final = {"content-type": "application/json"}
_FRAMES: Final = {"content-type": PARTS_MEDIA_TYPE}


class PartitionOwners:
    """Finds the owner of a partition: this node's own port, or a way to another node."""

    def __init__(
        self,
        here: Partitions,
        forwarding: Forwarding,
        counts: AppendCounts,
        forget_owner: Callable[[str], None],
    ) -> None:
        """`forget_owner` is told the address of a node that may not own streams any more."""
        self.forwarding: Final = forwarding
        self.counts: Final = counts
        self.forget_owner: Final = forget_owner
        self._here = here

    async def at(self, stream_id: StreamId) -> PartitionPort:
        """A partition at its owner.

        Raises:
            StoreError: nobody owns it now, or there is no such stream; outcome none.
        """
        try:
            return await self._here.get(stream_id)
        except OwnedElsewhere as owner:
            return RemotePartition(self, owner.owner_url, stream_id)


class RemotePartition:
    """The `PartitionPort` of a stream that another node owns."""

    def __init__(self, owners: PartitionOwners, owner_url: str, stream_id: StreamId) -> None:
        self._owners = owners
        self._owner_url = owner_url
        self._stream_id = stream_id

    async def append_part(self, append: Append) -> Appended:
        target = f"{of_stream(PARTS, self._stream_id)}?{urlencode(asked_of(append).params())}"
        body = b"".join(part for frame in append.frames for part in frame.parts)
        said = _decoded(decode_part, await self._ask("POST", target, body, _FRAMES))
        return Appended(**said._asdict())

    async def do_step(self, asked: StepAsked) -> StepSaid:
        body = orjson.dumps(encode_step(asked))
        target = of_stream(STEPS, self._stream_id)
        return _decoded(decode_step_said, await self._ask("POST", target, body, _JSON))

    async def fence_layouts(self, layout: int) -> None:
        body = orjson.dumps(encode_layout(layout))
        await self._ask("PUT", of_stream(LAYOUT, self._stream_id), body, _JSON)

    async def _ask(self, method: str, target: str, body: bytes, headers: dict[str, str]) -> Any:
        """What the owner answers, as JSON.

        Raises:
            StoreError: what it refused, as it said it; or it does not answer.
        """
        owners, counts = self._owners, self._owners.counts
        counts.forwarded += 1
        try:
            answer = await owners.forwarding.send(self._owner_url, method, target, body, headers)
        except Unavailable:
            counts.forwarded_unanswered += 1
            owners.forget_owner(self._owner_url)
            raise
        if answer.disowned:
            owners.forget_owner(self._owner_url)
        return said_in(answer)


def asked_of(append: Append) -> PartAsked:
    """What is said of a part beside its records."""
    part_of, request = append.conditions.part_of, request_of_part(append)
    assert part_of is not None, "only a part is sent to another node"
    if request is None:
        return PartAsked(part_of.layout, int(part_of.resumed))
    return PartAsked(
        part_of.layout,
        int(part_of.resumed),
        request.producer_id,
        request.epoch,
        request.first,
        request.last,
        request.body_crc,
    )


def _decoded(decode: Callable[[Any], T], value: Any) -> T:
    """What an owner said that has done what it was asked.

    Raises:
        Unavailable: the protocol does not know it; outcome unknown.
    """
    try:
        return decode(value)
    except Unavailable as error:
        raise restated(error, Outcome.UNKNOWN) from error
