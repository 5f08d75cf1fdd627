"""Check that no value of a fragment is missing from its filters. Pure.

The chunks are gone through once more, in pieces as they come, and each different value has to be in
the filter of its chunk, in that of the fragment and in that of the manifest's entry. A filter that
holds too much costs bytes; one that holds too little hides records.
"""

from collections.abc import Sequence

from bottomless.formats.chunk import HEADER_SIZE as CHUNK_HEADER_SIZE
from bottomless.formats.chunk import decode_header, split_chunks
from bottomless.formats.filter import Blocks, Hashes, hash_values, may_hold
from bottomless.formats.fragment import HEADER_SIZE
from bottomless.formats.fragment_filters import FilterTable, entry_filter
from bottomless.model.fragment import FragmentFooter, FragmentInfo, Presence
from bottomless.model.manifest import filters_of
from bottomless.model.record import Columns
from bottomless_server.core.filter_making import ChunkValues, values_of


class FilterCheck:
    """Takes the bytes of one fragment from its start; `missing` tells what was found so far."""

    def __init__(
        self, info: FragmentInfo, footer: FragmentFooter, tables: Sequence[FilterTable]
    ) -> None:
        """`info` is what the manifest has of it."""
        self._info = info
        self._left = footer.filters_position - HEADER_SIZE
        self._skip = HEADER_SIZE
        self._tables = tables
        self._columns = Columns(0)
        for table in tables:
            self._columns |= table.column
        self._held = bytearray()
        self._number = 0
        presence, blocks = entry_filter(tables)
        said = (presence, blocks) == (info.filter_presence, info.filter_blocks)
        self.missing = not said or info.filters_size not in (0, footer.filters_size)

    def feed(self, data: bytes | memoryview) -> None:
        """Go on with the next bytes of the object; what comes after the chunks is passed over.

        Raises:
            Corrupt: a chunk is damaged.
        """
        begun = data[self._skip :]
        self._skip -= len(data) - len(begun)
        begun = begun[: self._left]
        self._left -= len(begun)
        self._held += begun
        position = 0
        while len(self._held) - position >= CHUNK_HEADER_SIZE:
            head = bytes(self._held[position : position + CHUNK_HEADER_SIZE])
            size = decode_header(head).total_size
            if len(self._held) - position < size:
                break
            self._look_at(bytes(self._held[position : position + size]))
            position += size
        del self._held[:position]

    def _look_at(self, data: bytes) -> None:
        [(header, chunk)] = split_chunks(data)
        found = values_of(header, chunk, self._columns)
        for table in self._tables:
            values = found[table.column]
            hashes = hash_values(values.distinct)
            if not self._holds(table, values, hashes):
                self.missing = True
            of_entry = table.column == Columns.FILTER_VALUE
            if of_entry and not _in(filters_of(self._info), hashes):
                self.missing = True
        self._number += 1

    def _holds(self, table: FilterTable, values: ChunkValues, hashes: Hashes) -> bool:
        said, blocks = table.presence, table.blocks
        if values.presence & ~said or not _in(blocks, hashes):
            return False
        if not len(table.lines):
            return True
        if self._number >= len(table.lines):
            return False
        first, count, presence, _ = table.lines[self._number].item()
        of_chunk = table.chunk_blocks[first : first + count]
        return not values.presence & ~Presence(presence) and _in(of_chunk, hashes)


def _in(blocks: Blocks, hashes: Hashes) -> bool:
    """Whether all values may be in a filter; where there is none any may."""
    return not len(blocks) or bool(may_hold(blocks, hashes).all())
