"""The columns of an Arrow request that are more than values: `headers` and `publishing_id`.

Headers are a map of text to bytes, with bounds for each record. Publishing ids are read and
checked, and are not stored.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bottomless.formats.batch import FIELDS
from bottomless.model.limits import HEADER_COUNT_MAX, HEADER_SIZE_MAX
from bottomless.model.record import Columns
from bottomless_server.ingest.records.arrow_types import sizes_of
from bottomless_server.ingest.records.conditions import SEQUENCE_MAX
from bottomless_server.ingest.records.faults import column_fault

HEADERS_NAME: Final = "headers"
ID_NAME: Final = "publishing_id"


def read_headers(source: Any) -> Any:
    """The column in its stored type.

    Raises:
        InvalidRequest: nulls within, too many or too large headers, a name twice.
    """
    offsets = np.asarray(source.offsets, np.int64)
    counts = np.diff(offsets)
    if counts.size and counts.max() > HEADER_COUNT_MAX:
        raise column_fault(HEADERS_NAME, f"a record must have at most {HEADER_COUNT_MAX} headers")
    if source.keys.null_count or source.items.null_count:
        raise column_fault(HEADERS_NAME, "a header must have a name and a value")
    sizes = sizes_of(source)
    if sizes is not None and sizes.size and sizes.max() > HEADER_SIZE_MAX:
        raise column_fault(
            HEADERS_NAME, f"a header must have at most {HEADER_SIZE_MAX} bytes with its name"
        )
    # Not pyarrow's list functions: given a map, some of them end the process.
    owners = np.repeat(np.arange(counts.size), counts)
    names = source.keys.to_pylist()[int(offsets[0]) : int(offsets[-1])]
    if len(set(zip(owners.tolist(), names, strict=True))) != len(names):
        raise column_fault(HEADERS_NAME, "a record must not have a header twice")
    try:
        return source.cast(FIELDS[Columns.HEADERS].type)
    except MemoryError:
        raise
    except pa.ArrowException as error:
        raise column_fault(HEADERS_NAME, "a value does not fit the column's type") from error


def check_id_column(schema: pa.Schema, *, numbered: bool) -> list[str]:
    """Names of the other columns, after it was seen that this one is there if it must be.

    Raises:
        InvalidRequest: `validation-failed`.
    """
    if (ID_NAME in schema.names) != numbered:
        raise column_fault(
            ID_NAME,
            "each record of this producer must have one"
            if numbered
            else "goes with the header Producer-Id, without Producer-Seq",
        )
    if numbered and not pa.types.is_integer(schema.field(ID_NAME).type):
        raise column_fault(ID_NAME, "must be a column of integers")
    return [name for name in schema.names if name != ID_NAME]


def read_ids(columns: Sequence[Any]) -> NDArray[np.int64]:
    """The ids of all records, in order.

    Raises:
        InvalidRequest: `validation-failed`: a null, out of range, or not increasing.
    """
    if any(column.null_count for column in columns):
        raise column_fault(ID_NAME, "the column must have no nulls")
    try:
        ids = np.concatenate([np.asarray(column.cast(pa.int64())) for column in columns])
    except MemoryError:
        raise
    except pa.ArrowException as error:
        raise column_fault(ID_NAME, f"must be an integer from 0 to {SEQUENCE_MAX}") from error
    if ids.min() < 0 or ids.max() > SEQUENCE_MAX:
        raise column_fault(ID_NAME, f"must be an integer from 0 to {SEQUENCE_MAX}")
    if np.any(ids[1:] <= ids[:-1]):
        raise column_fault(ID_NAME, "must be larger than that of the record before")
    return ids
