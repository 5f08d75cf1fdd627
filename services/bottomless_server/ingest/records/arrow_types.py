"""The Arrow types that a column may come in, and how large their values are once decoded."""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bottomless.model.record import Columns

_VIEW_SIZE = 16

_TEXT = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_BYTES = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
)


def is_text(kind: pa.DataType) -> bool:
    """Whether values of this type are valid UTF-8 by its own rule."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return any(fits(kind) for fits in _TEXT)


def is_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return any(fits(kind) for fits in _BYTES)


def stored_form(column: Columns, kind: pa.DataType) -> bool:
    """Whether a column of this type can be stored as its own."""
    if pa.types.is_null(kind):
        return column not in (Columns.VALUE, Columns.CONTENT)
    if column in (Columns.VALUE, Columns.KEY):
        return is_text(kind) or is_bytes(kind)
    if column is Columns.FILTER_VALUE:
        return is_text(kind)
    if column is Columns.CONTENT:
        return pa.types.is_integer(kind)
    if column is Columns.EVENT_TIME:
        # Without a zone nobody can say which moment is meant.
        return pa.types.is_timestamp(kind) and kind.tz is not None
    assert column is Columns.HEADERS
    return (
        pa.types.is_map(kind)
        and is_text(kind.key_type)
        and (is_text(kind.item_type) or is_bytes(kind.item_type))
        and not pa.types.is_dictionary(kind.key_type)
        and not pa.types.is_dictionary(kind.item_type)
    )


def sizes_of(array: Any) -> NDArray[np.signedinteger] | None:
    """Bytes of each value of a column of text or bytes, 0 for nulls; None for other types.

    Views and dictionaries are measured without being decoded: they may name one large
    value as often as they like.
    """
    kind = array.type
    sizes: NDArray[np.signedinteger]
    if pa.types.is_map(kind):
        return _map_sizes(array)
    if not (is_text(kind) or is_bytes(kind)):
        return None
    if pa.types.is_dictionary(kind):
        return _dictionary_sizes(array)
    if pa.types.is_fixed_size_binary(kind):
        return np.full(len(array), kind.byte_width, np.int64)
    if is_view(kind):
        views = np.frombuffer(array.buffers()[1], np.int32).reshape(-1, 4)
        sizes = views[array.offset : array.offset + len(array), 0].copy()
    elif not len(array):
        return np.zeros(0, np.int64)
    else:
        large = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
        width, end = (np.int64 if large else np.int32), array.offset + len(array) + 1
        offsets: NDArray[Any] = np.frombuffer(array.buffers()[1], width, end)[array.offset :]
        sizes = offsets[1:] - offsets[:-1]
    if array.null_count:
        # What stands under a null may be anything.
        sizes[np.asarray(array.is_null())] = 0
    return sizes


def viewed_size(array: Any) -> int:
    """Bytes that the views of a column name together, each as often as it is named.

    For a column that is not yet validated in full: that looks at all of them.
    """
    kind = array.type
    if pa.types.is_map(kind):
        return viewed_size(array.keys) + viewed_size(array.items)
    if pa.types.is_dictionary(kind):
        return viewed_size(array.dictionary)
    if not is_view(kind) or not len(array):
        return 0
    sizes = sizes_of(array)
    assert sizes is not None
    # What is negative makes nothing else smaller.
    return int(np.maximum(sizes, 0).sum(dtype=np.int64))


def dictionary_size(array: Any) -> int:
    """Bytes of the dictionary of a column, and some for each of its values; 0 where it has none.

    All of it is looked at for each batch that it goes with.
    """
    if not pa.types.is_dictionary(array.type):
        return 0
    values = array.dictionary
    # Of a length below nothing Arrow tells none.
    values.validate()
    return int(values.get_total_buffer_size()) + 8 * len(values)


def without_hidden_views(array: Any) -> Any:
    """A copy of a column, with nothing left where views stand under a null.

    Arrow validates only what is valid, but its casts follow every view: what a client
    writes under a null would be an address of its choice.
    """
    kind = array.type
    if not is_view(kind) or not array.null_count:
        return array
    validity, views, *data = array.buffers()
    slots = np.frombuffer(views, np.uint8).reshape(-1, _VIEW_SIZE).copy()
    slots[array.offset : array.offset + len(array)][np.asarray(array.is_null())] = 0
    buffers = [validity, pa.py_buffer(slots.tobytes()), *data]
    return pa.Array.from_buffers(kind, len(array), buffers, offset=array.offset)


def is_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))


def _dictionary_sizes(array: Any) -> NDArray[np.signedinteger]:
    sizes = sizes_of(array.dictionary)
    assert sizes is not None
    if not len(sizes):
        return np.zeros(len(array), np.int64)
    indices = array.indices
    if indices.null_count:
        indices = indices.fill_null(0)
    indices = np.asarray(indices, np.int64)
    taken: NDArray[np.signedinteger] = sizes[indices]
    if array.indices.null_count:
        taken[np.asarray(array.indices.is_null())] = 0
    return taken


def _map_sizes(array: Any) -> NDArray[np.signedinteger]:
    names, items = sizes_of(array.keys), sizes_of(array.items)
    assert names is not None
    assert items is not None
    return names + items
