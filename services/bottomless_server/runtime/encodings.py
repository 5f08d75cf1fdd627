"""Undo a Content-Encoding, never to more than a bound.

What a compressed body claims to hold is not believed: it is unpacked piece by piece, and
given up with the first byte too many. A bomb costs what the bound costs, and no more.
"""

import zlib
from typing import Final, Literal, cast

import pyarrow as pa

from bottomless.errors import Code, Fault, InvalidRequest
from bottomless.model.limits import MIB

ENCODINGS: Final = ("gzip", "zstd", "lz4")
"""Each as one stream: RFC 1952, RFC 8878, and the LZ4 frame format."""

_GZIP_WBITS: Final = 31
_PIECE_SIZE: Final = MIB


def decode_body(body: bytes, encoding: str, limit: int) -> bytes:
    """The body as it was before `encoding`; for a thread, since it may take long.

    Raises:
        InvalidRequest: `decompressed-too-large` beyond `limit`, `bad-header` where the body is
            not what the header says: cut short, damaged, or with bytes behind its end.
    """
    if encoding == "gzip":
        return _decode_gzip(body, limit)
    return _decode(body, cast("Literal['zstd', 'lz4']", encoding), limit)


def _decode_gzip(body: bytes, limit: int) -> bytes:
    decoder = zlib.decompressobj(_GZIP_WBITS)
    try:
        data = decoder.decompress(body, limit + 1)
    except zlib.error:
        raise _malformed() from None
    if len(data) > limit:
        raise _too_large(limit)
    # One member only: a body of a million empty ones would be a bomb of another kind.
    if not decoder.eof or decoder.unused_data:
        raise _malformed()
    return data


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
    sentence = "the body is not what the Content-Encoding says"
    fault = Fault(Code.BAD_HEADER, sentence, header="content-encoding")
    return InvalidRequest(sentence, code=Code.BAD_HEADER, faults=[fault])


def _too_large(limit: int) -> InvalidRequest:
    return InvalidRequest(
        "the body is larger than the limit once its Content-Encoding is undone",
        code=Code.DECOMPRESSED_TOO_LARGE,
        facts={"limit_bytes": limit},
    )
