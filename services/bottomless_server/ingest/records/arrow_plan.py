"""What a schema says of the messages that follow it: which columns, in how many buffers each.

A program sends the same schema with every body, so it is read by Arrow once, held to what records
may have, and known by its bytes from then on.
"""

import struct
from functools import lru_cache
from typing import Any, Final, NamedTuple

import pyarrow as pa

from bottomless.errors import InvalidRequest
from bottomless.formats import flatbuffers as fb
from bottomless.formats.batch import FIELDS
from bottomless.formats.message_shape import (
    CONTINUATION,
    PREFIX,
    MessageShape,
    Numbers,
    shape_of,
)
from bottomless.model.limits import (
    FILTER_VALUE_SIZE_MAX,
    KIB,
    RECORD_KEY_SIZE_MAX,
    RECORD_VALUE_SIZE_MAX,
)
from bottomless.model.record import Columns
from bottomless_server.ingest.records.arrow_columns import ID_NAME
from bottomless_server.ingest.records.arrow_records import check_schema
from bottomless_server.ingest.records.arrow_types import is_bytes, is_text, is_view

METADATA_SIZE_MAX: Final = 8 * KIB
"""Bytes of a schema or of a batch's metadata; larger ones go the way of anything else."""
_PLAN_COUNT_MAX: Final = 64
_SHAPE_COUNT_MAX: Final = 16
"""Shapes known of one schema: one for its batches, one for each dictionary, and those of columns of
views, which differ by how many buffers there are."""


class Form(NamedTuple):
    """In which buffers values of a type come."""

    kind: pa.DataType
    buffer_count: int
    """How many there are, but those of the data of views, whose count is in each message."""
    is_view: bool
    children: tuple["Form", ...] = ()
    """Forms of the names and of the values of a map."""


class PlannedColumn(NamedTuple):
    """A column of the body."""

    name: str
    column: Columns | None
    """None for publishing_id."""
    bit: int
    """The column's in a mask; columns are stored in the order of their bits."""
    form: Form
    """The form of its values, where it has a dictionary."""
    dictionary_id: int | None
    indices: Form | None
    """The form of what points into its dictionary, where it has one."""
    as_stored: bool
    """Whether its buffers are those of the stored column."""
    nullable: bool
    """Whether the stored column may have nulls; one of nothing else is not stored."""
    width: int
    """Bytes of each stored value; 0 where they differ."""
    size_max: int
    """Bytes of one value, where they differ."""


class Plan:
    """The columns of a schema, and the shapes of its messages that were seen."""

    def __init__(self, columns: tuple[PlannedColumn, ...]) -> None:
        self.columns: Final = columns
        self.dictionaries: Final = {
            one.dictionary_id: one.form for one in columns if one.dictionary_id is not None
        }
        names = {one.name: one for one in columns}
        self.adds_content: Final = "content" not in names and is_text(names["value"].form.kind)
        self.text_values: Final = is_text(names["value"].form.kind)
        self.shapes: tuple[MessageShape, ...] = ()

    def read(self, body: memoryview, position: int) -> tuple[MessageShape, Numbers] | None:
        """The message at `position`; None if it is no batch, or an unusual one."""
        for shape in self.shapes:
            numbers = shape.read(body, position)
            if numbers is not None:
                return shape, numbers
        learned = _learn(body, position)
        if learned is None:
            return None
        numbers = learned.read(body, position)
        # The newest first: whoever sends a new one each time keeps those of others from no place.
        self.shapes = (learned, *self.shapes[: _SHAPE_COUNT_MAX - 1])
        return None if numbers is None else (learned, numbers)


def _learn(body: memoryview, position: int) -> MessageShape | None:
    size = metadata_size(body, position)
    if size is None:
        return None
    # Arrow verifies the flatbuffer here, so that the walk stays inside it.
    message = pa.ipc.read_message(pa.py_buffer(body[position:]))
    if message.metadata_version != pa.ipc.MetadataVersion.V5:
        return None
    return shape_of(body[position : position + PREFIX.size + size])


def metadata_size(body: memoryview, position: int) -> int | None:
    """Bytes of the metadata at `position`, after its prefix; None for what is not as usual."""
    if position + PREFIX.size > len(body):
        return None
    continuation, size = PREFIX.unpack_from(body, position)
    usual = continuation == CONTINUATION and 0 < size <= METADATA_SIZE_MAX and size % 8 == 0
    return size if usual and position + PREFIX.size + size <= len(body) else None


