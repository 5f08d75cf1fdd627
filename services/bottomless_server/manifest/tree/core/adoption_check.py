"""Decide whether an object is the fragment that an intent speaks of.

An object under the right key proves nothing: it may be cut short by a broken store or
belong to another stream after a restore. It is believed only if header, index and
footer verify, agree with each other, and the checksum of its data is the one they name.
"""

from typing import Final, NamedTuple

import numpy as np

from bottomless.formats.checks import check, crc32c
from bottomless.formats.fragment import (
    FOOTER_SIZE,
    HEADER_SIZE,
    decode_footer,
    decode_fragment_header,
    decode_index,
    decode_stored_filters,
)
from bottomless.formats.fragment_filters import entry_filter
from bottomless.model.fragment import FragmentInfo
from bottomless.model.names import StreamId
from bottomless.model.stream import Intent

PIECE_SIZE: Final = 8 * 1024 * 1024
"""Bytes of a fragment held at a time while its checksum is computed."""


class Piece(NamedTuple):
    start: int
    size: int


def footer_piece(size: int) -> Piece:
    """Where the footer of an object of `size` bytes would be.

    Raises:
        Corrupt: the object is too small to be a fragment.
    """
    check("fragment", size > HEADER_SIZE + FOOTER_SIZE, f"{size} bytes are too few")
    return Piece(size - FOOTER_SIZE, FOOTER_SIZE)


class AdoptionCheck:
    """Takes the bytes of one object from its start to its end, then says which fragment it is."""

    def __init__(self, stream_id: StreamId, intent: Intent, size: int, footer: bytes) -> None:
        self._stream_id = stream_id
        self._intent = intent
        self._size = size
        self._footer = decode_footer(footer)
        self._header = b""
        self._tail = bytearray()
        self._crc = self._data_crc = 0
        end = self._footer.index_position + self._footer.index_size + FOOTER_SIZE
        check("fragment", end == size, f"{size} bytes, not {end}")

    def pieces(self) -> list[Piece]:
        """The ranges of the object to feed, in this order: header, data in pieces, and all that comes
        after the data.
        """
        data_end = self._footer.filters_position
        starts = range(HEADER_SIZE, data_end, PIECE_SIZE)
        data = [Piece(start, min(PIECE_SIZE, data_end - start)) for start in starts]
        return [Piece(0, HEADER_SIZE), *data, Piece(data_end, self._size - data_end)]

    def feed(self, piece: Piece, data: bytes) -> None:
        check("fragment", len(data) == piece.size, "it ends early")
        self._crc = crc32c(data, self._crc)
        if piece.start == 0:
            self._header = data
        elif piece.start >= self._footer.filters_position:
            self._tail += data
        else:
            self._data_crc = crc32c(data, self._data_crc)

    def fragment(self) -> FragmentInfo:
        """The fragment that was fed, as the manifest keeps it.

        Raises:
            Corrupt: it is not the fragment that the intent names, whole and undamaged.
        """
        what = "fragment"
        tail, filters_size = memoryview(self._tail), self._footer.filters_size
        header, index = decode_fragment_header(self._header), decode_index(tail[filters_size:])
        footer, records = index.footer, index.records
        presence, blocks = entry_filter(decode_stored_filters(tail[:filters_size], footer))
        mine = (self._stream_id, self._intent.uid, self._intent.first_offset)
        check(what, mine == (header.stream_id, header.uid, header.first_offset), "it is another")
        check(what, footer.data_crc == self._data_crc, "the checksum of its data does not match")
        check(what, footer.data_size == header.data_size, "its sizes differ")
        check(what, footer.version == header.version, "its versions differ")
        check(what, len(index) == header.chunk_count, "its chunk counts differ")
        first, last = index.place(0), index.place(len(index) - 1)
        bounds = (first.first_offset, last.next_offset, first.timestamp, last.timestamp)
        stated = (header.first_offset, header.next_offset)
        stated_times = (header.first_timestamp, header.last_timestamp)
        check(what, bounds == (*stated, *stated_times), "its index has other bounds")
        check(what, bool(np.all(records["epoch"] == header.epoch)), "it spans epochs")
        return FragmentInfo(
            uid=header.uid,
            drive=self._intent.drive,
            first_offset=header.first_offset,
            next_offset=header.next_offset,
            first_timestamp=header.first_timestamp,
            last_timestamp=header.last_timestamp,
            epoch=header.epoch,
            record_count=header.record_count,
            size=self._size,
            index_size=footer.index_size + FOOTER_SIZE,
            crc=self._crc,
            filter_presence=presence,
            filter_blocks=blocks,
            filters_size=filters_size,
        )
