"""Records of a JSON request: strict members, each fault with a pointer to its place."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bottomless.errors import Code, Fault, InvalidRequest
from bottomless.model.limits import (
    FILTER_VALUE_SIZE_MAX,
    JSON_RECORD_COUNT_MAX,
    RECORD_KEY_SIZE_MAX,
    RECORD_VALUE_SIZE_MAX,
    TIMESTAMP_MAX,
    TIMESTAMP_MIN,
)
from bottomless.model.offset_spec import parse_timestamp
from bottomless.model.record import Content
from bottomless.model.rows import Headers, Rows
from bottomless.model.unknown_member import unknown_member
from bottomless_server.core.faults import FAULT_COUNT_MAX, invalid
from bottomless_server.core.value_members import (
    VALUES,
    EncodeJson,
    Wrong,
    read_base64,
    read_headers,
    read_text,
    read_value,
)
from bottomless_server.ingest.records.conditions import SEQUENCE_MAX
from bottomless_server.ingest.records.faults import batch_too_large, no_records, record_too_large

_OPTIONAL: Final = ("key", "key_base64", "headers", "event_time", "filter_value")
MEMBERS: Final = frozenset((*VALUES, *_OPTIONAL))
ID: Final = "publishing_id"
_AS_VALUE: Final = "with ?as=value the whole body is stored as one record"


def read_records(
    value: Any, encode_json: EncodeJson, *, numbered: bool = False
) -> tuple[Rows, NDArray[np.int64] | None]:
    """The rows of `{"records": [...]}`; with `numbered` also the publishing_id of each.

    Raises:
        InvalidRequest: `validation-failed`, `number-out-of-range`, `record-too-large`,
            `batch-too-large`.
    """
    records = _records_of(value)
    rows = Columns(len(records), encode_json, numbered=numbered)
    faults: list[Fault] = []
    for number, record in enumerate(records):
        try:
            rows.add(number, record)
        except Wrong as wrong:
            faults.append(Fault(wrong.code, wrong.detail, f"/records/{number}{wrong.place}"))
            if len(faults) == FAULT_COUNT_MAX:
                break
    if faults:
        raise invalid(faults)
    return rows.done(), np.array(rows.ids, np.int64) if numbered else None


def _records_of(value: Any) -> list[Any]:
    if not isinstance(value, dict):
        sentence = f"the body must be an object or an array of values; {_AS_VALUE}"
        raise invalid([Fault(Code.VALIDATION_FAILED, sentence, "")])
    if value.keys() - {"records"}:
        # The member's name is the sender's, so the pointer stops at its parent.
        sentence = unknown_member(_unknown(value, {"records"}), ("records",))
        sentence = f"{sentence}; {_AS_VALUE}"
        raise invalid([Fault("unknown-member", sentence, "")])
    records = value.get("records")
    if not isinstance(records, list) or not records:
        raise no_records("records must be an array of at least one record", "/records")
    if len(records) > JSON_RECORD_COUNT_MAX:
        raise batch_too_large(JSON_RECORD_COUNT_MAX)
    return records


class Columns:
    """Rows in the making; optional columns come into being with their first item."""

    def __init__(
        self, count: int, encode_json: EncodeJson, *, numbered: bool = False, root: str = "/records"
    ) -> None:
        """Collect `count` records; `root` is where in the body they stand, as a pointer."""
        self.ids: list[int] = []
        self._root = root
        self._numbered = numbered
        self._members = MEMBERS | {ID} if numbered else MEMBERS
        self._count = count
        self._encode_json = encode_json
        self._values: list[bytes] = []
        self._contents: list[int] = []
        self._keys: list[bytes | None] | None = None
        self._headers: list[Headers | None] | None = None
        self._event_times: list[int | None] | None = None
        self._filter_values: list[str | None] | None = None

    def add(self, number: int, record: Any) -> None:
        if not isinstance(record, dict):
            raise Wrong("", "a record must be an object")
        if record.keys() - self._members:
            if ID in record:
                raise Wrong(f"/{ID}", "goes with the header Producer-Id, without Producer-Seq")
            known = (*VALUES, *_OPTIONAL, *((ID,) if self._numbered else ()))
            sentence = unknown_member(_unknown(record, self._members), known)
            raise Wrong("", sentence, "unknown-member")
        if self._numbered:
            self.ids.append(_publishing_id(record, self.ids))
        value, content = self._value(number, record)
        self._values.append(value)
        self._contents.append(content)
        if len(record) > 1:
            self._add_optional(number, record)

    def _value(self, number: int, record: dict[str, Any]) -> tuple[bytes, Content]:
        name, value, content = read_value(
            record, self._encode_json, self._root, number, what="a record"
        )
        if len(value) > RECORD_VALUE_SIZE_MAX:
            raise record_too_large(f"{self._root}/{number}/{name}" if self._root else f"/{number}")
        return value, content

    def _add_optional(self, number: int, record: dict[str, Any]) -> None:
        key = _key(record)
        if key is not None:
            self._keys = self._keys or [None] * self._count
            self._keys[number] = key
        if "headers" in record:
            self._headers = self._headers or [None] * self._count
            self._headers[number] = read_headers(record["headers"], what="a record")
        if "event_time" in record:
            self._event_times = self._event_times or [None] * self._count
            self._event_times[number] = _event_time(record["event_time"])
        if "filter_value" in record:
            text = read_text(record["filter_value"], "/filter_value")
            if len(text.encode()) > FILTER_VALUE_SIZE_MAX:
                raise Wrong("/filter_value", f"must have at most {FILTER_VALUE_SIZE_MAX} bytes")
            self._filter_values = self._filter_values or [None] * self._count
            self._filter_values[number] = text

    def done(self) -> Rows:
        return Rows(
            self._values,
            self._contents,
            self._keys,
            self._headers,
            self._event_times,
            self._filter_values,
        )


def _unknown(value: dict[str, Any], known: AbstractSet[str]) -> list[str]:
    return [name for name in value if name not in known]


def _publishing_id(record: dict[str, Any], before: Sequence[int]) -> int:
    place, value = f"/{ID}", record.get(ID)
    if type(value) is not int or not 0 <= value <= SEQUENCE_MAX:
        raise Wrong(
            place,
            f"each record of this producer must have one: an integer from 0 to {SEQUENCE_MAX}",
        )
    if before and value <= before[-1]:
        raise Wrong(place, "must be larger than that of the record before")
    return value


def _key(record: dict[str, Any]) -> bytes | None:
    if "key" in record and "key_base64" in record:
        raise Wrong("", "a record must not have both key and key_base64")
    if "key" in record:
        place, key = "/key", read_text(record["key"], "/key").encode()
    elif "key_base64" in record:
        place, key = "/key_base64", read_base64(record["key_base64"], "/key_base64")
    else:
        return None
    if len(key) > RECORD_KEY_SIZE_MAX:
        raise Wrong(place, f"a key must have at most {RECORD_KEY_SIZE_MAX} bytes")
    return key


def _event_time(value: Any) -> int:
    place = "/event_time"
    if isinstance(value, str):
        try:
            return parse_timestamp(value)
        except InvalidRequest:
            raise Wrong(
                place,
                "must be a time of RFC 3339 with its offset from UTC, or integer milliseconds since 1970",
            ) from None
    if not isinstance(value, int) or isinstance(value, bool):
        raise Wrong(
            place,
            "must be a time of RFC 3339 with its offset from UTC, or integer milliseconds since 1970",
        )
    if not TIMESTAMP_MIN <= value <= TIMESTAMP_MAX:
        raise Wrong(place, "must lie in the years 1 to 9999")
    return value
