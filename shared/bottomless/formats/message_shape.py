"""The shape of a batch's metadata: all of its bytes but the numbers, and where the numbers stand.

    | FFFFFFFF | metadata_size i32 | flatbuffer: structure, rows, nodes, buffers, body_size |

A program that writes Arrow writes the same structure for every batch of a schema, with other
numbers in it. So a structure is verified and walked once, by Arrow and by `shape_of`, and is
recognised from then on by comparing bytes; and the metadata that we store is a shape with numbers.

Why not walk each message? Arrow's verifier has to see what it walks, and costs ten times as much.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from bottomless.formats import flatbuffers as fb
from bottomless.formats.flatbuffers import u16, u32, vtable_of

PREFIX: Final = struct.Struct("<Ii")
"""The continuation, and the size of the metadata with its padding."""
CONTINUATION: Final = 0xFFFFFFFF
_I64_SIZE: Final = 8
_PAIR_COUNT: Final = 2
"""Numbers of a field node (rows, nulls) and of a buffer (offset, size)."""


class Numbers(NamedTuple):
    """The numbers of one message. Nobody has checked them yet, where they come from outside."""

    body_size: tuple[int]
    row_count: tuple[int]
    nodes: tuple[int, ...]
    """Rows and nulls of each field, one after the other."""
    buffers: tuple[int, ...]
    """Offset within the body and size of each buffer."""
    variadic_counts: tuple[int, ...] = ()
    """Buffers of data of each column of views."""


class Place(NamedTuple):
    """Where numbers of 64 bits stand in a message."""

    start: int
    """In bytes, from the beginning of the message."""
    number_count: int

    @property
    def end(self) -> int:
        return self.start + _I64_SIZE * self.number_count


class MessageShape:
    """A message without its numbers, prefix included."""

    def __init__(self, message: bytes, places: Sequence[Place], dictionary_id: int | None) -> None:
        """`places` are those of the members of `Numbers`, in their order."""
        self.dictionary_id: Final = dictionary_id
        """The dictionary that a dictionary batch is; None for a record batch."""
        self.size: Final = len(message)
        # Two forms over the same bytes: one skips the numbers, the other all that is between.
        structure, numbers, end, found = "<", "<", 0, 0
        members = [slice(0, 0)] * len(Numbers._fields)
        for number, place in sorted(enumerate(places), key=lambda one: one[1].start):
            structure += f"{place.start - end}s{place.end - place.start}x"
            numbers += f"{place.start - end}x{place.number_count}q"
            members[number] = slice(found, found + place.number_count)
            end, found = place.end, found + place.number_count
        self._structure_form = struct.Struct(f"{structure}{self.size - end}s")
        self._numbers_form = struct.Struct(f"{numbers}{self.size - end}x")
        self._structure = self._structure_form.unpack(message)
        self._members = members
        self._message = message
        self._writers = [(struct.Struct(f"<{one.number_count}q"), one.start) for one in places]

    def read(self, data: memoryview, position: int) -> Numbers | None:
        """The numbers of the message at `position`; None if it has another shape."""
        if position + self.size > len(data):
            return None
        if self._structure_form.unpack_from(data, position) != self._structure:
            return None
        found = self._numbers_form.unpack_from(data, position)
        size, rows, nodes, buffers, variadic = self._members
        return Numbers(found[size], found[rows], found[nodes], found[buffers], found[variadic])

    def fill(self, numbers: Numbers) -> bytes:
        """The message with these numbers."""
        message = bytearray(self._message)
        # Without columns of views there is no place for the last.
        for (form, start), values in zip(self._writers, numbers, strict=False):
            form.pack_into(message, start, *values)
        return bytes(message)


def shape_of(message: memoryview) -> MessageShape | None:
    """The shape of a message, prefix and metadata, which Arrow has verified.

    None for what is no batch, is compressed, replaces or extends a dictionary, or says more than
    a batch needs; and where one byte stands for two things, so that a number might be structure.
    """
    try:
        return _Walk(message[PREFIX.size :]).shape(bytes(message))
    except (struct.error, ValueError, IndexError):
        return None


class _Walk:
    """One pass over a message's metadata that notes every byte that it reads."""

    def __init__(self, metadata: memoryview) -> None:
        self._data = metadata
        self._structure: set[tuple[int, int]] = set()

    def shape(self, message: bytes) -> MessageShape | None:
        self._note(0, 4)
        table = u32(self._data, 0)
        fields = self._fields(table, {0: 2, 1: 1, 2: 4, 3: 8})
        kind = self._data[fields[fb.MESSAGE_HEADER_TYPE]]
        dictionary_id = None
        batch = self._target(fields, fb.MESSAGE_HEADER)
        if kind == fb.HEADER_DICTIONARY_BATCH:
            outer = self._fields(batch, {0: 8, 1: 4, 2: 1})
            dictionary_id = self._i64(outer.get(fb.DICTIONARY_ID))
            if 2 in outer and self._data[outer[2]]:
                return None
            batch = self._target(outer, fb.DICTIONARY_DATA)
        elif kind != fb.HEADER_RECORD_BATCH:
            return None
        inner = self._fields(batch, {0: 8, 1: 4, 2: 4, 4: 4})
        places = [
            Place(fields[fb.MESSAGE_BODY_SIZE], 1),
            Place(inner[fb.BATCH_LENGTH], 1),
            self._vector(inner, fb.BATCH_NODES, _PAIR_COUNT),
            self._vector(inner, fb.BATCH_BUFFERS, _PAIR_COUNT),
        ]
        if fb.BATCH_VARIADIC_COUNTS in inner:
            places.append(self._vector(inner, fb.BATCH_VARIADIC_COUNTS, 1))
        if not self._apart(places):
            return None
        moved = [Place(place.start + PREFIX.size, place.number_count) for place in places]
        return MessageShape(message, moved, dictionary_id)

    def _fields(self, table: int, known: dict[int, int]) -> dict[int, int]:
        """Positions of a table's fields.

        Raises:
            ValueError: it has others than the known ones, whose sizes are given; or lacks one that
                is looked up, as a KeyError would say.
        """
        vtable = vtable_of(self._data, table)
        size = u16(self._data, vtable)
        self._note(table, 4)
        self._note(vtable, size)
        found = _Fields()
        for number in range((size - 4) // 2):
            offset = u16(self._data, vtable + 4 + 2 * number)
            if not offset:
                continue
            if number not in known:
                raise ValueError("a field that batches do not need")
            found[number] = table + offset
            if known[number] < _I64_SIZE:
                self._note(table + offset, known[number])
        return found

    def _target(self, fields: dict[int, int], number: int) -> int:
        return fields[number] + u32(self._data, fields[number])

    def _vector(self, fields: dict[int, int], number: int, numbers_each: int) -> Place:
        position = self._target(fields, number)
        self._note(position, 4)
        return Place(position + 4, numbers_each * u32(self._data, position))

    def _i64(self, position: int | None) -> int:
        if position is None:
            return 0
        self._note(position, _I64_SIZE)
        return int(struct.unpack_from("<q", self._data, position)[0])

    def _note(self, start: int, size: int) -> None:
        self._structure.add((start, start + size))

    def _apart(self, places: Iterable[Place]) -> bool:
        """Whether everything lies inside, and no number on structure or on another number."""
        numbers = [(place.start, place.end) for place in places if place.number_count]
        end = 0
        for start, stop in sorted([*self._structure, *numbers]):
            if start < end:
                return False
            end = stop
        return end <= len(self._data)


class _Fields(dict[int, int]):
    def __missing__(self, number: int) -> int:
        raise ValueError(f"field {number} is missing")
