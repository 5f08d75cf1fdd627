"""Lines of text, and batches of the records that they make: the base of several formats.

A batch is cut by count and by bytes, and where the input pauses, or trickles: what is piped from
something slow shall not wait for a full batch.
"""

import os
import select
import time
from collections.abc import Callable, Iterable, Iterator
from io import UnsupportedOperation
from typing import Any, BinaryIO, Final, NamedTuple

import orjson

from bottomless.cli.inputs.parts import Limits, Part, Taking
from bottomless.errors import Code, InvalidRequest
from bottomless.model.limits import JSON_BODY_SIZE_MAX, MIB

LINE_SIZE_MAX: Final = 2 * MIB
"""Bytes: more than a record may have, so that the server's own limit is the one that is met."""

_PIECE_SIZE: Final = 256 * 1024
_PAUSE_SECONDS: Final = 0.1
_HELD_SECONDS: Final = 0.5
"""How long a line is held for others that come one by one, without any pause."""

Encode = Callable[[bytes, int], bytes | None]
"""Makes a record from a line and its number; None for a line that holds none."""


class Batch(NamedTuple):
    """Records of one request, and how many bytes of the input they were."""

    records: list[bytes]
    input_size: int

    def body(self) -> bytes:
        """Encode the batch as the body of an append."""
        from bottomless.client.encoding import joined_json_body  # noqa: PLC0415

        return joined_json_body(self.records)


def lines_of(stream: BinaryIO) -> Iterator[bytes | None]:
    """Give the lines without their ends, and None where what was given is to be sent: the input pauses,
    or brings no more than a trickle.

    Raises:
        InvalidRequest: a line is longer than LINE_SIZE_MAX.
    """
    held = b""
    number = 1
    for piece in _pieces_of(stream):
        if piece is None:
            yield None
            continue
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


def _pieces_of(stream: BinaryIO) -> Iterator[bytes | None]:
    """What is there, and None where more is not there yet.

    Reads the file descriptor itself: a buffer in between would hide what is there. What is
    unpacked has none, and never pauses: it comes from a file.
    """
    try:
        descriptor = stream.fileno()
    except UnsupportedOperation:
        while piece := stream.read(_PIECE_SIZE):
            yield piece
        return
    held_since: float | None = None
    while True:
        patience = _PAUSE_SECONDS
        if held_since is not None:
            left = held_since + _HELD_SECONDS - time.monotonic()
            patience = min(patience, max(left, 0.0))
        if not select.select([descriptor], [], [], patience)[0]:
            yield None
            held_since = None
            select.select([descriptor], [], [])
        piece = os.read(descriptor, _PIECE_SIZE)
        if not piece:
            return
        if held_since is None:
            held_since = time.monotonic()
        yield piece


def parts_of_lines(source: BinaryIO, taking: Taking, encode: Encode) -> Iterator[Part]:
    """Make parts of an input whose lines are records."""
    return parts_of_encoded(lines_of(source), taking, encode)


def parts_of_encoded(
    lines: Iterable[bytes | None], taking: Taking, encode: Encode
) -> Iterator[Part]:
    """Make parts of lines that are encoded as records, wherever they come from."""
    from bottomless.client.encoding import JSON  # noqa: PLC0415

    for batch in batches_of(lines, encode, taking.limits, taking.skipped):
        yield Part(batch.body(), JSON, len(batch.records), batch.input_size)


def batches_of(
    lines: Iterable[bytes | None],
    encode: Encode,
    limits: Limits,
    skipped: int = 0,
) -> Iterator[Batch]:
    """Encode each line with its number, counted from 1, and put the records together.

    A line that gives no record is left out, and so are the first `skipped` records. If a line is
    refused, the records before it are given first.

    Raises:
        InvalidRequest: a line was refused.
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
    lines: Iterable[bytes | None], encode: Encode
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


def loaded_line(line: bytes, number: int) -> Any:
    """Decode a line as JSON; `number` is the line's, for the error.

    Raises:
        InvalidRequest: `malformed-json`.
    """
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(
            "the line is not JSON", code=Code.MALFORMED_JSON, facts={"line": number}
        ) from error


assert LINE_SIZE_MAX < JSON_BODY_SIZE_MAX
