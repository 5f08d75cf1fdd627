"""The filters of one fragment: what values its columns have, as a whole and of each chunk.

    | table | table |      between the chunks and the index of a fragment of version 2

    table = | head 32 | blocks of the fragment | line 8 per chunk, padded to 32 | blocks of chunks |

Who reads without a filter never fetches them. Who reads with one leaves out the chunks in which
certainly nothing is that was asked for.

On the record's path: made by services/bottomless_server/core/filter_making.py, kept by
shared/bottomless/formats/fragment.py. Byte tables: docs/formats.md, "Filter table".
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from bottomless.formats.checks import check
from bottomless.formats.filter import (
    BLOCK_SIZE,
    VALUES_OF_A_BLOCK_MAX,
    AskedHashes,
    Blocks,
    Hashes,
    block_of,
    blocks_as_bytes,
    blocks_from,
    fold,
    is_block_count,
    masks_of,
    no_blocks,
)
from bottomless.guards import guard
from bottomless.model.fragment import Presence
from bottomless.model.limits import FILTER_BLOCK_COUNT_MAX, FRAGMENT_CHUNK_COUNT_MAX
from bottomless.model.record import Columns

FILTER_COLUMNS: Final = (Columns.FILTER_VALUE, Columns.KEY)
"""Columns that may have a table, in the order of the tables."""
BLOCK_COUNTS_MAX: Final = {Columns.FILTER_VALUE: 512, Columns.KEY: 8_192}
"""Blocks of the filter of a whole fragment."""
HASH: Final = 1
"""The hash of all filters: the first 8 bytes of a SHA-256."""
DISTINCT_COUNT_MAX: Final = 2**32 - 1

_TABLE = struct.Struct(
    "<"
    "H"  # column
    "B"  # hash
    "B"  # presence
    "I"  # blocks
    "I"  # chunk_count
    "I"  # chunk_blocks
    "I"  # distinct_count
    "12x"  # reserved
)
TABLE_SIZE: Final = _TABLE.size
assert TABLE_SIZE == 32  # docs/formats.md, "Filter table"

LINE_DTYPE: Final = np.dtype(
    [
        ("first_block", "<u4"),
        ("blocks", "<u2"),
        ("presence", "u1"),
        ("reserved", "V1"),
    ]
)
assert LINE_DTYPE.itemsize == 8  # docs/formats.md, "Filter line"

Lines = NDArray[np.void]
"""One-dimensional array of LINE_DTYPE, one for each chunk."""


def no_lines() -> Lines:
    """Make the lines of a table that says nothing of single chunks: an array of length 0."""
    return np.empty(0, dtype=LINE_DTYPE)


@dataclass(frozen=True, slots=True, eq=False)
class FilterTable:
    """What values one column of a fragment has, as a whole and of each chunk."""

    column: Columns
    presence: Presence
    blocks: Blocks
    """The filter of the whole fragment. It is empty where there are no values, or too many."""
    lines: Lines = field(default_factory=no_lines)
    """One for each chunk, or none at all."""
    chunk_blocks: Blocks = field(default_factory=no_blocks)
    """Filters of all chunks, one after the other."""
    distinct_count: int = 0
    """Different values of the whole fragment; 0 where they were too many to count."""

    @property
    def size(self) -> int:
        """Bytes of the table in an object."""
        blocks = len(self.blocks) + len(self.chunk_blocks)
        return TABLE_SIZE + BLOCK_SIZE * blocks + _lines_size(len(self.lines))


def encode_filters(tables: Sequence[FilterTable], chunk_count: int) -> bytes:
    """Encode the tables of a fragment with so many chunks.

    Raises:
        Corrupt: no reader would accept them.
    """
    _check_tables(tables, chunk_count)
    parts: list[bytes] = []
    for table in tables:
        parts.append(
            _TABLE.pack(
                table.column,
                HASH,
                table.presence,
                len(table.blocks),
                len(table.lines),
                len(table.chunk_blocks),
                table.distinct_count,
            )
        )
        lines = np.ascontiguousarray(table.lines).tobytes()
        room = bytes(_lines_size(len(table.lines)) - len(lines))
        parts += [blocks_as_bytes(table.blocks), lines, room, blocks_as_bytes(table.chunk_blocks)]
    return b"".join(parts)


def decode_filters(data: bytes | memoryview, chunk_count: int) -> tuple[FilterTable, ...]:
    """Read the tables of a fragment with so many chunks; their arrays view `data` in place.

    Whoever fetched them has checked `filters_crc` of the footer.

    Raises:
        Corrupt: no writer of this format can have written these bytes.
    """
    what = "fragment filters"
    tables: list[FilterTable] = []
    view, position = memoryview(data), 0
    while position < len(view):
        head = view[position : position + TABLE_SIZE]
        check(what, len(head) == TABLE_SIZE, "a table is cut short")
        column, hash_, presence, blocks, lines, chunk_blocks, distinct = _TABLE.unpack(head)
        check(what, column in FILTER_COLUMNS, f"column {column} has no filter")
        check(what, hash_ == HASH, f"hash {hash_} is not known")
        check(what, presence in _PRESENCES, f"presence {presence} is not known")
        check(what, blocks <= BLOCK_COUNTS_MAX[column], f"blocks={blocks}")
        check(what, lines in (0, chunk_count), f"chunks={lines}, not {chunk_count}")
        check(what, chunk_blocks <= FILTER_BLOCK_COUNT_MAX * lines, f"chunk_blocks={chunk_blocks}")
        first = position + TABLE_SIZE
        second = first + BLOCK_SIZE * blocks
        third = second + _lines_size(lines)
        end = third + BLOCK_SIZE * chunk_blocks
        check(what, end <= len(view), "a table is cut short")
        tables.append(
            FilterTable(
                Columns(column),
                Presence(presence),
                blocks_from(view[first:second]),
                np.frombuffer(view[second : second + lines * LINE_DTYPE.itemsize], LINE_DTYPE),
                blocks_from(view[third:end]),
                distinct,
            )
        )
        position = end
    _check_tables(tables, chunk_count)
    return tuple(tables)


_PRESENCES: Final = (Presence.SOME, Presence.NONE, Presence.SOME | Presence.NONE)


def _check_tables(tables: Sequence[FilterTable], chunk_count: int) -> None:
    what = "fragment filters"
    check(what, 0 < chunk_count <= FRAGMENT_CHUNK_COUNT_MAX, f"chunks={chunk_count}")
    columns = [table.column for table in tables]
    check(what, len(columns) > 0, "there is no table")
    in_order = columns == [column for column in FILTER_COLUMNS if column in columns]
    check(what, in_order, "its tables are not those of its columns")
    for table in tables:
        _check_table(table, chunk_count)


def _check_table(table: FilterTable, chunk_count: int) -> None:
    what = "fragment filters"
    count = len(table.blocks)
    fits = count == 0 or (is_block_count(count) and count <= BLOCK_COUNTS_MAX[table.column])
    check(what, fits, f"blocks={count}")
    check(what, table.presence in _PRESENCES, f"presence {table.presence} is not known")
    some = Presence.SOME in table.presence
    check(what, some or count == 0, "there are blocks of no value")
    check(what, count == 0 or table.distinct_count > 0, "there are blocks of no value")
    check(what, 0 <= table.distinct_count <= DISTINCT_COUNT_MAX, "too many values")
    lines = table.lines
    check(what, len(lines) in (0, chunk_count), f"chunks={len(lines)}, not {chunk_count}")
    blocks = lines["blocks"].astype(np.int64)
    powers = (blocks & (blocks - 1)) == 0
    check(what, bool(np.all(powers & (blocks <= FILTER_BLOCK_COUNT_MAX))), "blocks of a chunk")
    ends = np.cumsum(blocks)
    total = int(ends[-1]) if len(ends) else 0
    check(what, total == len(table.chunk_blocks), "blocks of chunks are missing")
    firsts = np.where(blocks > 0, ends - blocks, 0)
    check(what, bool(np.all(lines["first_block"] == firsts)), "blocks of chunks overlap or miss")
    # Of a chunk without records (tracking) neither bit is set.
    known = lines["presence"] & ~np.uint8(table.presence) == 0
    check(what, bool(np.all(known)), "a chunk has what the fragment has not")
    some_here = lines["presence"] & Presence.SOME != 0
    check(what, bool(np.all(some_here | (blocks == 0))), "there are blocks of no value")


def entry_filter(tables: Sequence[FilterTable]) -> tuple[Presence, bytes]:
    """Tell what a manifest entry says of the fragment with these tables: presence and blocks.

    Presence is 0, which says nothing, where no table is that of filter values.
    """
    table = next((one for one in tables if one.column == Columns.FILTER_VALUE), None)
    if table is None:
        return Presence(0), b""
    blocks = table.blocks
    if len(blocks) > FILTER_BLOCK_COUNT_MAX:
        fits = table.distinct_count <= VALUES_OF_A_BLOCK_MAX * FILTER_BLOCK_COUNT_MAX
        blocks = fold(blocks, FILTER_BLOCK_COUNT_MAX) if fits else no_blocks()
    return Presence.KNOWN | table.presence, blocks_as_bytes(blocks)


def _lines_size(count: int) -> int:
    return -(-count * LINE_DTYPE.itemsize // BLOCK_SIZE) * BLOCK_SIZE


def chunks_to_read(
    tables: Sequence[FilterTable], chunk_count: int, asked: AskedHashes
) -> NDArray[np.bool_]:
    """Tell of each chunk of a fragment whether it may hold a record that was asked for.

    Where a column has no table, or its table says nothing of chunks, all may.
    """
    wanted = np.ones(chunk_count, dtype=np.bool_)
    for column, hashes, or_none in (
        (Columns.FILTER_VALUE, asked.values, asked.match_unfiltered),
        (Columns.KEY, asked.keys, False),
    ):
        table = next((one for one in tables if one.column == column), None)
        if hashes is None or table is None:
            continue
        presence = np.full(1, table.presence | Presence.KNOWN, dtype=np.uint8)
        counts = np.full(1, len(table.blocks), dtype=np.uint64)
        wanted &= may_be_there(
            presence, np.zeros(1, np.uint64), counts, table.blocks, hashes, or_none=or_none
        )
        if len(table.lines):
            lines = table.lines
            wanted &= may_be_there(
                lines["presence"] | np.uint8(Presence.KNOWN),
                lines["first_block"].astype(np.uint64),
                lines["blocks"].astype(np.uint64),
                table.chunk_blocks,
                hashes,
                or_none=or_none,
            )
    return wanted


def may_be_there(
    presence: NDArray[np.uint8],
    firsts: NDArray[np.uint64],
    counts: NDArray[np.uint64],
    blocks: Blocks,
    hashes: Hashes,
    *,
    or_none: bool,
) -> NDArray[np.bool_]:
    """Tell of each of many filters, which lie one after the other, whether a value may be there.

    Of each there are its presence, the number of its first block and how many it has. `or_none`
    says that a record without a value will do as well.
    """
    some = presence & Presence.SOME != 0
    hits = np.ones(len(presence), dtype=np.bool_)
    here = np.flatnonzero(some & (counts > 0))
    if len(here):
        wanted = hashes[:, np.newaxis]
        places = firsts[here] + block_of(wanted, counts[here])
        masks = masks_of(wanted)
        found = blocks[places.astype(np.intp)]
        hits[here] = np.any(np.all(found & masks == masks, axis=-1), axis=0)
    matched = some & hits
    if or_none:
        matched |= presence & Presence.NONE != 0
    told: NDArray[np.bool_] = is_untold(presence) | matched
    return told


@guard("known of an entry")
def is_untold(presence: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Tell where nothing is known of values, so that what is there has to be read."""
    untold: NDArray[np.bool_] = presence & Presence.KNOWN == 0
    return untold
