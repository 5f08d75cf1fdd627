"""Check one fragment's object from its first byte to its last, against itself and the manifest.

Pure except for the reads that are passed in. Every byte is read once and is under two checksums:
its chunk's, and that of the whole object, which only the manifest knows. Besides, everything that
is said twice must agree: header and manifest, footer and index, index and chunks.

Nothing here stops at the first fault: a report should say all that is wrong.
"""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from bottomless.errors import Corrupt
from bottomless.formats import chunk as chunk_format
from bottomless.formats.batch import decode_frame_header
from bottomless.formats.checks import crc32c
from bottomless.formats.crc32c import combine
from bottomless.formats.fragment import (
    HEADER_SIZE,
    FragmentIndex,
    decode_fragment_header,
    decode_index,
    decode_stored_filters,
)
from bottomless.model.chunk import ChunkFlags, ChunkHeader, ChunkKind, ChunkPlace
from bottomless.model.fragment import FragmentHeader, parse_fragment_id
from bottomless.model.names import StreamId

FAULT_COUNT_MAX: Final = 100
"""Faults of one fragment that are kept; more of them say nothing new."""

Read = Callable[[int, int], bytes]
"""Reads bytes of the object: from a position, so many; fewer where the object ends before."""


class Listed(NamedTuple):
    """What the manifest says about a fragment.

    Sizes are in bytes, timestamps in ms since 1970; `next_offset` is exclusive.
    """

    fragment_id: str
    object_key: str | None
    first_offset: int
    next_offset: int
    first_timestamp: int
    last_timestamp: int
    record_count: int
    size: int
    index_position: int
    crc: int


class Fault(NamedTuple):
    """One thing that is not as it must be."""

    what: str
    """The check that failed: `object`, `header`, `index`, `filters`, `chunk`, `continuity`,
    `checksum`.
    """
    offset: int | None
    """The first offset that it concerns, where that is known."""
    position: int | None
    """The byte of the object at which it is, where that is known."""
    sentence: str


class Checked(NamedTuple):
    """What was checked in one fragment, and what is wrong with it."""

    chunk_count: int
    record_count: int
    faults: list[Fault]


def check_fragment(
    read: Read, listed: Listed, stream_id: StreamId, range_size: int = 8 * 1024 * 1024
) -> Checked:
    """Read a whole object and compare it with what the manifest says.

    It is read in ranges of `range_size` bytes.

    Raises:
        NotFound: the object is gone.
        Unavailable: the store does not give it.
    """
    check = _Check(read, listed, stream_id, range_size)
    check.run()
    return Checked(check.chunk_count, check.record_count, check.faults[:FAULT_COUNT_MAX])


