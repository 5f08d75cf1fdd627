"""Records that come as storage keeps them: frames, validated fully and stored as they were sent.

Every checksum is verified and every batch is decoded, under bounds that are checked before
anything is allocated; afterwards the bytes of the request are the bytes on disk.
"""

import struct
from typing import Final

from bottomless.errors import Code, Corrupt, Fault, InvalidRequest
from bottomless.formats.batch import (
    HEADER_SIZE,
    Codec,
    FrameHeader,
    decode_frame_header,
    decode_message,
    split_frames,
)
from bottomless.formats.checks import check, crc32c
from bottomless.formats.rows import Frame
from bottomless.model.limits import (
    ARROW_RECORD_COUNT_MAX,
    CHUNK_BATCH_COUNT_MAX,
    DECOMPRESSED_SIZE_MAX,
)
from bottomless_server.ingest.records.arrow_records import check_stored
from bottomless_server.ingest.records.faults import batch_too_large, column_fault, no_records

_CRC: Final = struct.Struct("<I")
_FRAME_COUNT_MAX: Final = CHUNK_BATCH_COUNT_MAX // 2
"""Bounds the Python work on one body; real writers send a handful."""


def is_plain(body: bytes) -> bool:
    """Whether it seems to be one frame without a codec: what reading it costs, its size says."""
    try:
        header = decode_frame_header(body)
    except Corrupt:
        return False
    return header.codec is Codec.NONE and header.frame_size == len(body)


def read_frames(body: bytes, frame_size_max: int) -> tuple[Frame, ...]:
    """The frames of which `body` is made, nothing between them.

    Raises:
        InvalidRequest: `crc-mismatch`, `validation-failed`, `record-too-large`,
            `batch-too-large`, `decompressed-too-large`.
    """
    view, position, found = memoryview(body), 0, list[tuple[FrameHeader, memoryview]]()
    while position < len(view):
        header = _header(view[position:])
        found.append((header, view[position : position + header.frame_size]))
        position += header.frame_size
        if position > len(view) or len(found) > _FRAME_COUNT_MAX:
            raise _malformed("a frame is cut short, or there are too many")
    if not found:
        raise no_records("the body holds no frame")
    _check_sizes([header for header, _ in found], frame_size_max)
    for header, frame in found:
        _check_frame(header, frame)
    return tuple(Frame(header.record_count, (frame,)) for header, frame in found)


def stored_frames(data: bytes | memoryview) -> list[Frame]:
    """The frames of a staged batch as they are read back, each with the checksum that it was sent
    with; they are views of `data`.

    Raises:
        Corrupt: the bytes are not those that were staged.
    """
    view, frames, start = memoryview(data), [], 0
    for header, stored in split_frames(view):
        check("staged batch", crc32c(stored) == header.body_crc, "its checksum does not match")
        end = start + header.frame_size
        frames.append(Frame(header.record_count, (view[start:end],)))
        start = end
    return frames


def _header(view: memoryview) -> FrameHeader:
    if len(view) < HEADER_SIZE:
        raise _malformed("a frame is cut short")
    # Before anything else is believed: a flipped bit is to be called by its name.
    if _CRC.unpack_from(view, HEADER_SIZE - _CRC.size)[0] != crc32c(
        view[: HEADER_SIZE - _CRC.size]
    ):
        raise _mismatch()
    try:
        return decode_frame_header(view)
    except Corrupt as error:
        raise _malformed("a frame has a header that no writer makes") from error


def _check_sizes(headers: list[FrameHeader], frame_size_max: int) -> None:
    if sum(header.record_count for header in headers) > ARROW_RECORD_COUNT_MAX:
        raise batch_too_large(ARROW_RECORD_COUNT_MAX)
    # A reader decodes a whole frame for one record of it.
    largest = max(header.raw_size for header in headers)
    if largest > frame_size_max:
        raise InvalidRequest(
            "a frame is larger than a chunk once it is decoded",
            code=Code.BATCH_TOO_LARGE,
            facts={"limit_bytes": frame_size_max},
        )
    if sum(header.raw_size for header in headers) > DECOMPRESSED_SIZE_MAX:
        raise InvalidRequest(
            "the frames are larger than the limit once they are decoded",
            code=Code.DECOMPRESSED_TOO_LARGE,
            facts={"limit_bytes": DECOMPRESSED_SIZE_MAX},
        )


def _check_frame(header: FrameHeader, frame: memoryview) -> None:
    end = HEADER_SIZE + header.stored_size
    stored = frame[HEADER_SIZE:end]
    # No checksum covers the padding, which is known.
    if crc32c(stored) != header.body_crc or any(frame[end:]):
        raise _mismatch()
    try:
        batch = decode_message(header, stored, full=True)
    except Corrupt as error:
        raise _malformed("a frame does not hold a valid record batch") from error
    check_stored(batch)


def _mismatch() -> InvalidRequest:
    sentence = "a frame does not match its checksum"
    fault = Fault(Code.CRC_MISMATCH, sentence)
    return InvalidRequest(sentence, code=Code.CRC_MISMATCH, faults=[fault])


def _malformed(sentence: str) -> InvalidRequest:
    return column_fault("", sentence)
