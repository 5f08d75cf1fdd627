"""Turn the body of an append into validated records, all of it or none.

Whatever is refused here is refused before anything is stored, and every fault names its
place, never what was sent.

On the record's path: after routes.py, before core/batcher.py.
"""

from dataclasses import dataclass
from typing import Any

from bottomless.errors import Code, Fault, InvalidRequest
from bottomless.formats.checks import crc32c
from bottomless.model.limits import (
    FILTER_VALUE_SIZE_MAX,
    RECORD_KEY_SIZE_MAX,
    RECORD_VALUE_SIZE_MAX,
)
from bottomless.model.record import Content
from bottomless_server.ingest.core.arrow_records import read_arrow
from bottomless_server.ingest.core.faults import record_too_large
from bottomless_server.ingest.core.json_records import EncodeJson, read_records
from bottomless_server.ingest.core.rows import Frame, Rows


@dataclass(frozen=True, slots=True)
class Append:
    """One request's records. Either rows, or frames that are kept as they are."""

    record_count: int
    size: int
    body_crc: int
    rows: Rows | None = None
    frames: tuple[Frame, ...] = ()


def take_json(body: bytes, value: Any, encode_json: EncodeJson) -> Append:
    """The records of a JSON request; `value` is what strict parsing made of `body`.

    Raises:
        InvalidRequest: 422 with a pointer to each fault, or 413.
    """
    return _of_rows(read_records(value, encode_json), body)


def take_raw(body: bytes, key: str | None, filter_value: str | None) -> Append:
    """One record whose value is the body; key and filter value come from headers.

    Raises:
        InvalidRequest: 413, or 400 for a header.
    """
    if len(body) > RECORD_VALUE_SIZE_MAX:
        raise record_too_large()
    for name, text, limit in (
        ("stream-key", key, RECORD_KEY_SIZE_MAX),
        ("stream-filter-value", filter_value, FILTER_VALUE_SIZE_MAX),
    ):
        if text is not None and len(text) > limit:
            sentence = f"the header has at most {limit} bytes"
            raise InvalidRequest(
                sentence,
                code=Code.BAD_HEADER,
                faults=[Fault(Code.BAD_HEADER, sentence, header=name)],
            )
    rows = Rows(
        values=[body],
        contents=[Content.BYTES],
        keys=None if key is None else [key.encode("ascii")],
        filter_values=None if filter_value is None else [filter_value],
    )
    return _of_rows(rows, body)


def take_arrow(body: bytes, frame_size_max: int) -> Append:
    """The records of an Arrow IPC stream; its batches stay batches.

    Raises:
        InvalidRequest: 422 or 413.
    """
    frames = read_arrow(body, frame_size_max)
    return Append(
        record_count=sum(frame.record_count for frame in frames),
        size=sum(len(frame.data) for frame in frames),
        body_crc=crc32c(body),
        frames=frames,
    )


def _of_rows(rows: Rows, body: bytes) -> Append:
    return Append(record_count=len(rows.values), size=rows.size, body_crc=crc32c(body), rows=rows)
