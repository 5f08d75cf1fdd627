"""What requests ask of messages that are in a queue: receive, acknowledge, give back, extend, and more."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from bottomless.model.limits import (
    DELAY_MS_MAX,
    LONG_POLL_MS_MAX,
    MIB,
    RECEIPT_COUNT_MAX,
    RECEIVE_COUNT_MAX,
    RECEIVE_SIZE_MAX,
    REDRIVE_COUNT_MAX,
    VISIBILITY_MS_MAX,
)
from bottomless_server.core.value_members import Wrong, read_text
from bottomless_server.queues.bodies.members import (
    Read,
    choice,
    flag,
    integer,
    queue_name,
    read_object,
)
from bottomless_server.queues.core.receipt import read_receipt

RECEIVE_SIZE_DEFAULT: Final = 4 * MIB


class ReceiveAsked(NamedTuple):
    """What a receive asks for."""

    limit: int = 10
    max_wait_ms: int = 0
    visibility_ms: int | None = None
    """None: as long as the queue says."""
    max_bytes: int = RECEIVE_SIZE_DEFAULT


class NackAsked(NamedTuple):
    """What is given back, and how."""

    receipts: tuple[str, ...]
    delay_ms: int = 0
    dead_letter: bool = False


class ExtendAsked(NamedTuple):
    """What is wanted for longer, and how long."""

    receipts: tuple[str, ...]
    visibility_ms: int | None = None


class RedriveAsked(NamedTuple):
    """How many messages go back, and where."""

    limit: int = REDRIVE_COUNT_MAX
    to: str | None = None
    """None: each to the queue that it came from."""


def _receipts(value: Any, place: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= RECEIPT_COUNT_MAX:
        raise Wrong(place, f"must be an array of 1 to {RECEIPT_COUNT_MAX} receipts")
    for number, one in enumerate(value):
        if type(one) is not str or read_receipt(one) is None:
            # A place is made for a fault alone: there are up to a thousand receipts.
            here = f"{place}/{number}"
            read_text(one, here)
            raise Wrong(here, "is no receipt: send it as it was received")
    return tuple(value)


_VISIBILITY: Final = integer(0, VISIBILITY_MS_MAX)
_RECEIVE: Final[Mapping[str, Read]] = {
    "limit": integer(1, RECEIVE_COUNT_MAX),
    "max_wait_ms": integer(0, LONG_POLL_MS_MAX),
    "visibility_ms": _VISIBILITY,
    "max_bytes": integer(1, RECEIVE_SIZE_MAX),
}
_ACK: Final[Mapping[str, Read]] = {"receipts": _receipts}
_NACK: Final[Mapping[str, Read]] = {
    "receipts": _receipts,
    "delay_ms": integer(0, DELAY_MS_MAX),
    "dead_letter": flag,
}
_EXTEND: Final[Mapping[str, Read]] = {"receipts": _receipts, "visibility_ms": _VISIBILITY}
_PURGE: Final[Mapping[str, Read]] = {"state": choice("all", "damaged")}
_REDRIVE: Final[Mapping[str, Read]] = {"limit": integer(1, REDRIVE_COUNT_MAX), "to": queue_name}


def read_receive(value: Any) -> ReceiveAsked:
    """Read the body of a receive, which strict parsing made of its JSON.

    Raises:
        InvalidRequest: `validation-failed`, as of every reader here.
    """
    return ReceiveAsked(**read_object(value, _RECEIVE))


def read_ack(value: Any) -> tuple[str, ...]:
    """Read the receipts of messages that are done with."""
    receipts: tuple[str, ...] = read_object(value, _ACK, required=_ACK)["receipts"]
    return receipts


def read_nack(value: Any) -> NackAsked:
    """Read what is given back, or rejected."""
    return NackAsked(**read_object(value, _NACK, required=_ACK))


def read_extend(value: Any) -> ExtendAsked:
    """Read what is wanted for longer."""
    return ExtendAsked(**read_object(value, _EXTEND, required=_ACK))


def read_purge(value: Any) -> bool:
    """Read whether only what is damaged is to be removed."""
    return read_object(value, _PURGE).get("state") == "damaged"


def read_redrive(value: Any) -> RedriveAsked:
    """Read how many messages go back, and where."""
    return RedriveAsked(**read_object(value, _REDRIVE))
