"""Places in a stream as programs say them: an offset, an offset spec, or a time. Pure."""

from datetime import UTC, datetime
from typing import TypeAlias

from bottomless.errors import Code, InvalidRequest
from bottomless.model.offset_spec import spec_of_place

Place: TypeAlias = int | str | datetime
"""An offset; an offset spec as `tail:10` (docs/reading.md), or a date or time of RFC 3339 as text;
or a time that knows its zone. A time means the first record that was committed at it or after."""


def spec_of(place: Place) -> int | str:
    """What the server is asked for.

    Raises:
        InvalidRequest: `bad-offset-spec`, a time without a zone.
        TypeError: it is no place at all.
    """
    if isinstance(place, datetime):
        if place.tzinfo is None:
            raise InvalidRequest(
                "a datetime that is a place has a time zone: datetime.now(UTC), for example",
                code=Code.BAD_OFFSET_SPEC,
            )
        moment = place.astimezone(UTC).replace(tzinfo=None)
        return f"timestamp:{moment.isoformat(timespec='microseconds')}Z"
    if isinstance(place, str):
        return spec_of_place(place)
    if isinstance(place, bool) or not isinstance(place, int):
        kind = type(place).__name__
        raise TypeError(f"a place in a stream is an int, a str or a datetime, not {kind}")
    return place
