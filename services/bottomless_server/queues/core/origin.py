"""Where a message was before it left a queue, as the ledger keeps it beside the message: JSON, pure."""

from typing import NamedTuple

import orjson

from bottomless.model.queue import LeaveReason


class Origin(NamedTuple):
    """The queue that a message left, why and when."""

    queue: str
    reason: LeaveReason
    deliveries: int
    at: int
    """When it left, in ms since 1970."""


def encode_origin(origin: Origin) -> bytes:
    return orjson.dumps(origin._asdict())


def decode_origin(data: bytes) -> Origin:
    members = orjson.loads(data)
    reason = LeaveReason(members["reason"])
    return Origin(members["queue"], reason, members["deliveries"], members["at"])
