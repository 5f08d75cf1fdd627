"""Forms of an append beside JSON: frames as they are stored, and bodies that come compressed."""

import gzip
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bottomless.errors import Code, InvalidRequest
from bottomless.formats.batch import HEADER_SIZE, Codec, FrameHeader, encode_frame, schema_of
from bottomless.formats.batch import encode_frame_header as encode_header
from bottomless.formats.checks import crc32c
from bottomless.formats.chunk import batches_of, split_chunks
from bottomless.model.limits import DECOMPRESSED_SIZE_MAX, JSON_BODY_SIZE_MAX, MIB
from bottomless.model.record import Columns
from bottomless_server.ingest.records.frames import read_frames
from unit.ingest.harness import ROUTE, STREAM, IngestHarness, arrow, problem

FRAMES = {"content-type": "application/vnd.bottomless.batches"}
ARROW = {"content-type": "application/vnd.apache.arrow.stream"}
SIZE_MAX = 8 * MIB


def frame(values: list[Any], codec: Codec = Codec.NONE, **columns: list[Any]) -> bytes:
    mask = Columns.VALUE
    for name in columns:
        mask |= Columns[name.upper()]
    schema = schema_of(mask)
    rows = {"value": values, **columns}
    arrays = [pa.array(rows[field.name], field.type) for field in schema]
    return encode_frame(pa.record_batch(arrays, schema=schema), codec)


def refused(body: bytes) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as error:
        read_frames(body, SIZE_MAX)
    return error.value


@pytest.mark.parametrize("codec", Codec)
async def test_frames_are_stored_as_they_were_sent(harness: IngestHarness, codec: Codec) -> None:
    sent = frame([b"a" * 500, b"b"], codec, key=[b"k", None]) + frame([b"c"], codec)
    answer = await harness.client.post(ROUTE, content=sent, headers=FRAMES)

    assert (answer.status_code, answer.json()["count"]) == (200, 3)
    stored = (await harness.chunks(0)).content
    [(header, chunk)] = split_chunks(stored)
    assert bytes(batches_of(header, chunk)) == sent
    assert [row["value"] for row in await harness.rows()] == [b"a" * 500, b"b", b"c"]


async def test_a_producer_may_send_frames_with_numbers_but_not_with_ids(
    harness: IngestHarness,
) -> None:
    sent = frame([b"a", b"b"])
    strict = {**FRAMES, "producer-id": "p", "producer-seq": "0"}
    for duplicates in (0, 2):
        answer = await harness.client.post(ROUTE, content=sent, headers=strict)
        assert answer.json()["duplicates"] == duplicates
    highwater = {**FRAMES, "producer-id": "q"}
    answer = await harness.client.post(ROUTE, content=sent, headers=highwater)
    assert problem(answer) == (400, "bad-header")


@pytest.mark.parametrize("codec", Codec)
def test_every_flipped_bit_is_a_mismatch(codec: Codec) -> None:
    sent = frame([b"abc" * 10, b"d"], codec)
    for position in range(len(sent)):
        damaged = bytearray(sent)
        damaged[position] ^= 1 << position % 8
        assert refused(bytes(damaged)).code is Code.CRC_MISMATCH, position


def test_every_cut_is_refused() -> None:
    sent = frame([b"abc"]) + frame([b"d"])
    for size in [*range(len(frame([b"abc"])) - 1), *range(len(frame([b"abc"])) + 1, len(sent))]:
        assert refused(sent[:size]).code in {Code.VALIDATION_FAILED, Code.CRC_MISMATCH}


def sealed(
    message: bytes, *, count: int = 1, codec: Codec = Codec.NONE, raw_size: int = 0
) -> bytes:
    """A frame whose checksums are right, whatever is in it."""
    header = FrameHeader(
        codec, Columns.VALUE, count, len(message), raw_size or len(message), crc32c(message)
    )
    return encode_header(header) + message + bytes(-len(message) % 8)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (frame([b"a" * (MIB + 1)]), Code.RECORD_TOO_LARGE),
        (frame([b"a"], key=[b"k" * 1025]), Code.VALIDATION_FAILED),
        (frame([b"a"], filter_value=["f" * 256]), Code.VALIDATION_FAILED),
        (frame([b"a"], headers=[[("n", b"v"), ("n", b"w")]]), Code.VALIDATION_FAILED),
        (frame([b"a"], headers=[[("n", None)]]), Code.VALIDATION_FAILED),
        (frame([b"a"], event_time=[10**15]), Code.VALIDATION_FAILED),
        (frame([b"\xff"], content=[1]), Code.VALIDATION_FAILED),
        (frame([b"{"], content=[2]), Code.VALIDATION_FAILED),
        (frame([b"a"], content=[3]), Code.VALIDATION_FAILED),
        (sealed(b"not Arrow"), Code.VALIDATION_FAILED),
        (sealed(b"not zstd", codec=Codec.ZSTD, raw_size=100), Code.VALIDATION_FAILED),
        (sealed(b"bomb", codec=Codec.ZSTD, raw_size=SIZE_MAX + 1), Code.BATCH_TOO_LARGE),
        (sealed(b"bomb", codec=Codec.LZ4, raw_size=SIZE_MAX) * 9, Code.DECOMPRESSED_TOO_LARGE),
        (sealed(b"many", count=1_000_001), Code.BATCH_TOO_LARGE),
        (b"", Code.VALIDATION_FAILED),
    ],
)
def test_what_storage_must_not_hold_is_refused(body: bytes, code: Code) -> None:
    assert refused(body).code is code


