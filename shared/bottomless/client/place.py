"""Places in a stream as programs name them: an offset, an offset spec, or a time. Pure."""

from datetime import UTC, datetime
from typing import Final, TypeAlias

from bottomless.errors import Code, Fault, InvalidRequest
from bottomless.model.limits import OFFSET_MAX
from bottomless.model.offset_spec import parse_offset_spec, spec_of_place

START_CHOICES: Final = (
    "first, last, next, an offset, tail:10, timestamp:T, a datetime or a time such as 2026-11-22, "
    "or interval:1h"
)

Place: TypeAlias = int | str | datetime
"""An offset; an offset spec such as `tail:10` (docs/reading.md), or a date or time of RFC 3339,
as text; or a datetime with a time zone. A time means the first record that was committed at
it or later."""


def spec_of(place: Place) -> int | str:
    """Turn a place into the offset spec or offset that the server is asked for.

    Raises:
        InvalidRequest: `bad-offset-spec`: a datetime without a time zone.
        TypeError: it is no place at all.
    """
    if isinstance(place, datetime):
        if place.tzinfo is None:
            raise InvalidRequest(
                "a datetime must have a time zone: datetime.now(UTC), for example",
                code=Code.BAD_OFFSET_SPEC,
            )
        moment = place.astimezone(UTC).replace(tzinfo=None)
        return f"timestamp:{moment.isoformat(timespec='microseconds')}Z"
    if isinstance(place, str):
        return spec_of_place(place)
    if isinstance(place, bool) or not isinstance(place, int):
        kind = type(place).__name__
        raise TypeError(f"a place in a stream must be an int, a str or a datetime, not {kind}")
    return place


def check_start(start: Place) -> None:
    """Check that a consumer can start at a place, before any server is asked.

    Raises:
        InvalidRequest: `bad-offset-spec`; it names the choices.
        TypeError: it is no place at all.
    """
    spec = spec_of(start)
    if isinstance(spec, int):
        if not 0 <= spec <= OFFSET_MAX:
            raise _bad_start("an offset must be an integer from 0 to 2^53-1")
        return
    if spec == "stored":
        raise _bad_start("a consumer with a name continues at its stored offset by itself")
    try:
        parse_offset_spec(spec)
    except InvalidRequest as error:
        # Of a spec that names its kind it is said what is wrong with it.
        raise _bad_start(error.message if ":" in spec else "there is no such place") from error


def _bad_start(reason: str) -> InvalidRequest:
    sentence = f"{reason}; start is {START_CHOICES}"
    fault = Fault(Code.BAD_OFFSET_SPEC, sentence, parameter="start")
    return InvalidRequest(f"start: {sentence}", code=Code.BAD_OFFSET_SPEC, faults=[fault])
