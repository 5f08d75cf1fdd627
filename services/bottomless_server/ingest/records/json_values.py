"""Records that are JSON values as they are: lines, the items of an array, or one whole body.

There is no envelope around a value, so its key and its time are looked for within it, where
the request says by a pointer. A pointer that leads to nothing in one record refuses all of
them, since it is far more often misspelt than meant.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import orjson

from bottomless.errors import Fault, InvalidRequest
from bottomless.model.limits import JSON_RECORD_COUNT_MAX
from bottomless.model.rows import Rows
from bottomless_server.core.faults import FAULT_COUNT_MAX, invalid
from bottomless_server.core.value_members import EncodeJson, Wrong
from bottomless_server.ingest.records.faults import batch_too_large, no_records
from bottomless_server.ingest.records.json_pointer import MISSING, Pointer, follow
from bottomless_server.ingest.records.json_records import Columns

_FROM_QUERY: Final = ("key", "event_time")


class Shape(Enum):
    """What of a body is a record; the values tell their requests apart (`Within.told_apart`)."""

    LINES = b"lines"
    ITEMS = b"items"
    WHOLE = b"whole"


@dataclass(frozen=True, slots=True)
class Within:
    """Where in each value its key and its time stand, and what else the request says of them."""

    key: Pointer | None = None
    key_optional: bool = False
    event_time: Pointer | None = None
    event_time_optional: bool = False
    fixed_key: str | None = None
    """The key of the only record, from a header of ASCII."""
    filter_value: str | None = None
    """The filter value of the only record, from a header of ASCII."""

    def told_apart(self, shape: Shape) -> bytes:
        """What makes other records of the same body: part of what a repeat repeats.

        It stands after the body, and begins with a byte that no JSON has.
        """
        asked = [
            self.key,
            self.key_optional,
            self.event_time,
            self.event_time_optional,
            self.fixed_key,
            self.filter_value,
        ]
        return b"\0" + shape.value + b"\0" + orjson.dumps(asked)


def check_count(count: int) -> None:
    """Refuse a body without a value, and one with more than an append takes, before it is read.

    Raises:
        InvalidRequest: 422 or 413.
    """
    if not count:
        raise no_records("the body must hold at least one value", "")
    if count > JSON_RECORD_COUNT_MAX:
        raise batch_too_large(JSON_RECORD_COUNT_MAX)


def split_lines(body: bytes) -> list[bytes]:
    """The lines of a body, without their ends; the last may have none.

    Counted before they are cut, since a body of line feeds alone would make millions.

    Raises:
        InvalidRequest: 422 for none, or 413.
    """
    check_count(body.count(b"\n") + (not body.endswith(b"\n") if body else 0))
    return body.removesuffix(b"\n").split(b"\n")


def read_values(
    values: Iterable[Any], count: int, encode_json: EncodeJson, shape: Shape, within: Within
) -> Rows:
    """The rows of `count` values, each a record's JSON.

    Raises:
        InvalidRequest: `validation-failed`, `number-out-of-range`, `record-too-large`.
    """
    rows = Columns(count, encode_json, root="")
    faults: list[Fault] = []
    for number, value in enumerate(values):
        try:
            rows.add(number, _record(value, within))
        except Wrong as wrong:
            faults.append(_fault(wrong, number, shape))
            if len(faults) == FAULT_COUNT_MAX:
                break
        except InvalidRequest as error:
            raise _placed(error, number, shape) from None
    if faults:
        raise invalid(faults)
    return rows.done()


def _record(value: Any, within: Within) -> dict[str, Any]:
    """The value in the envelope that it came without."""
    record = {"json": value}
    if within.key is not None:
        key = _found(value, within.key, "/key", optional=within.key_optional)
        if key is not None:
            record["key"] = _key_text(key)
    elif within.fixed_key is not None:
        record["key"] = within.fixed_key
    if within.event_time is not None:
        time = _found(value, within.event_time, "/event_time", optional=within.event_time_optional)
        if time is not None:
            record["event_time"] = time
    if within.filter_value is not None:
        record["filter_value"] = within.filter_value
    return record


def _found(value: Any, pointer: Pointer, place: str, *, optional: bool) -> Any:
    found = follow(value, pointer)
    if found is not MISSING and found is not None:
        return found
    if optional:
        return None
    name = place[1:]
    raise Wrong(
        place, f"the pointer of {name} leads to nothing; {name}_optional=true takes such records"
    )


def _key_text(key: Any) -> str:
    """A text as it is, a number or truth value as JSON writes it."""
    if isinstance(key, str):
        return key
    if isinstance(key, dict | list):
        raise Wrong("/key", "the pointer of key must lead to a text, a number, true or false")
    try:
        return orjson.dumps(key).decode()
    except orjson.JSONEncodeError:
        raise Wrong("/key", "the pointer of key leads to a number beyond 64 bits") from None


def _fault(wrong: Wrong, number: int, shape: Shape) -> Fault:
    name = wrong.place[1:]
    parameter = name if name in _FROM_QUERY else None
    detail = f"line {number + 1}: {wrong.detail}" if shape is Shape.LINES else wrong.detail
    return Fault(wrong.code, detail, _pointer(number, shape), parameter)


def _placed(error: InvalidRequest, number: int, shape: Shape) -> InvalidRequest:
    """A fault that ends the reading, with the place of its record."""
    faults = [
        Fault(fault.code, fault.detail, _pointer(number, shape), fault.parameter)
        for fault in error.faults
    ]
    place = f"line {number + 1}: " if shape is Shape.LINES else ""
    return InvalidRequest(place + error.message, code=error.code, faults=faults, facts=error.facts)


def _pointer(number: int, shape: Shape) -> str:
    """Lines are counted as if they were the items of an array."""
    return "" if shape is Shape.WHOLE else f"/{number}"