@settings(max_examples=100)
@given(st.data())
def test_a_message_that_was_tampered_with_never_gets_through_unseen(data: st.DataObject) -> None:
    """With right checksums: a hostile client computes them too."""
    sent = frame([b"abc" * 10, b"d", b""])
    message = bytearray(sent[HEADER_SIZE:])
    position = data.draw(st.integers(0, len(message) - 1))
    message[position] = data.draw(st.integers(0, 255))
    try:
        [kept] = read_frames(sealed(bytes(message), count=3), SIZE_MAX)
    except InvalidRequest:
        return
    assert kept.record_count == 3


# Content-Encoding


def packed(data: bytes, encoding: Any) -> bytes:
    if encoding == "gzip":
        return gzip.compress(data)
    return bytes(pa.compress(data, codec=encoding, asbytes=True))


@pytest.mark.parametrize("encoding", ["gzip", "zstd", "lz4", "GZip"])
async def test_every_form_may_come_compressed(harness: IngestHarness, encoding: str) -> None:
    forms = [
        ({"content-type": "application/json"}, b'{"records":[{"value":"a"}]}'),
        ({"content-type": "application/octet-stream"}, b"a"),
        (ARROW, arrow(pa.table({"value": ["a"]}))),
        (FRAMES, frame([b"a"])),
    ]
    for headers, body in forms:
        sent = {**headers, "content-encoding": encoding}
        answer = await harness.client.post(
            ROUTE, content=packed(body, encoding.lower()), headers=sent
        )
        assert answer.status_code == 200, answer.text
    assert await harness.values() == [b"a"] * 4


async def test_a_repeat_is_one_however_it_is_compressed(harness: IngestHarness) -> None:
    body = b'{"records":[{"value":"a"}]}'
    headers = {"content-type": "application/json", "producer-id": "p", "producer-seq": "0"}
    for encoding in ("gzip", "zstd", "identity"):
        sent = body if encoding == "identity" else packed(body, encoding)
        answer = await harness.append_raw(sent, **headers, **{"content-encoding": encoding})
        assert answer.status_code == 200
    assert await harness.values() == [b"a"]


@pytest.mark.parametrize(
    ("media_type", "size"),
    [
        ("application/json", JSON_BODY_SIZE_MAX),
        ("application/octet-stream", DECOMPRESSED_SIZE_MAX),
        (ARROW["content-type"], DECOMPRESSED_SIZE_MAX),
        (FRAMES["content-type"], DECOMPRESSED_SIZE_MAX),
    ],
)
@pytest.mark.parametrize("encoding", ["gzip", "zstd", "lz4"])
async def test_a_bomb_is_refused_by_its_first_byte_too_many(
    harness: IngestHarness, media_type: str, size: int, encoding: str
) -> None:
    bomb = packed(bytes(size + 1), encoding)
    headers = {"content-type": media_type, "content-encoding": encoding}
    answer = await harness.append_raw(bomb, **headers)
    assert problem(answer) == (413, "decompressed-too-large")
    assert answer.json()["limit_bytes"] == size
    assert harness.service.room.admission.total == 0


async def test_room_is_held_for_what_a_body_unpacks_to(tmp_path: Path) -> None:
    bounds: dict[str, Any] = {
        "ingest_stream_in_flight_bytes_max": 700_000,
        "ingest_in_flight_wait_ms": 0,
    }
    harness = await (await IngestHarness(tmp_path / "ingest", **bounds).declare()).start()
    body = orjson.dumps({"records": [{"value": "v" * 60_000}] * 10})
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    admission = harness.service.room.admission
    assert admission.take(STREAM, 650_000)
    assert (await harness.append("small")).status_code == 200

    assert problem(await harness.append_raw(gzip.compress(body), **headers)) == (503, "overloaded")
    admission.give_back(STREAM, 650_000)
    assert (await harness.append_raw(gzip.compress(body), **headers)).status_code == 200
    assert admission.total == 0
    await harness.aclose()


async def test_what_is_not_compressed_as_it_says_is_unreadable(harness: IngestHarness) -> None:
    answer = await harness.append_raw(
        b'{"records":[{"value":"a"}]}', **{"content-encoding": "gzip"}
    )
    assert problem(answer) == (400, "bad-header")
    assert answer.json()["errors"][0]["header"] == "content-encoding"


async def test_another_encoding_is_refused_with_those_that_are_taken(
    harness: IngestHarness,
) -> None:
    answer = await harness.append_raw(b"", **{"content-encoding": "br"})
    assert problem(answer) == (415, "unsupported-media-type")
    assert answer.headers["accept-encoding"] == "gzip, zstd, lz4, identity"
