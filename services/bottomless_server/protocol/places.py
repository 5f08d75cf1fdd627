"""Where offsets lie in a tail, as its owner says it: how old they are, and how much comes after.

Contract: openapi/internal.yaml, tag `ingest`.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from bottomless.errors import Code, InvalidRequest
from bottomless.model.limits import OFFSET_MAX
from bottomless_server.protocol.paths import STREAM
from bottomless_server.protocol.peer import number, said_by

PLACES: Final = f"{STREAM}/places"
ASKED_COUNT_MAX: Final = 1_000
"""Offsets that one question may be about."""


class TailPlace(NamedTuple):
    """Where a record lies in a tail."""

    timestamp: int
    """In ms since 1970, when it was committed."""
    size_after: int
    """Bytes from the beginning of its chunk to the end of the tail."""


def encode_places_asked(offsets: Sequence[int]) -> dict[str, Any]:
    return {"offsets": list(offsets)}


def decode_places_asked(body: Any) -> list[int]:
    """Read the offsets that the body of a request names.

    Raises:
        InvalidRequest: `validation-failed`.
    """
    offsets = body.get("offsets") if isinstance(body, dict) and len(body) == 1 else None
    if not isinstance(offsets, list) or not 1 <= len(offsets) <= ASKED_COUNT_MAX:
        sentence = f"the one member is offsets, a list of 1 to {ASKED_COUNT_MAX}"
        raise InvalidRequest(sentence, code=Code.VALIDATION_FAILED)
    if not all(type(one) is int and 0 <= one <= OFFSET_MAX for one in offsets):
        raise InvalidRequest("the offsets are integers", code=Code.VALIDATION_FAILED)
    return offsets


def encode_places(places: Sequence[TailPlace | None]) -> dict[str, Any]:
    """In the order of the question; None of what the tail does not hold."""
    return {"places": [None if one is None else list(one) for one in places]}


@said_by("ingest")
def decode_places(body: Any) -> list[TailPlace | None]:
    return [
        None if one is None else TailPlace(number(one[0]), number(one[1])) for one in body["places"]
    ]
