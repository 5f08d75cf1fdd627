"""Whatever bytes a decoder is given, it reads them or says Corrupt: nothing else, and cheaply.

The golden files are damaged by edits of any kind. Half of them then get right checksums, as
a hostile writer would give them, so that what lies behind the checksums is met as well.
"""

import os
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import orjson
import pytest
from golden.regenerate import EXAMPLES, golden
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.edited_bytes import EDITS, Edit, edited

from bottomless.errors import Corrupt
from bottomless.formats import sealed_json
from bottomless.formats.api_key import decode_key_object, decode_key_record
from bottomless.formats.batch import HEADER_SIZE as FRAME_HEADER_SIZE
from bottomless.formats.batch import decode_frames
from bottomless.formats.checks import crc32c
from bottomless.formats.chunk import HEADER_SIZE as CHUNK_HEADER_SIZE
from bottomless.formats.chunk import batches_of, decode_trailer, split_chunks, trailer_of
from bottomless.formats.consumers import decode_offset, decode_snapshot, encode_offset
from bottomless.formats.fragment import FOOTER_SIZE, decode_fragment_header, decode_index
from bottomless.formats.fragment import HEADER_SIZE as FRAGMENT_HEADER_SIZE
from bottomless.formats.manifest import HEADER_SIZE as NODE_HEADER_SIZE
from bottomless.formats.manifest import decode_node
from bottomless.formats.segment import HEADER_SIZE as SEGMENT_HEADER_SIZE
from bottomless.formats.segment import (
    INDEX_RECORD_SIZE,
    decode_checkpoint,
    decode_index_header,
    decode_index_record,
    decode_segment_header,
)
from bottomless.formats.stream_record import decode_record, decode_registry
from bottomless.formats.tracking import decode_tracking
from bottomless.model.chunk import ChunkKind
from bottomless.stores.operations import decode_operation, encode_operation, new_operation
from unit.formats.examples import CONSUMERS, TIMESTAMP, seal

COUNT = int(os.environ.get("BOTTOMLESS_FUZZ_EXAMPLES", "60"))
"""Of each decoder; a long run by hand takes thousands."""
MEMORY_MAX = 4 * 1024 * 1024
"""What a decoder may take for some hundred bytes, whatever sizes they name."""


def of_chunks(data: bytes) -> None:
    for header, chunk in split_chunks(data):
        if header.kind is ChunkKind.DATA:
            decode_frames(batches_of(header, chunk))
            decode_trailer(trailer_of(header, chunk))
        if header.kind is ChunkKind.TRACKING:
            decode_tracking(trailer_of(header, chunk))


def with_crcs(data: bytes, *places: tuple[int, int, int]) -> bytes:
    """Right checksums at positions, each of a range; those that do not fit are left out."""
    raw = bytearray(data)
    for position, start, end in places:
        if len(raw) >= position + 4:
            raw[position : position + 4] = crc32c(bytes(raw[start:end])).to_bytes(4, "little")
    return bytes(raw)


def sealed_frame(data: bytes) -> bytes:
    end = FRAME_HEADER_SIZE + int.from_bytes(data[12:16], "little")
    return with_crcs(data, (20, FRAME_HEADER_SIZE, min(end, len(data))), (28, 0, 28))


def sealed_chunk(data: bytes) -> bytes:
    return with_crcs(data, (56, CHUNK_HEADER_SIZE, len(data)), (60, 0, 60))


def sealed_node(data: bytes) -> bytes:
    end = NODE_HEADER_SIZE
    return with_crcs(data, (end - 8, end, len(data)), (end - 4, 0, end - 4))


def sealed_index(data: bytes) -> bytes:
    """Index and footer."""
    footer = len(data) - FOOTER_SIZE
    if footer < 0:
        return data
    return with_crcs(data, (footer + 24, 0, footer), (footer + 56, footer, footer + 56))


def sealed_object(data: bytes) -> bytes:
    try:
        members = orjson.loads(data)
        members.pop("crc32c", None)
        members.pop("format", None)
        return sealed_json.seal(members)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError, AttributeError, TypeError):
        return data


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


class Decoder(NamedTuple):
    decode: Callable[[bytes], object]
    good: bytes
    sealed: Callable[[bytes], bytes]


def unsealed(data: bytes) -> bytes:
    """Of what has no checksum."""
    return data


