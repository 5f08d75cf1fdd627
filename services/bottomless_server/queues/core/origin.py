"""Where a message was before it left a queue: JSON beside it in the ledger, headers where it goes. Pure."""

from collections.abc import Sequence
from typing import Final, NamedTuple

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


QUEUE_HEADER: Final = "queue"
REASON_HEADER: Final = "queue-reason"
MESSAGE_ID_HEADER: Final = "queue-message-id"
DELIVERIES_HEADER: Final = "queue-deliveries"
HEADERS: Final = frozenset({QUEUE_HEADER, REASON_HEADER, MESSAGE_ID_HEADER, DELIVERIES_HEADER})
"""What a message that left a queue says of it; of two queues that it left the last one counts. No publish
brings these names: what it says there would be lost when its message leaves."""

Headers = tuple[tuple[str, bytes], ...]


def with_origin(headers: Sequence[tuple[str, bytes]], origin: Origin, msg_id: bytes) -> Headers:
    """The headers of a message where it goes, by those that it had."""
    added = (
        (QUEUE_HEADER, origin.queue.encode()),
        (REASON_HEADER, origin.reason.encode()),
        (MESSAGE_ID_HEADER, msg_id.hex().encode()),
        (DELIVERIES_HEADER, b"%d" % origin.deliveries),
    )
    return (*without_origin(headers), *added)


def without_origin(headers: Sequence[tuple[str, bytes]]) -> Headers:
    """The headers of a message that goes back, without what it was given when it left."""
    return tuple(header for header in headers if header[0] not in HEADERS)
