"""The chunks of one segment, in memory: index records as on disk, searched in place.

Bytes instead of objects: 48 for each chunk, where tuples of numbers take ten times that.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from struct import Struct

from bottomless.formats.segment import INDEX_RECORD_SIZE, encode_index_record
from bottomless.model.chunk import ChunkPlace

_PLACE = Struct("<QqQQII")
_NUMBER = Struct("<Q")
_TIMESTAMP = Struct("<q")
assert _PLACE.size == INDEX_RECORD_SIZE - 8  # formats/segment.py: reserved and checksum follow


class ChunkIndex:
    """The index of one segment; it grows at its end only."""

    def __init__(self) -> None:
        self._records = bytearray()

    def __len__(self) -> int:
        return len(self._records) // INDEX_RECORD_SIZE

    def append(self, place: ChunkPlace) -> None:
        self._records += encode_index_record(place)

    def encoded(self) -> bytes:
        """The bytes of all records, as they stand in the index file."""
        return bytes(self._records)

    def place(self, number: int) -> ChunkPlace:
        """The chunk of this number; negative counts from the end."""
        if number < 0:
            number += len(self)
        return ChunkPlace(*_PLACE.unpack_from(self._records, number * INDEX_RECORD_SIZE))

    def holding(self, offset: int) -> int:
        """Number of the last chunk that starts at or below `offset`; -1 if there is none."""
        return bisect_right(range(len(self)), offset, key=self._field(0, _NUMBER)) - 1

    def since(self, timestamp: int) -> int:
        """Number of the first chunk with this timestamp or a later one; the count if none."""
        return bisect_left(range(len(self)), timestamp, key=self._field(8, _TIMESTAMP))

    def before(self, position: int) -> int:
        """Number of the last chunk that starts below `position`; -1 if there is none."""
        return bisect_left(range(len(self)), position, key=self._field(16, _NUMBER)) - 1

    def _field(self, at: int, form: Struct) -> Callable[[int], int]:
        records = self._records
        return lambda number: int(form.unpack_from(records, number * INDEX_RECORD_SIZE + at)[0])
