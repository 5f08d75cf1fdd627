"""The headers column of an Arrow request: a map of text to bytes, with bounds per record."""

from typing import Any

import numpy as np
import pyarrow as pa

from bottomless.formats.batch import FIELDS
from bottomless.model.limits import HEADER_COUNT_MAX, HEADER_SIZE_MAX
from bottomless.model.record import Columns
from bottomless_server.ingest.records.arrow_types import sizes_of
from bottomless_server.ingest.records.faults import column_fault

_NAME = "headers"


def read_headers(source: Any) -> Any:
    """The column in its stored type.

    Raises:
        InvalidRequest: nulls within, too many or too large headers, a name twice.
    """
    offsets = np.asarray(source.offsets, np.int64)
    counts = np.diff(offsets)
    if counts.size and counts.max() > HEADER_COUNT_MAX:
        raise column_fault(_NAME, f"a record has at most {HEADER_COUNT_MAX} headers")
    if source.keys.null_count or source.items.null_count:
        raise column_fault(_NAME, "a header has a name and a value")
    sizes = sizes_of(source)
    if sizes is not None and sizes.size and sizes.max() > HEADER_SIZE_MAX:
        raise column_fault(_NAME, f"a header has at most {HEADER_SIZE_MAX} bytes with its name")
    # Not pyarrow's list functions: given a map, some of them end the process.
    owners = np.repeat(np.arange(counts.size), counts)
    names = source.keys.to_pylist()[int(offsets[0]) : int(offsets[-1])]
    if len(set(zip(owners.tolist(), names, strict=True))) != len(names):
        raise column_fault(_NAME, "a record has a header twice")
    try:
        return source.cast(FIELDS[Columns.HEADERS].type)
    except MemoryError:
        raise
    except pa.ArrowException as error:
        raise column_fault(_NAME, "a value does not fit the column's type") from error
