"""Turn the body of an append into validated records, all of it or none.

Whatever is refused here is refused before anything is stored, and every fault names its
place, never what was sent.

On the record's path: after front/append_requests.py, before log/core/batcher.py.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bottomless.errors import Code, Fault
from bottomless.formats.batch import decode_message, split_frames
from bottomless.formats.checks import crc32c
from bottomless.formats.rows import Frame, encode_frames
from bottomless.model.limits import (
    FILTER_VALUE_SIZE_MAX,
    RECORD_KEY_SIZE_MAX,
    RECORD_VALUE_SIZE_MAX,
)
from bottomless.model.record import Content
from bottomless.model.rows import Rows
from bottomless_server.core.faults import bad_header, invalid
from bottomless_server.core.short_hash import hash_of
from bottomless_server.core.value_members import EncodeJson
from bottomless_server.ingest.records.arrow_in_place import read_in_place
from bottomless_server.ingest.records.arrow_records import read_arrow
from bottomless_server.ingest.records.conditions import NO_CONDITIONS, Conditions
from bottomless_server.ingest.records.faults import record_too_large
from bottomless_server.ingest.records.frames import read_frames
from bottomless_server.ingest.records.json_records import read_records
from bottomless_server.ingest.records.json_values import Shape, Within, check_count, read_values


@dataclass(frozen=True, slots=True, eq=False)
class Append:
    """The records of one request, either as rows or as frames that are kept as they are."""

    record_count: int
    size: int
    body_crc: int
    rows: Rows | None = None
    frames: tuple[Frame, ...] = ()
    conditions: Conditions = NO_CONDITIONS
    ids: NDArray[np.int64] | None = None
    """The publishing_id of each record, increasing, where the conditions ask for them."""
    body_hash: bytes | None = None
    """The hash of the body, where a key is bound to it."""

    def without_first(self, count: int) -> "Append":
        """An append without the first records of this one, which are stored already."""
        if not count:
            return self
        assert self.ids is not None
        rows, frames = self.rows, self.frames
        if rows is not None:
            rows = rows.without_first(count)
            size = rows.size
        else:
            frames = _without_first(frames, count)
            size = sum(frame.size for frame in frames)
        return replace(
            self,
            record_count=self.record_count - count,
            size=size,
            rows=rows,
            frames=frames,
            ids=self.ids[count:],
        )


def take_json(
    body: bytes, value: Any, encode_json: EncodeJson, conditions: Conditions = NO_CONDITIONS
) -> Append:
    """Make the records of a JSON request; `value` is what strict parsing made of `body`.

    Raises:
        InvalidRequest: 422 with a pointer to each fault, or 413.
    """
    rows, ids = read_records(value, encode_json, numbered=conditions.numbered)
    return _of_rows(rows, body, conditions, ids)


def take_lines(
    lines: Sequence[bytes],
    values: Iterable[Any],
    body: bytes,
    encode_json: EncodeJson,
    within: Within,
    conditions: Conditions,
) -> Append:
    """A record for each line; `values` is what strict parsing makes of one after the other.

    Raises:
        InvalidRequest: 400 or 422 with the line, or 413.
    """
    return _take_values(values, len(lines), body, encode_json, Shape.LINES, within, conditions)


def take_items(
    body: bytes,
    items: Sequence[Any],
    encode_json: EncodeJson,
    within: Within,
    conditions: Conditions,
) -> Append:
    """A record for each item of an array, which is what `body` is.

    Raises:
        InvalidRequest: 422 with a pointer to each fault, or 413.
    """
    check_count(len(items))
    return _take_values(items, len(items), body, encode_json, Shape.ITEMS, within, conditions)


def take_value(
    body: bytes, value: Any, encode_json: EncodeJson, within: Within, conditions: Conditions
) -> Append:
    """Make one record of a body that is its JSON value.

    Raises:
        InvalidRequest: 422 or 413.
    """
    return _take_values([value], 1, body, encode_json, Shape.WHOLE, within, conditions)


def _take_values(
    values: Iterable[Any],
    count: int,
    body: bytes,
    encode_json: EncodeJson,
    shape: Shape,
    within: Within,
    conditions: Conditions,
) -> Append:
    _refuse_numbered(conditions)
    rows = read_values(values, count, encode_json, shape, within)
    return _of_rows(rows, body + within.told_apart(shape), conditions, None)


def take_raw(
    body: bytes,
    key: str | None,
    filter_value: str | None,
    conditions: Conditions = NO_CONDITIONS,
    content: Content = Content.BYTES,
) -> Append:
    """Make one record whose value is the body; key and filter value come from headers.

    Raises:
        InvalidRequest: 413, 400 for a header, or 422 for text that is none.
    """
    _refuse_numbered(conditions)
    if len(body) > RECORD_VALUE_SIZE_MAX:
        raise record_too_large()
    check_headers(key, filter_value)
    if content is Content.TEXT:
        _require_text(body)
    rows = Rows(
        values=[body],
        contents=[content],
        keys=None if key is None else [key.encode("ascii")],
        filter_values=None if filter_value is None else [filter_value],
    )
    apart = _told_apart(key, filter_value) + (b"\0text" if content is Content.TEXT else b"")
    return _of_rows(rows, body + apart, conditions, None)


def check_headers(key: str | None, filter_value: str | None) -> None:
    """Hold what headers say of one record to its bounds.

    Raises:
        InvalidRequest: `bad-header`.
    """
    for name, text, limit in (
        ("stream-key", key, RECORD_KEY_SIZE_MAX),
        ("stream-filter-value", filter_value, FILTER_VALUE_SIZE_MAX),
    ):
        if text is not None and len(text) > limit:
            raise bad_header(name, f"the header must have at most {limit} bytes")


def _require_text(body: bytes) -> None:
    try:
        body.decode()
    except UnicodeDecodeError:
        sentence = "the body is not UTF-8; with application/octet-stream it may be any bytes"
        raise invalid([Fault(Code.VALIDATION_FAILED, sentence, "")]) from None


def _told_apart(key: str | None, filter_value: str | None) -> bytes:
    """What makes a raw record another one than its body does: part of what a repeat repeats."""
    if key is None and filter_value is None:
        return b""
    # No header has a zero byte, and one that is empty is not one that is absent.
    parts = (b"" if text is None else b"\1" + text.encode("ascii") for text in (key, filter_value))
    return b"".join(b"\0" + part for part in parts)


def take_arrow(body: bytes, frame_size_max: int, conditions: Conditions = NO_CONDITIONS) -> Append:
    """The records of an Arrow IPC stream; its batches stay batches.

    Frames may be views of the body, which must not change afterwards.

    Raises:
        InvalidRequest: 422 or 413.
    """
    found = read_in_place(body, frame_size_max, numbered=conditions.numbered)
    if found is None:
        found = read_arrow(body, frame_size_max, numbered=conditions.numbered)
    frames, ids = found
    return _of_frames(frames, body, conditions, ids)


def take_frames(body: bytes, frame_size_max: int, conditions: Conditions = NO_CONDITIONS) -> Append:
    """The records of frames as storage keeps them, and as they will be stored.

    Raises:
        InvalidRequest: 422 or 413.
    """
    _refuse_numbered(conditions)
    return _of_frames(read_frames(body, frame_size_max), body, conditions, None)


def take_staged(frames: Sequence[Frame], conditions: Conditions) -> Append:
    """The records of staged batches, in the order in which a commit names them; they were validated
    when they were staged."""
    return Append(
        record_count=sum(frame.record_count for frame in frames),
        size=sum(frame.size for frame in frames),
        body_crc=crc_of_staged(frames),
        frames=tuple(frames),
        conditions=conditions,
    )


def crc_of_staged(frames: Sequence[Frame]) -> int:
    """What stands for the body of a commit: the frames that it names, in their order."""
    crc = 0
    for frame in frames:
        crc = crc32c(crc.to_bytes(4, "little") + crc32c(frame.data).to_bytes(4, "little"))
    return crc


def _refuse_numbered(conditions: Conditions) -> None:
    if conditions.numbered:
        sentence = "records of this form have no publishing_id: use Producer-Seq"
        raise bad_header("producer-id", sentence)


def _of_rows(
    rows: Rows, body: bytes, conditions: Conditions, ids: NDArray[np.int64] | None
) -> Append:
    return Append(
        record_count=len(rows.values),
        size=rows.size,
        body_crc=crc32c(body),
        rows=rows,
        conditions=conditions,
        ids=ids,
        body_hash=hash_of(body) if conditions.keyed else None,
    )


def _of_frames(
    frames: tuple[Frame, ...], body: bytes, conditions: Conditions, ids: NDArray[np.int64] | None
) -> Append:
    return Append(
        record_count=sum(frame.record_count for frame in frames),
        size=sum(frame.size for frame in frames),
        body_crc=crc32c(body),
        frames=frames,
        conditions=conditions,
        ids=ids,
        body_hash=hash_of(body) if conditions.keyed else None,
    )


def _without_first(frames: Sequence[Frame], count: int) -> tuple[Frame, ...]:
    for number, frame in enumerate(frames):
        if count < frame.record_count:
            if not count:
                return tuple(frames[number:])
            [(header, stored)] = split_frames(memoryview(frame.data))
            batch = decode_message(header, stored).slice(count)
            return (*encode_frames(batch, frame.size), *frames[number + 1 :])
        count -= frame.record_count
    raise AssertionError("no record is left")