@lru_cache(maxsize=_PLAN_COUNT_MAX)
def plan_of(message: bytes, numbered: bool) -> Plan | None:
    """The plan for what follows this schema message; None for what is not as usual."""
    try:
        read = pa.ipc.read_message(pa.py_buffer(message))
        if read.type != "schema" or read.metadata_version != pa.ipc.MetadataVersion.V5:
            return None
        schema = pa.ipc.read_schema(read)
        check_schema(schema, numbered=numbered)
        ids = _dictionary_ids(memoryview(message)[PREFIX.size :])
    except MemoryError:
        raise
    except (pa.ArrowException, OSError, struct.error, ValueError, IndexError, InvalidRequest):
        return None
    columns = tuple(_planned(field, one) for field, one in zip(schema, ids, strict=True))
    given = [one for one in ids if one is not None]
    usual = len(set(given)) == len(given) and all(_is_usual(one.form) for one in columns)
    return Plan(columns) if usual else None


def _planned(field: Any, dictionary_id: int | None) -> PlannedColumn:
    column = None if field.name == ID_NAME else _NAMES[field.name]
    kind, indices = field.type, None
    if dictionary_id is not None:
        kind, indices = field.type.value_type, field.type.index_type
    as_stored = column is not None and indices is None and _is_stored_form(column, kind)
    index_form = None if indices is None else form_of(indices)
    return PlannedColumn(
        name=field.name,
        column=column,
        bit=0 if column is None else column.value,
        form=form_of(kind),
        dictionary_id=dictionary_id,
        indices=index_form,
        as_stored=as_stored,
        nullable=column is not None and FIELDS[column].nullable,
        width=0 if column is None else _WIDTHS.get(column, 0),
        size_max=0 if column is None else _SIZES_MAX.get(column, 0),
    )


def form_of(kind: pa.DataType) -> Form:
    if pa.types.is_map(kind):
        return Form(kind, 2, False, (form_of(kind.key_type), form_of(kind.item_type)))
    if pa.types.is_null(kind):
        return Form(kind, 0, is_view=False)
    of_any_length = is_text(kind) or (is_bytes(kind) and not pa.types.is_fixed_size_binary(kind))
    return Form(kind, 3 if of_any_length and not is_view(kind) else 2, is_view(kind))


def _is_stored_form(column: Columns, kind: pa.DataType) -> bool:
    stored = FIELDS[column].type
    # Text is bytes that Arrow has found to be UTF-8.
    text = pa.types.is_string(kind) and pa.types.is_binary(stored)
    return text or (column is not Columns.HEADERS and kind.equals(stored))


def _dictionary_ids(metadata: memoryview) -> list[int | None]:
    """The id of the dictionary of each field.

    Raises:
        ValueError: numbers are not little-endian, or there is a body.
    """
    table = fb.u32(metadata, 0)
    schema = fb.child(metadata, table, fb.MESSAGE_HEADER)
    for position, size in (
        (fb.slot(metadata, schema, fb.SCHEMA_ENDIANNESS), 2),
        (fb.slot(metadata, table, fb.MESSAGE_BODY_SIZE), 8),
    ):
        if position is not None and any(metadata[position : position + size]):
            raise ValueError("an unusual schema")
    vector = fb.child(metadata, schema, fb.SCHEMA_FIELDS)
    places = range(vector + 4, vector + 4 + 4 * fb.u32(metadata, vector), 4)
    return [_dictionary_id(metadata, place + fb.u32(metadata, place)) for place in places]


def _dictionary_id(metadata: memoryview, field: int) -> int | None:
    if fb.slot(metadata, field, fb.FIELD_DICTIONARY) is None:
        return None
    position = fb.slot(metadata, fb.child(metadata, field, fb.FIELD_DICTIONARY), fb.DICTIONARY_ID)
    return 0 if position is None else int(struct.unpack_from("<q", metadata, position)[0])


def _is_usual(form: Form) -> bool:
    # Counts of buffers of data, which views have, are in the order of columns, not of what is in them.
    return not any(child.is_view for child in form.children)


_WIDTHS: Final = {Columns.EVENT_TIME: 8, Columns.CONTENT: 1}
_SIZES_MAX: Final = {
    Columns.VALUE: RECORD_VALUE_SIZE_MAX,
    Columns.KEY: RECORD_KEY_SIZE_MAX,
    Columns.FILTER_VALUE: FILTER_VALUE_SIZE_MAX,
}
_NAMES: Final = {field.name: column for column, field in FIELDS.items()}