class _Check:
    def __init__(self, read: Read, listed: Listed, stream_id: StreamId, range_size: int) -> None:
        self._read = read
        self._listed = listed
        self._stream_id = stream_id
        self._range_size = range_size
        self.faults: list[Fault] = []
        self.chunk_count = 0
        self.record_count = 0
        self._data_crc = 0
        self._next_offset = listed.first_offset
        self._timestamp: int | None = None
        self._epoch: int | None = None
        self._flags = ChunkFlags.NONE

    def run(self) -> None:
        listed = self._listed
        # One byte more than there should be, to see that the object ends where it should.
        end = self._read(listed.index_position, listed.size - listed.index_position + 1)
        size = listed.index_position + len(end)
        self._expect(
            size == listed.size,
            "object",
            f"it has {size} bytes, or more, and should have {listed.size}",
        )
        end = end[: listed.size - listed.index_position]
        index = self._index(end)
        first = self._read(0, HEADER_SIZE)
        header = self._header(first)
        if header is not None and index is not None:
            self._same("header", "chunks", header.chunk_count, len(index))
            self._same("header", "data bytes", header.data_size, index.footer.data_size)
        for position, data in self._pieces(index):
            self._data_crc = crc32c(data, self._data_crc)
            self._chunks(memoryview(data), position, index)
        self._ends(header, index)
        data_end = self._data_end(index)
        data_size = max(0, data_end - HEADER_SIZE)
        filters = self._read(data_end, listed.index_position - data_end)
        self._filters(filters, index)
        tail = crc32c(end, crc32c(filters))
        whole = combine(crc32c(first), self._data_crc, data_size)
        whole = combine(whole, tail, len(filters) + len(end))
        self._expect(whole == listed.crc, "checksum", "that of the object is not the manifest's")

    def _index(self, data: bytes) -> FragmentIndex | None:
        try:
            return decode_index(data)
        except Corrupt as error:
            self._fault("index", error.message, position=self._listed.index_position)
            return None

    def _header(self, data: bytes) -> FragmentHeader | None:
        listed = self._listed
        try:
            header = decode_fragment_header(data)
        except Corrupt as error:
            self._fault("header", error.message, position=0)
            return None
        first_offset, uid = parse_fragment_id(listed.fragment_id)
        self._same("header", "id", (header.first_offset, header.uid), (first_offset, uid))
        self._same("header", "stream", header.stream_id, self._stream_id)
        self._same(
            "header",
            "offsets",
            (header.first_offset, header.next_offset, header.record_count),
            (listed.first_offset, listed.next_offset, listed.record_count),
        )
        self._same(
            "header",
            "times",
            (header.first_timestamp, header.last_timestamp),
            (listed.first_timestamp, listed.last_timestamp),
        )
        self._epoch = header.epoch
        return header

    def _data_end(self, index: FragmentIndex | None) -> int:
        """The byte at which the chunks end: filters may stand between them and the index."""
        return self._listed.index_position if index is None else index.footer.filters_position

    def _filters(self, data: bytes, index: FragmentIndex | None) -> None:
        if index is None:
            return
        try:
            decode_stored_filters(data, index.footer)
        except Corrupt as error:
            self._fault("filters", error.message, position=index.footer.filters_position)

    def _pieces(self, index: FragmentIndex | None) -> Iterator[tuple[int, bytes]]:
        """The chunks, some MiB at a time: whole ones where the index says where they end."""
        position, end = HEADER_SIZE, self._data_end(index)
        while position < end:
            size = self._piece_size(index, position, end)
            data = self._read(position, size)
            yield position, data
            if len(data) < size:
                return
            position += size

    def _piece_size(self, index: FragmentIndex | None, position: int, end: int) -> int:
        if index is None:
            # Chunk by chunk, as their headers say; what follows a damaged one is one piece.
            try:
                header = chunk_format.decode_header(self._read(position, chunk_format.HEADER_SIZE))
            except Corrupt:
                return end - position
            return min(header.total_size, end - position)
        starts = index.records["position"]
        number = int(starts.searchsorted(position, side="left"))
        ends = starts[number:] + index.records["size"][number:] - position
        fitting = max(1, int(ends.searchsorted(self._range_size, side="right")))
        return int(ends[fitting - 1])

    def _chunks(self, data: memoryview, start: int, index: FragmentIndex | None) -> None:
        position = 0
        while position < len(data):
            place = _place_at(index, start + position)
            try:
                header = chunk_format.decode_header(data, position)
            except Corrupt as error:
                offset = self._next_offset if place is None else place.first_offset
                self._fault("chunk", error.message, offset=offset, position=start + position)
                if place is None:
                    return
                # The index knows where the next one is, and what this one was.
                position += place.size
                self._follow(place.next_offset, place.timestamp)
                continue
            size = header.total_size if place is None else place.size
            self._chunk(header, data[position : position + size], start + position, place)
            position += size

    def _chunk(
        self, header: ChunkHeader, chunk: memoryview, position: int, place: ChunkPlace | None
    ) -> None:
        self.chunk_count += 1
        self.record_count += header.record_count
        offset = header.first_offset
        if place is not None:
            found = ChunkPlace(
                offset,
                header.timestamp,
                position,
                header.epoch,
                header.total_size,
                header.record_count,
            )
            self._expect(found == place, "index", "it says other things than the chunk", offset)
        try:
            chunk_format.verify_body(header, chunk)
            if header.kind is ChunkKind.DATA:
                _check_frames(header, chunk)
        except Corrupt as error:
            self._fault("chunk", error.message, offset=offset, position=position)
        self._expect(
            offset == self._next_offset,
            "continuity",
            f"a chunk starts at {offset}, not at {self._next_offset}",
            offset,
        )
        self._expect(
            self._timestamp is None or header.timestamp >= self._timestamp,
            "continuity",
            "timestamps decrease",
            offset,
        )
        self._expect(
            self._epoch in {None, header.epoch}, "continuity", "it is of another epoch", offset
        )
        self._follow(header.next_offset, header.timestamp)
        if header.kind is not ChunkKind.TRACKING:
            self._flags = header.flags

    def _follow(self, next_offset: int, timestamp: int) -> None:
        self._next_offset = next_offset
        self._timestamp = timestamp

    def _ends(self, header: FragmentHeader | None, index: FragmentIndex | None) -> None:
        end = self._listed.next_offset
        self._expect(
            self._next_offset == end,
            "continuity",
            f"its chunks end before {self._next_offset}, not before {end}",
        )
        self._expect(
            ChunkFlags.MORE_FOLLOWS not in self._flags, "continuity", "it ends inside an append"
        )
        if index is not None:
            self._same("index", "chunks", self.chunk_count, len(index))
            self._expect(
                self._data_crc == index.footer.data_crc,
                "checksum",
                "that of all chunks is not the footer's",
            )
        if header is not None:
            self._same("header", "records", self.record_count, header.record_count)

    def _same(self, what: str, name: str, found: object, said: object) -> None:
        self._expect(found == said, what, f"its {name} are not those that are said elsewhere")

    def _expect(self, fact: bool, what: str, sentence: str, offset: int | None = None) -> None:
        if not fact:
            self._fault(what, sentence, offset=offset)

    def _fault(
        self, what: str, sentence: str, *, offset: int | None = None, position: int | None = None
    ) -> None:
        self.faults.append(Fault(what, offset, position, sentence))


def _place_at(index: FragmentIndex | None, position: int) -> ChunkPlace | None:
    if index is None:
        return None
    number = int(index.records["position"].searchsorted(position, side="left"))
    place = index.place(number) if number < len(index) else None
    return place if place is not None and place.position == position else None


def _check_frames(header: ChunkHeader, chunk: memoryview) -> None:
    """Count the records of a chunk's batches.

    Raises:
        Corrupt: they are not as many as its header says, or the batches do not fill their place.
    """
    frames = chunk_format.batches_of(header, chunk)
    position = batch_count = record_count = 0
    while position < len(frames):
        frame = decode_frame_header(frames[position:])
        position += frame.frame_size
        batch_count += 1
        record_count += frame.record_count
    if (position, batch_count, record_count) != (
        len(frames),
        header.batch_count,
        header.record_count,
    ):
        raise Corrupt("chunk is corrupt: its batches do not hold its records")
