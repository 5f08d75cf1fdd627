"""Walk the flatbuffers of Arrow's metadata: tables, their fields, and what these point at.

    | root u32 | ... table: i32 back to its vtable, fields | vtable: sizes u16 u16, offsets u16 ... |

Nothing is checked here but that reads stay inside the data; who walks has had Arrow verify it.
"""

import struct
from typing import Final

_I32: Final = struct.Struct("<i").unpack_from
_U32: Final = struct.Struct("<I").unpack_from
_U16: Final = struct.Struct("<H").unpack_from

# Field numbers and header types of Arrow's Message.fbs and Schema.fbs.
MESSAGE_VERSION: Final = 0
MESSAGE_HEADER_TYPE: Final = 1
MESSAGE_HEADER: Final = 2
MESSAGE_BODY_SIZE: Final = 3
DICTIONARY_ID: Final = 0
DICTIONARY_DATA: Final = 1
BATCH_LENGTH: Final = 0
BATCH_NODES: Final = 1
BATCH_BUFFERS: Final = 2
BATCH_COMPRESSION: Final = 3
BATCH_VARIADIC_COUNTS: Final = 4
SCHEMA_ENDIANNESS: Final = 0
SCHEMA_FIELDS: Final = 1
FIELD_DICTIONARY: Final = 4
HEADER_SCHEMA: Final = 1
HEADER_DICTIONARY_BATCH: Final = 2
HEADER_RECORD_BATCH: Final = 3


def u16(data: memoryview, position: int) -> int:
    return int(_U16(data, position)[0])


def u32(data: memoryview, position: int) -> int:
    return int(_U32(data, position)[0])


def vtable_of(data: memoryview, table: int) -> int:
    """Position of the list of a table's fields.

    Raises:
        ValueError: it lies before the data, where a negative position would count from the end.
    """
    position = table - int(_I32(data, table)[0])
    if position < 0:
        raise ValueError("a table has no fields")
    return position


def slot(data: memoryview, table: int, number: int) -> int | None:
    """Position of a field's own bytes, None if the table leaves it out."""
    vtable = vtable_of(data, table)
    entry = 4 + 2 * number
    if entry + 2 > u16(data, vtable):
        return None
    offset = u16(data, vtable + entry)
    return table + offset if offset else None


def child(data: memoryview, table: int, number: int) -> int:
    """Position of the table or vector that a field of a table points at.

    Raises:
        ValueError: the field is left out.
    """
    position = slot(data, table, number)
    if position is None:
        raise ValueError("a field is missing")
    return position + u32(data, position)
