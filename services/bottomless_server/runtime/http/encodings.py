"""Undo a Content-Encoding, never to more than a bound.

What a compressed body claims to hold is not believed: it is unpacked piece by piece, and
given up with the first byte too many. A bomb costs what the bound costs, and no more.
"""

import zlib
from typing import Final, Literal, cast

import pyarrow as pa

from bottomless.errors import Code, Fault, InvalidRequest
from bottomless.model.limits import KIB, MIB

ENCODINGS: Final = ("gzip", "zstd", "lz4")
"""RFC 1952, RFC 8878, and the LZ4 frame format: one member or frame, or several one after the other,
which are the body together."""
GZIP_MEMBER_COUNT_MAX: Final = 16_384
"""A body of a million empty ones would be a bomb of another kind. `bgzip` makes 1,100 of 64 MiB."""

_GZIP_WBITS: Final = 31
_PIECE_SIZE: Final = MIB
_GZIP_PIECE_SIZE: Final = 64 * KIB


def decode_body(body: bytes, encoding: str, limit: int) -> bytes:
    """The body as it was before `encoding`; for a thread, since it may take long.

    Raises:
        InvalidRequest: `decompressed-too-large` beyond `limit`, `bad-header` where the body is
            not what the header says: cut short, damaged, or followed by more bytes.
    """
    if encoding == "gzip":
        return _decode_gzip(body, limit)
    return _decode(body, cast("Literal['zstd', 'lz4']", encoding), limit)


def _decode_gzip(body: bytes, limit: int) -> bytes:
    """One member or several (RFC 1952, section 2.2), as `cat` and `bgzip` make them."""
    parts: list[bytes] = []
    size = member_count = 0
    decoder = zlib.decompressobj(_GZIP_WBITS)
    # In pieces: a decoder copies what it was given beyond the end of its member.
    pieces = (
        body[start : start + _GZIP_PIECE_SIZE] for start in range(0, len(body), _GZIP_PIECE_SIZE)
    )
    for piece in pieces:
        rest = piece
        while rest:
            if decoder.eof:
                decoder = zlib.decompressobj(_GZIP_WBITS)
            try:
                part = decoder.decompress(rest, limit + 1 - size)
            except zlib.error:
                raise _malformed() from None
            size += len(part)
            if size > limit:
                raise _too_large(limit)
            parts.append(part)
            rest = decoder.unused_data
            member_count += decoder.eof
            if member_count > GZIP_MEMBER_COUNT_MAX:
                raise _malformed()
    if not decoder.eof:
        raise _malformed()
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _decode(body: bytes, encoding: Literal["zstd", "lz4"], limit: int) -> bytes:
    parts: list[pa.Buffer] = []
    size = 0
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), encoding) as stream:
            # Not read(), which leaks the bytes it was to fill where the stream turns out damaged:
            # whoever sends such bodies would take a MiB of memory with each of them, for ever.
            while (part := stream.read_buffer(min(_PIECE_SIZE, limit + 1 - size))).size:
                size += part.size
                if size > limit:
                    raise _too_large(limit)
                parts.append(part)
    except MemoryError:
        raise
    except (pa.ArrowException, OSError):
        raise _malformed() from None
    if not body:
        raise _malformed()
    return b"".join(parts)


def _malformed() -> InvalidRequest:
    sentence = "the body is not compressed as the Content-Encoding says"
    fault = Fault(Code.BAD_HEADER, sentence, header="content-encoding")
    return InvalidRequest(sentence, code=Code.BAD_HEADER, faults=[fault])


def _too_large(limit: int) -> InvalidRequest:
    return InvalidRequest(
        "the body is larger than the limit once its Content-Encoding is undone",
        code=Code.DECOMPRESSED_TOO_LARGE,
        facts={"limit_bytes": limit},
    )