INDEX = golden("segment_index")
INDEX_SIZE = 2 * INDEX_RECORD_SIZE + FOOTER_SIZE
"""Of the fragment in the golden file, which has two chunks."""
OPERATION = encode_operation(
    new_operation("0" * 32, "verify", TIMESTAMP, tenant="default", arguments={"checksums": True})
)
DECODERS = {
    "frame": Decoder(
        lambda data: decode_frames(memoryview(data)), golden("frame_all_columns"), sealed_frame
    ),
    "zstd frame": Decoder(
        lambda data: decode_frames(memoryview(data)), golden("frame_zstd"), sealed_frame
    ),
    "lz4 frame": Decoder(
        lambda data: decode_frames(memoryview(data)), golden("frame_lz4"), sealed_frame
    ),
    "chunk": Decoder(of_chunks, golden("chunk"), sealed_chunk),
    "tracking chunk": Decoder(of_chunks, golden("chunk_tracking"), sealed_chunk),
    "hole": Decoder(of_chunks, golden("chunk_hole"), sealed_chunk),
    "segment": Decoder(decode_segment_header, golden("segment")[:SEGMENT_HEADER_SIZE], seal),
    "index": Decoder(decode_index_header, INDEX[:SEGMENT_HEADER_SIZE], seal),
    "index record": Decoder(decode_index_record, INDEX[SEGMENT_HEADER_SIZE:][:48], seal),
    "checkpoint": Decoder(decode_checkpoint, golden("checkpoint"), seal),
    "fragment header": Decoder(
        decode_fragment_header, golden("fragment")[:FRAGMENT_HEADER_SIZE], seal
    ),
    "fragment index": Decoder(decode_index, golden("fragment")[-INDEX_SIZE:], sealed_index),
    "root": Decoder(decode_node, golden("manifest_root"), sealed_node),
    "group": Decoder(decode_node, golden("manifest_group"), sealed_node),
    "registry": Decoder(decode_registry, golden("stream_registry"), sealed_object),
    "record": Decoder(decode_record, golden("stream_record"), unsealed),
    "consumers": Decoder(decode_snapshot, golden("consumers"), sealed_object),
    "offset": Decoder(decode_offset, encode_offset(CONSUMERS.consumers[0]), unsealed),
    "key": Decoder(decode_key_object, golden("api_key"), sealed_object),
    "key record": Decoder(decode_key_record, golden("api_key_record"), unsealed),
    "operation": Decoder(decode_operation, OPERATION, unsealed),
}


def test_every_golden_file_has_its_decoder_here() -> None:
    for name, decoder in DECODERS.items():
        decoder.decode(decoder.good)
        assert decoder.decode(decoder.sealed(decoder.good)) is not NotImplemented, name
    covered = {decoder.good for decoder in DECODERS.values()}
    parts = {"segment", "segment_index", "fragment", "frame_plain"}
    assert {name for name in EXAMPLES if golden(name) not in covered} <= parts


@pytest.mark.parametrize("name", DECODERS)
@settings(max_examples=COUNT)
@given(edits=EDITS, sealed=st.booleans())
@example(edits=[("cut", 0, 0)], sealed=False)
@example(edits=[("double", 0, 255)], sealed=True)
def test_damaged_bytes_are_read_or_refused(name: str, edits: list[Edit], sealed: bool) -> None:
    decoder = DECODERS[name]
    data = edited(decoder.good, edits)
    with suppress(Corrupt):
        decoder.decode(decoder.sealed(data) if sealed else data)


@pytest.mark.parametrize("name", DECODERS)
@settings(max_examples=COUNT // 2)
@given(data=st.binary(max_size=300))
def test_bytes_of_any_kind_are_read_or_refused(name: str, data: bytes) -> None:
    decoder = DECODERS[name]
    for one in (data, decoder.sealed(data), decoder.good[:8] + data):
        with suppress(Corrupt):
            decoder.decode(one)


@pytest.mark.parametrize(
    "name", ["registry", "record", "consumers", "offset", "key", "key record", "operation"]
)
@settings(max_examples=COUNT)
@given(value=json_values, number=st.integers(0, 30))
def test_any_value_in_the_place_of_any_other_is_read_or_refused(
    name: str, value: Any, number: int
) -> None:
    decoder = DECODERS[name]
    whole = orjson.loads(decoder.good)
    places = list(_places(whole))
    holder, key = places[number % len(places)]
    holder[key] = value
    with suppress(Corrupt):
        decoder.decode(decoder.sealed(orjson.dumps(whole)))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a JSON value that holds another."""
    keys = value.keys() if isinstance(value, dict) else range(len(value))
    for key in list(keys):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


@pytest.mark.parametrize("name", DECODERS)
def test_no_size_in_any_place_costs_memory(name: str) -> None:
    """M32: before a size is used it is bounded, also under a right checksum."""
    decoder = DECODERS[name]
    tracemalloc.start()
    try:
        for start in range(0, len(decoder.good) - 3, 4):
            for top in (0x7F, 0xFF, 0x01):
                raw = bytearray(decoder.good)
                raw[start : start + 4] = bytes([0xF8, 0xFF, 0xFF, top])
                for data in (bytes(raw), decoder.sealed(bytes(raw))):
                    with suppress(Corrupt):
                        decoder.decode(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MEMORY_MAX
