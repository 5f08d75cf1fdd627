"""Divide the records of one request among the partitions of a super stream, by their keys.

All records are routed before anything is written: where one has no key, or a key without a
partition, the request is refused as a whole. A partition gets its records in the order in which
they stand in the request, as frames: Arrow takes their rows, and nothing is done record by record.

On the record's path: beside it, for super streams alone; after intake.py, before local/waiting.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bottomless.errors import Code, Fault, InvalidRequest
from bottomless.formats.batch import FIELDS, Codec, decode_message, schema_of, split_frames
from bottomless.formats.rows import build_batch, encode_frames
from bottomless.guards import guard
from bottomless.model.record import Columns
from bottomless.model.routing import NO_ROUTE, Keys, partitions_by_hash, partitions_by_key
from bottomless_server.core.faults import FAULT_COUNT_MAX, invalid
from bottomless_server.ingest.records.intake import Append

_KEY: Final = FIELDS[Columns.KEY].name


class Routes(NamedTuple):
    """How a layout divides records among partitions."""

    partition_count: int
    binding_keys: tuple[bytes, ...] | None = None
    """The key of each partition in their order, by the strategy of keys; None by that of hashes."""


class Divided(NamedTuple):
    """The records of a request that one partition gets."""

    append: Append
    """Its records as frames, and the checksum of the whole request's body."""
    record_indexes: NDArray[np.int64]
    """Where they stand in the request, from 0."""


def divide(
    append: Append, routes: Routes, frame_size_max: int, pointer: str = ""
) -> Mapping[int, Divided]:
    """Divide the records of a request; returns what each partition gets that gets any.

    `pointer` is where the records stand in the body, as a JSON pointer.

    Raises:
        InvalidRequest: 422: `no-route`, or a record has no key. Each with its record's pointer.
    """
    batch, codec = _one_batch(append)
    places = partitions_of(batch, routes, pointer)
    order = np.argsort(places, kind="stable")
    indexes, starts = np.unique(places[order], return_index=True)
    rows_of = np.split(order, starts[1:])
    parts: dict[int, Divided] = {}
    for index, rows in zip(indexes.tolist(), rows_of, strict=True):
        taken = batch if len(rows) == batch.num_rows else batch.take(_positions(rows))
        frames = tuple(encode_frames(taken, frame_size_max, codec))
        part = replace(
            append,
            record_count=len(rows),
            size=sum(frame.size for frame in frames),
            rows=None,
            frames=frames,
            ids=None,
        )
        parts[index] = Divided(part, rows)
    return parts


def partitions_of(batch: pa.RecordBatch, routes: Routes, pointer: str) -> NDArray[np.int64]:
    """The partition of each record.

    Raises:
        InvalidRequest: 422.
    """
    keys = batch.column(_KEY) if _KEY in batch.schema.names else None
    if keys is None or keys.null_count:
        missing = range(batch.num_rows) if keys is None else np.flatnonzero(keys.is_null())
        sentence = "a record of a super stream must have a key"
        raise invalid(_faults(Code.VALIDATION_FAILED, sentence, missing, f"{pointer}/%d/key"))
    found = _keys_of(keys)
    if routes.binding_keys is None:
        return partitions_by_hash(found, routes.partition_count)
    places = partitions_by_key(found, routes.binding_keys)
    require_routes(places, pointer)
    return places


@guard("the route of every record before any is written")
def require_routes(places: NDArray[np.int64], pointer: str) -> None:
    """Refuse a request of which a record has no partition.

    Raises:
        InvalidRequest: `no-route`.
    """
    lost = np.flatnonzero(places == NO_ROUTE)
    if len(lost):
        sentence = "no partition of the super stream has this key as its binding key"
        faults = _faults(Code.NO_ROUTE, sentence, lost, f"{pointer}/%d/key")
        raise InvalidRequest(
            f"a record has no route at {faults[0].pointer}: {sentence}",
            code=Code.NO_ROUTE,
            faults=faults,
        )


def _faults(
    code: Code, sentence: str, rows: "Sequence[int] | NDArray[np.int64]", pointer: str
) -> list[Fault]:
    return [Fault(code, sentence, pointer % int(row)) for row in rows[:FAULT_COUNT_MAX]]


def _one_batch(append: Append) -> tuple[pa.RecordBatch, Codec]:
    """All records of a request as one batch, and the codec of their frames."""
    if append.rows is not None:
        return build_batch([append.rows]), Codec.NONE
    batches, codec = list[pa.RecordBatch](), Codec.NONE
    for frame in append.frames:
        for header, stored in split_frames(memoryview(frame.data)):
            batches.append(decode_message(header, stored))
            codec = header.codec
    if len(batches) == 1:
        return batches[0], codec
    names = {name for batch in batches for name in batch.schema.names}
    columns = Columns(0)
    for column, field in FIELDS.items():
        if field.name in names:
            columns |= column
    schema = schema_of(columns)
    table = pa.Table.from_batches([_with_columns(batch, schema) for batch in batches], schema)
    [batch] = table.combine_chunks().to_batches()
    return batch, codec


def _with_columns(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch that says of each column what the lack of it means."""
    if batch.schema.equals(schema):
        return batch
    arrays = [
        batch.column(field.name) if field.name in batch.schema.names else _lack(batch, field)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _lack(batch: pa.RecordBatch, field: Any) -> Any:
    if field.nullable:
        return pa.nulls(batch.num_rows, field.type)
    return pa.array(np.zeros(batch.num_rows, np.uint8))


def _positions(rows: NDArray[np.int64]) -> Any:
    return pa.array(rows)


def _keys_of(column: Any) -> Keys:
    """The keys of a column as they lie in its buffers."""
    _, positions, data = column.buffers()
    begin = column.offset
    ends = np.frombuffer(positions, np.int32)[begin : begin + len(column) + 1]
    held = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return Keys(held, ends.astype(np.int64))
