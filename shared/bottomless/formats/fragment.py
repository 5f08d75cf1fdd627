"""Fragments: the objects that hold stream data, self-describing from both ends.

    | header 128 | chunks, exactly as on disk ... | filters? | index: 48 per chunk | footer 64 |
                 ^ HEADER_SIZE                    ^          ^ index_position                  ^ end

A reader with the manifest's entry fetches index and footer in one ranged GET; a
rebuild without a manifest needs the header only. A fragment with filters is of version 2.

On the record's path: after services/bottomless_server/uploader/core/cutter.py, before
services/bottomless_server/manifest/tree/core/publish_decision.py. Byte tables: docs/formats.md, "Fragment".
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bottomless.formats import chunk as chunk_format
from bottomless.formats.checks import VERSION, VERSION_2, check, check_magic, crc32c, magic
from bottomless.formats.crc32c import combine, combine_all
from bottomless.formats.filter import BLOCK_SIZE
from bottomless.formats.fragment_filters import (
    FilterTable,
    decode_filters,
    encode_filters,
    entry_filter,
)
from bottomless.formats.segment import (
    INDEX_RECORD_DTYPE,
    INDEX_RECORD_SIZE,
    decode_index_record,
    encode_index_record,
)
from bottomless.model.chunk import ChunkFlags, ChunkHeader, ChunkKind, ChunkPlace
from bottomless.model.fragment import FragmentFooter, FragmentHeader, FragmentInfo
from bottomless.model.limits import (
    CHUNK_RECORD_COUNT_MAX,
    CHUNK_SIZE_MAX,
    FRAGMENT_CHUNK_COUNT_MAX,
    OFFSET_MAX,
)
from bottomless.model.names import (
    StreamId,
    Uid,
    stream_id_bytes,
    stream_id_from_bytes,
    uid_bytes,
    uid_from_bytes,
)

MAGIC: Final = magic("BLfr")
FOOTER_MAGIC: Final = magic("rfLB")
_VERSIONS: Final = (VERSION, VERSION_2)

_HEADER = struct.Struct(
    "<"
    "I"  # magic
    "B"  # version
    "3x"  # reserved
    "16s"  # stream_id
    "16s"  # uid
    "Q"  # first_offset
    "Q"  # next_offset
    "q"  # first_timestamp
    "q"  # last_timestamp
    "Q"  # epoch
    "Q"  # record_count
    "Q"  # data_size
    "I"  # chunk_count
    "24x"  # reserved
    "I"  # header_crc, of the 124 bytes before
)
HEADER_SIZE: Final = _HEADER.size
assert HEADER_SIZE == 128  # docs/formats.md, "Fragment header"

_FOOTER = struct.Struct(
    "<"
    "Q"  # index_position
    "Q"  # data_size
    "I"  # index_size
    "I"  # chunk_count
    "I"  # index_crc
    "I"  # data_crc
    "I"  # filters_size
    "I"  # filters_crc
    "15x"  # reserved
    "B"  # version
    "I"  # footer_crc, of the 56 bytes before
    "I"  # magic
)
FOOTER_SIZE: Final = _FOOTER.size
assert FOOTER_SIZE == 64  # docs/formats.md, "Fragment footer"


class FragmentFrame(NamedTuple):
    """What stands around the chunks of a fragment, and what the manifest will keep."""

    info: FragmentInfo
    head: bytes
    filters: bytes
    """Empty in a fragment of version 1."""
    chunk_index: bytes
    footer: bytes


class PackedFragment(NamedTuple):
    """A fragment ready to be put: its bytes in parts, and what the manifest will keep."""

    info: FragmentInfo
    parts: list[bytes | memoryview]


def pack_fragment(
    stream_id: StreamId,
    uid: Uid,
    data: Sequence[bytes | memoryview],
    tables: Sequence[FilterTable] = (),
) -> PackedFragment:
    """Make a fragment of whole chunks; every checksum is verified on the way.

    Each item of `data` holds whole chunks, and they follow each other; the bytes are not copied.
    With filter tables, which are those of these chunks, the fragment is of version 2.

    Raises:
        Corrupt: a chunk is damaged, or the chunks are not one dense run of one epoch.
    """
    places: list[ChunkPlace] = []
    flags = ChunkFlags.NONE
    position = HEADER_SIZE
    data_crc = 0
    for run in data:
        for sealed, chunk in chunk_format.split_chunks(run):
            _check_follows(places, sealed)
            places.append(_place(sealed, position))
            position += len(chunk)
            if sealed.kind is not ChunkKind.TRACKING:
                flags = sealed.flags
            # Here and not for the run: it was verified just now, and is in the processor's cache.
            data_crc = crc32c(chunk, data_crc)
    check("fragment", ChunkFlags.MORE_FOLLOWS not in flags, "it ends inside an append")
    frame = _framed(stream_id, uid, places, data_crc, tables)
    filters = [frame.filters] if frame.filters else []
    return PackedFragment(
        frame.info, [frame.head, *data, *filters, frame.chunk_index, frame.footer]
    )


def frame_fragment(
    stream_id: StreamId,
    uid: Uid,
    heads: Sequence[chunk_format.ChunkHead],
    tables: Sequence[FilterTable] = (),
) -> FragmentFrame:
    """Make a fragment of whole chunks of which only the headers are known.

    A header has the checksum of its chunk's body, so the checksum of the fragment is known before
    any body was read. Whoever stores the fragment compares the two: chunks that are damaged give
    another one.

    Raises:
        Corrupt: the chunks are not one dense run of one epoch, or one is a hole, whose body has no
            checksum.
    """
    places: list[ChunkPlace] = []
    flags = ChunkFlags.NONE
    position = HEADER_SIZE
    sums = np.empty(2 * len(heads), dtype=np.uint32)
    sizes = np.empty(2 * len(heads), dtype=np.uint64)
    for number, (sealed, raw) in enumerate(heads):
        check("fragment", sealed.kind is not ChunkKind.HOLE, "a hole has no checksum")
        _check_follows(places, sealed)
        places.append(_place(sealed, position))
        position += sealed.total_size
        if sealed.kind is not ChunkKind.TRACKING:
            flags = sealed.flags
        pair = slice(2 * number, 2 * number + 2)
        sums[pair] = (crc32c(raw), sealed.body_crc)
        sizes[pair] = (len(raw), sealed.total_size - len(raw))
    check("fragment", ChunkFlags.MORE_FOLLOWS not in flags, "it ends inside an append")
    return _framed(stream_id, uid, places, combine_all(sums, sizes), tables)


def _framed(
    stream_id: StreamId,
    uid: Uid,
    places: Sequence[ChunkPlace],
    data_crc: int,
    tables: Sequence[FilterTable],
) -> FragmentFrame:
    check("fragment", len(places) > 0, "it holds no chunk")
    filters = encode_filters(tables, len(places)) if tables else b""
    header, footer, index = _describe(stream_id, uid, places, data_crc, filters)
    first, last = encode_fragment_header(header), encode_footer(footer)
    # Put together of the checksums of its parts: the data is as large as memory allows.
    tail = crc32c(last, crc32c(index, crc32c(filters)))
    crc = combine(crc32c(first), data_crc, header.data_size)
    crc = combine(crc, tail, len(filters) + len(index) + FOOTER_SIZE)
    presence, blocks = entry_filter(tables)
    info = FragmentInfo(
        uid=uid,
        first_offset=header.first_offset,
        next_offset=header.next_offset,
        first_timestamp=header.first_timestamp,
        last_timestamp=header.last_timestamp,
        epoch=header.epoch,
        record_count=header.record_count,
        size=footer.index_position + len(index) + FOOTER_SIZE,
        index_size=len(index) + FOOTER_SIZE,
        crc=crc,
        filter_presence=presence,
        filter_blocks=blocks,
        filters_size=len(filters),
    )
    return FragmentFrame(info, first, filters, index, last)


def _check_follows(places: Sequence[ChunkPlace], header: ChunkHeader) -> None:
    if places:
        last = places[-1]
        check("fragment", header.first_offset == last.next_offset, "its chunks are not dense")
        check("fragment", header.epoch == last.epoch, "it spans epochs")
        check("fragment", header.timestamp >= last.timestamp, "its timestamps decrease")


def _place(header: ChunkHeader, position: int) -> ChunkPlace:
    return ChunkPlace(
        header.first_offset,
        header.timestamp,
        position,
        header.epoch,
        header.total_size,
        header.record_count,
    )


def _describe(
    stream_id: StreamId, uid: Uid, places: Sequence[ChunkPlace], data_crc: int, filters: bytes
) -> tuple[FragmentHeader, FragmentFooter, bytes]:
    data_end = places[-1].position + places[-1].size
    index = b"".join(encode_index_record(place) for place in places)
    header = FragmentHeader(
        stream_id=stream_id,
        uid=uid,
        first_offset=places[0].first_offset,
        next_offset=places[-1].next_offset,
        first_timestamp=places[0].timestamp,
        last_timestamp=places[-1].timestamp,
        epoch=places[0].epoch,
        record_count=sum(place.record_count for place in places),
        data_size=data_end - HEADER_SIZE,
        chunk_count=len(places),
        version=VERSION_2 if filters else VERSION,
    )
    footer = FragmentFooter(
        index_position=data_end + len(filters),
        data_size=data_end - HEADER_SIZE,
        index_size=len(index),
        chunk_count=len(places),
        index_crc=crc32c(index),
        data_crc=data_crc,
        filters_size=len(filters),
        filters_crc=crc32c(filters),
    )
    return header, footer, index


def encode_fragment_header(header: FragmentHeader) -> bytes:
    """Encode the header of a fragment: HEADER_SIZE bytes.

    Raises:
        Corrupt: no reader would accept the header.
    """
    _check_fragment_header(header)
    stream_id, uid, *numbers, version = header
    raw = _HEADER.pack(MAGIC, version, stream_id_bytes(stream_id), uid_bytes(uid), *numbers, 0)[:-4]
    return raw + crc32c(raw).to_bytes(4, "little")


def decode_fragment_header(data: bytes | memoryview) -> FragmentHeader:
    """Read the first HEADER_SIZE bytes of a fragment.

    Raises:
        Corrupt: no writer of this format can have written these bytes.
    """
    what = "fragment header"
    check(what, len(data) == HEADER_SIZE, f"{len(data)} bytes, not {HEADER_SIZE}")
    found, version, stream_id, uid, *numbers, crc = _HEADER.unpack(data)
    check_magic(what, found, MAGIC, version, _VERSIONS)
    check(what, crc == crc32c(memoryview(data)[:-4]), "its checksum does not match")
    named = (stream_id_from_bytes(stream_id), uid_from_bytes(uid))
    header = FragmentHeader._make((*named, *numbers, version))
    _check_fragment_header(header)
    return header


def _check_fragment_header(header: FragmentHeader) -> None:
    what = "fragment header"
    check(what, header.version in _VERSIONS, f"version {header.version} is not known")
    check(what, header.next_offset == header.first_offset + header.record_count, "it is not dense")
    check(what, header.record_count > 0, "it holds no record")
    check(what, header.next_offset <= OFFSET_MAX + 1, f"next_offset={header.next_offset}")
    check(what, header.first_timestamp <= header.last_timestamp, "its timestamps decrease")
    check(what, 0 < header.chunk_count <= FRAGMENT_CHUNK_COUNT_MAX, f"chunks={header.chunk_count}")
    check(
        what, header.data_size >= header.chunk_count * chunk_format.HEADER_SIZE, "it is too small"
    )


def encode_footer(footer: FragmentFooter) -> bytes:
    """Encode the footer of a fragment: FOOTER_SIZE bytes.

    Raises:
        Corrupt: no reader would accept the footer.
    """
    _check_footer(footer)
    raw = _FOOTER.pack(*footer, footer.version, 0, FOOTER_MAGIC)[:-8]
    return raw + crc32c(raw).to_bytes(4, "little") + FOOTER_MAGIC.to_bytes(4, "little")


def decode_footer(data: bytes | memoryview) -> FragmentFooter:
    """Read the last FOOTER_SIZE bytes of a fragment.

    Raises:
        Corrupt: no writer of this format can have written these bytes.
    """
    what = "fragment footer"
    check(what, len(data) == FOOTER_SIZE, f"{len(data)} bytes, not {FOOTER_SIZE}")
    *numbers, version, crc, found = _FOOTER.unpack(data)
    check_magic(what, found, FOOTER_MAGIC, version, _VERSIONS)
    check(what, crc == crc32c(memoryview(data)[:-8]), "its checksum does not match")
    *_, filters_size, _ = numbers
    if version == VERSION:
        # Reserved there: whatever stands in them is passed over.
        numbers[-2:] = (0, 0)
    else:
        check(what, filters_size > 0, "it has no filters")
    footer = FragmentFooter(*numbers)
    _check_footer(footer)
    return footer


def _check_footer(footer: FragmentFooter) -> None:
    what = "fragment footer"
    check(what, 0 < footer.chunk_count <= FRAGMENT_CHUNK_COUNT_MAX, f"chunks={footer.chunk_count}")
    check(what, footer.index_size == footer.chunk_count * INDEX_RECORD_SIZE, "the index is odd")
    check(what, footer.filters_size % BLOCK_SIZE == 0, "the filters are odd")
    check(what, footer.filters_size > 0 or footer.filters_crc == 0, "there are no filters")
    data_end = HEADER_SIZE + footer.data_size
    check(what, footer.index_position == data_end + footer.filters_size, "the index has moved")


def decode_stored_filters(
    data: bytes | memoryview, footer: FragmentFooter
) -> tuple[FilterTable, ...]:
    """Read the filters of a fragment, as one ranged GET brings them; none of one of version 1.

    Raises:
        Corrupt: the checksum does not match, or no writer can have written these bytes.
    """
    what = "fragment filters"
    check(what, len(data) == footer.filters_size, f"{len(data)} bytes, not {footer.filters_size}")
    check(what, crc32c(data) == footer.filters_crc, "their checksum does not match")
    return decode_filters(data, footer.chunk_count) if len(data) else ()


class FragmentIndex:
    """The places of all chunks of one fragment, searched by numpy and never in a loop."""

    def __init__(self, footer: FragmentFooter, records: NDArray[np.void]) -> None:
        self.footer = footer
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    def place(self, number: int) -> ChunkPlace:
        """Get the place of the chunk with this number, from 0."""
        first, timestamp, position, epoch, size, count, _, _ = self.records[number].item()
        return ChunkPlace(first, timestamp, position, epoch, size, count)

    def at_offset(self, offset: int) -> int:
        """Find the number of the chunk that holds `offset`, which must lie in the fragment."""
        found = (
            int(np.searchsorted(self.records["first_offset"], np.uint64(offset), side="right")) - 1
        )
        assert found >= 0
        return found

    def since(self, timestamp: int) -> int:
        """Find the number of the first chunk with `timestamp` (ms since 1970) or a later one.

        It is the count of chunks if there is none.
        """
        return int(np.searchsorted(self.records["timestamp"], np.int64(timestamp), side="left"))


def decode_index(data: bytes | memoryview) -> FragmentIndex:
    """Read index and footer, as one ranged GET brings them.

    Raises:
        Corrupt: a checksum does not match, or the places are not one dense run.
    """
    view = memoryview(data)
    check("fragment index", len(view) > FOOTER_SIZE, f"{len(view)} bytes are too few")
    footer = decode_footer(view[-FOOTER_SIZE:])
    raw = view[:-FOOTER_SIZE]
    check(
        "fragment index",
        len(raw) == footer.index_size,
        f"{len(raw)} bytes, not {footer.index_size}",
    )
    check("fragment index", crc32c(raw) == footer.index_crc, "its checksum does not match")
    decode_index_record(raw[:INDEX_RECORD_SIZE])
    records = np.frombuffer(raw, dtype=INDEX_RECORD_DTYPE)
    _check_records(records, footer)
    return FragmentIndex(footer, records)


def _check_records(records: NDArray[np.void], footer: FragmentFooter) -> None:
    # The first record was checked alone and each starts where the one before ends, so
    # that no sum can pass 2^64.
    what = "fragment index"
    sizes, counts, positions = records["size"], records["record_count"], records["position"]
    check(what, bool(np.all(sizes <= CHUNK_SIZE_MAX)), "a chunk is too large")
    check(what, bool(np.all(sizes >= chunk_format.HEADER_SIZE)), "a chunk is too small")
    check(what, bool(np.all(counts <= CHUNK_RECORD_COUNT_MAX)), "a chunk has too many records")
    ends = positions + sizes
    dense = bool(np.all(positions[1:] == ends[:-1])) and int(ends[-1]) == footer.filters_position
    check(what, dense and int(positions[0]) == HEADER_SIZE, "chunks overlap or miss")
    firsts, timestamps = records["first_offset"], records["timestamp"]
    nexts = firsts + counts
    check(what, bool(np.all(firsts[1:] == nexts[:-1])), "offsets are not dense")
    check(what, int(nexts[-1]) <= OFFSET_MAX + 1, f"next_offset={nexts[-1]}")
    check(what, bool(np.all(timestamps[1:] >= timestamps[:-1])), "timestamps decrease")
    check(what, bool(np.all(records["epoch"] == records["epoch"][0])), "it spans epochs")
