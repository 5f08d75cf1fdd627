"""Batches: records as they are read, put together to bodies that the server takes.

A batch is cut by count and by bytes, and where the input pauses: what is piped from
something slow shall not wait for a full batch.
"""

import os
import select
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple, cast

import orjson

from bottomless.errors import Code, InvalidRequest
from bottomless.model.limits import JSON_BODY_SIZE_MAX, MIB

if TYPE_CHECKING:
    from io import IOBase

    import pyarrow as pa

LINE_SIZE_MAX: Final = 2 * MIB
"""More than a record may have, so that the server's own limit is what is met."""

_PIECE_SIZE: Final = 256 * 1024
_PAUSE_SECONDS: Final = 0.1
_COLUMNS_READ_ONLY: Final = frozenset({"offset", "timestamp"})
"""What a read adds to a record, and an append does not take."""


class Limits(NamedTuple):
    """How large a batch gets."""

    record_count: int
    size: int


class Batch(NamedTuple):
    """Records of one request, and how many bytes of the input they were."""

    records: list[bytes]
    input_size: int

    def body(self) -> bytes:
        from bottomless.client.encoding import joined_json_body  # noqa: PLC0415

        return joined_json_body(self.records)


def lines_of(stream: BinaryIO) -> Iterator[bytes | None]:
    """Lines without their ends, and None where more is not there yet.

    Reads the file descriptor itself: a buffer in between would hide what is there.
    """
    held = b""
    descriptor = stream.fileno()
    number = 1
    while True:
        if not select.select([descriptor], [], [], _PAUSE_SECONDS)[0]:
            yield None
            select.select([descriptor], [], [])
        piece = os.read(descriptor, _PIECE_SIZE)
        if not piece:
            break
        *whole, held = (held + piece).split(b"\n")
        number += len(whole)
        yield from whole
        if len(held) > LINE_SIZE_MAX:
            raise InvalidRequest(
                "a line is too long for a record",
                code=Code.RECORD_TOO_LARGE,
                facts={"line": number},
            )
    if held:
        yield held


def batches_of(
    lines: Iterable[bytes | None],
    encode: Callable[[bytes, int], bytes | None],
    limits: Limits,
    skipped: int = 0,
) -> Iterator[Batch]:
    """Encode each line with its number, counted from 1, and put the records together.

    A line of which nothing is made is left out, and so are the first `skipped` records.
    Where a line is refused, those before it come first, and then the error.
    """
    records: list[bytes] = []
    size = input_size = 0
    for record, line_size in _encoded(lines, encode):
        if isinstance(record, InvalidRequest):
            if records:
                yield Batch(records, input_size)
            raise record
        full = len(records) == limits.record_count or size + len(record or b"") > limits.size
        if records and (record is None or full):
            yield Batch(records, input_size)
            records, size, input_size = [], 0, 0
        input_size += line_size
        if record and skipped:
            skipped -= 1
        elif record:
            records.append(record)
            size += len(record) + 1
    if records:
        yield Batch(records, input_size)


def _encoded(
    lines: Iterable[bytes | None], encode: Callable[[bytes, int], bytes | None]
) -> Iterator[tuple[bytes | InvalidRequest | None, int]]:
    """Each record and the bytes of its line; None for a pause, an error as the last."""
    number = 0
    try:
        for line in lines:
            if line is None:
                yield None, 0
                continue
            number += 1
            yield encode(line, number) or b"", len(line) + 1
    except InvalidRequest as error:
        yield error, 0


def encode_line(line: bytes, _number: int) -> bytes:
    """A line as a record with that text, or with those bytes if it is none."""
    try:
        return orjson.dumps({"value": line.decode()})
    except UnicodeDecodeError:
        from base64 import b64encode  # noqa: PLC0415

        return orjson.dumps({"value_base64": b64encode(line).decode()})


def json_encoder(key_field: str | None) -> Callable[[bytes, int], bytes | None]:
    """Make an encoder of lines that are JSON values; one of their members may be the key."""

    def encode(line: bytes, number: int) -> bytes | None:
        if not line.strip():
            return None
        record: dict[str, Any] = {"json": orjson.Fragment(line.strip())}
        value = _loaded(line, number)
        key = value.get(key_field) if key_field and isinstance(value, dict) else None
        if key is not None:
            record["key"] = key if isinstance(key, str) else orjson.dumps(key).decode()
        return orjson.dumps(record)

    return encode


def encode_record(line: bytes, number: int) -> bytes | None:
    """A line that is a whole record already, as `read -o ndjson` writes it."""
    if not line.strip():
        return None
    record = _loaded(line, number)
    if not isinstance(record, dict):
        raise InvalidRequest(
            "the line is not a record", code=Code.VALIDATION_FAILED, facts={"line": number}
        )
    return orjson.dumps({k: v for k, v in record.items() if k not in _COLUMNS_READ_ONLY})


def tables_of(stream: BinaryIO, limits: Limits, skipped: int = 0) -> Iterator["pa.RecordBatch"]:
    """The record batches of an Arrow IPC stream behind the first rows, cut to requests."""
    import pyarrow as pa  # noqa: PLC0415

    from bottomless.formats.rows import slices_of  # noqa: PLC0415

    try:
        with pa.ipc.open_stream(cast("IOBase", stream)) as reader:
            kept = [name for name in reader.schema.names if name not in _COLUMNS_READ_ONLY]
            for batch in reader:
                rows = batch.select(kept).slice(min(skipped, batch.num_rows))
                skipped -= batch.num_rows - rows.num_rows
                yield from slices_of(rows, record_count=limits.record_count, size=limits.size)
    except pa.ArrowInvalid as error:
        raise InvalidRequest(
            "the input is not an Arrow IPC stream", code=Code.VALIDATION_FAILED
        ) from error


def _loaded(line: bytes, number: int) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(
            "the line is not JSON", code=Code.MALFORMED_JSON, facts={"line": number}
        ) from error


assert LINE_SIZE_MAX < JSON_BODY_SIZE_MAX
