"""The publishing_id column of an Arrow request: read, checked, and not stored."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bottomless_server.ingest.records.conditions import SEQUENCE_MAX
from bottomless_server.ingest.records.faults import column_fault

ID_NAME: Final = "publishing_id"


def check_id_column(schema: pa.Schema, *, numbered: bool) -> list[str]:
    """Names of the other columns, after it was seen that this one is there if it must be.

    Raises:
        InvalidRequest: `validation-failed`.
    """
    if (ID_NAME in schema.names) != numbered:
        raise column_fault(
            ID_NAME,
            "each record of this producer has one"
            if numbered
            else "it needs the header Producer-Id, without Producer-Seq",
        )
    if numbered and not pa.types.is_integer(schema.field(ID_NAME).type):
        raise column_fault(ID_NAME, "it is a column of integers")
    return [name for name in schema.names if name != ID_NAME]


def read_ids(columns: Sequence[Any]) -> NDArray[np.int64]:
    """The ids of all records, in order.

    Raises:
        InvalidRequest: `validation-failed`: a null, out of range, or not increasing.
    """
    if any(column.null_count for column in columns):
        raise column_fault(ID_NAME, "the column has no nulls")
    try:
        ids = np.concatenate([np.asarray(column.cast(pa.int64())) for column in columns])
    except MemoryError:
        raise
    except pa.ArrowException as error:
        raise column_fault(ID_NAME, f"it is an integer from 0 to {SEQUENCE_MAX}") from error
    if ids.min() < 0 or ids.max() > SEQUENCE_MAX:
        raise column_fault(ID_NAME, f"it is an integer from 0 to {SEQUENCE_MAX}")
    if np.any(ids[1:] <= ids[:-1]):
        raise column_fault(ID_NAME, "it is larger than that of the record before")
    return ids
