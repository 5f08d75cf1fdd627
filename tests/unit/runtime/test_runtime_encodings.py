"""Compressed bodies: undone whole, or refused early."""

import gzip
import random
import resource
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from bottomless.errors import Code, InvalidRequest
from bottomless_server.runtime.http.encodings import ENCODINGS, GZIP_MEMBER_COUNT_MAX, decode_body

MIB = 1024 * 1024
TEXT = b"stream " * 10_000


def packed(data: bytes, encoding: Any) -> bytes:
    if encoding == "gzip":
        return gzip.compress(data)
    return bytes(pa.compress(data, codec=encoding, asbytes=True))


def refused(body: bytes, encoding: str, limit: int = MIB) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as error:
        decode_body(body, encoding, limit)
    return error.value


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("data", [b"", b"a", TEXT, b"\0" * MIB])
def test_a_body_comes_back(encoding: str, data: bytes) -> None:
    assert decode_body(packed(data, encoding), encoding, MIB) == data


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_one_byte_too_many_is_too_large(encoding: str) -> None:
    assert decode_body(packed(TEXT, encoding), encoding, len(TEXT)) == TEXT
    error = refused(packed(TEXT, encoding), encoding, len(TEXT) - 1)
    assert error.code is Code.DECOMPRESSED_TOO_LARGE
    assert error.facts == {"limit_bytes": len(TEXT) - 1}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_what_is_cut_short_or_goes_on_or_is_none_is_refused(encoding: str) -> None:
    whole = packed(TEXT, encoding)
    for body in (b"", b"x", whole[:-1], whole[: len(whole) // 2], whole + b"x", TEXT):
        error = refused(body, encoding)
        assert error.code is Code.BAD_HEADER
        assert error.faults[0].header == "content-encoding"


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_several_members_or_frames_are_one_body(encoding: str) -> None:
    """A log that is packed piece by piece is sent as it lies there."""
    pieces = [b"", TEXT, b"a", b"\0" * MIB, b"", random.Random(2).randbytes(200_000)]
    body = b"".join(packed(piece, encoding) for piece in pieces)
    whole = b"".join(pieces)
    assert decode_body(body, encoding, len(whole)) == whole
    assert refused(body, encoding, len(whole) - 1).code is Code.DECOMPRESSED_TOO_LARGE
    for bad in (body + b"x", body[:-1], body + packed(TEXT, encoding)[:-1]):
        assert refused(bad, encoding, 2 * len(whole)).code is Code.BAD_HEADER


def test_gzip_is_not_zlib_and_has_a_bound_of_empty_members() -> None:
    assert refused(zlib.compress(b"a"), "gzip").code is Code.BAD_HEADER
    assert refused(gzip.compress(b"a") + zlib.compress(b"a"), "gzip").code is Code.BAD_HEADER
    empty = gzip.compress(b"")
    assert decode_body(empty * GZIP_MEMBER_COUNT_MAX, "gzip", MIB) == b""
    assert refused(empty * (GZIP_MEMBER_COUNT_MAX + 1), "gzip").code is Code.BAD_HEADER


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_bomb_costs_what_the_bound_costs(encoding: str) -> None:
    bomb = packed(bytes(256 * MIB), encoding)
    pool = pa.default_memory_pool()
    tracemalloc.start()
    try:
        assert refused(bomb, encoding, 4 * MIB).code is Code.DECOMPRESSED_TOO_LARGE
        assert tracemalloc.get_traced_memory()[1] < 16 * MIB
    finally:
        tracemalloc.stop()
    assert pool.bytes_allocated() < 64 * MIB


@pytest.mark.parametrize("encoding", ["zstd", "lz4"])
def test_damaged_bodies_leave_nothing_in_memory(encoding: str) -> None:
    """Found by fuzzing: each of them kept up to a MiB for ever, outside of every account."""
    whole = packed(random.Random(1).randbytes(MIB - 100_000), encoding)
    body = whole[:-8] + b"\xff" * 16

    def refuse_some(count: int) -> None:
        for _ in range(count):
            assert refused(body, encoding, 2 * MIB).code is Code.BAD_HEADER
        pa.default_memory_pool().release_unused()

    refuse_some(50)
    before = resident()
    refuse_some(300)
    assert resident() - before < 120 * MIB, "it was 260 once"


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
