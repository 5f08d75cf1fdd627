"""Write a share of a stream as one Parquet file, in a worker; its records do not enter the JVM."""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.fs as arrow_fs
import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from bottomless.errors import InvalidRequest
from bottomless.model.limits import MIB
from bottomless.model.names import StreamId
from bottomless.spark.jobs import places
from bottomless.spark.jobs.places import Place
from bottomless.spark.jobs.tasks import answer_schema
from bottomless.spark.options import Options
from bottomless.spark.partitions import SharePartition, read_partition

GROUP_SIZE: Final = 64 * MIB
"""Bytes of a row group before it is compressed; a task holds one."""
GROUP_ROW_COUNT: Final = 1_000_000
COMPRESSIONS: Final = ("snappy", "zstd", "lz4", "gzip", "none")
MARK: Final = b"bottomless"
"""The key in a file's metadata under which its offsets are noted."""
_DICTIONARY: Final = ("filter_value",)
"""Columns of few values; trying the others costs more than it brings."""

WRITTEN: Final = answer_schema(
    {
        "name": pa.string(),
        "first_offset": pa.int64(),
        "next_offset": pa.int64(),
        "rows": pa.int64(),
        "size": pa.int64(),
    }
)


class Written(NamedTuple):
    """A file that was written whole. `size` is in bytes; `next_offset` is exclusive."""

    name: str
    first_offset: int
    next_offset: int
    rows: int
    """Rows in the file."""
    size: int


class FilePiece(NamedTuple):
    """What one task writes: the offsets of one file, as shares to read."""

    name: str
    first_offset: int
    next_offset: int
    partitions: tuple[SharePartition, ...]


class FileShape(NamedTuple):
    """What all files of an output have in common."""

    place: Place
    stream_id: StreamId
    schema: StructType
    stored: pa.Schema
    """The types in the file, where the output's format knows fewer than Arrow."""
    compression: str


def check_compression(name: str) -> None:
    """Refuse a compression that Parquet files cannot have.

    Raises:
        InvalidRequest: it is none of the names.
    """
    if name not in COMPRESSIONS:
        raise InvalidRequest(f"the compression of an export is one of {', '.join(COMPRESSIONS)}")


def write_file(options: Options, shape: FileShape, piece: FilePiece) -> Iterator[pa.RecordBatch]:
    """Write one file; the answer says what is in it.

    `whole_file` (places.py) says what is there after a crash; a file that has its name has all of
    its rows.
    """
    yield pa.RecordBatch.from_pylist([_write(options, shape, piece)._asdict()], schema=WRITTEN)


def find_file(shape: FileShape, piece: FilePiece) -> Written | None:
    """Find the file if an earlier run wrote it; its end is written last, so it is whole."""
    files, path = (shape.place / piece.name).open()
    info = files.get_file_info(path)
    if info.type is not arrow_fs.FileType.File:
        return None
    with suppress(pa.ArrowInvalid), files.open_input_file(path) as opened:
        meta = pq.read_metadata(opened)
        mark = json.loads((meta.metadata or {}).get(MARK, b"null"))
        if mark == _mark(shape, piece):
            return _written(piece, meta.num_rows, info.size)
    return None


def _mark(shape: FileShape, piece: FilePiece) -> dict[str, Any]:
    return {
        "stream_id": shape.stream_id,
        "first_offset": piece.first_offset,
        "next_offset": piece.next_offset,
    }


def _write(options: Options, shape: FileShape, piece: FilePiece) -> Written:
    schema = shape.stored.with_metadata({MARK: json.dumps(_mark(shape, piece)).encode()})
    row_count = 0
    writing: Any = pq.ParquetWriter
    with places.whole_file(shape.place / piece.name) as file:
        with writing(
            file,
            schema,
            compression=shape.compression,
            use_dictionary=[name for name in _DICTIONARY if name in schema.names],
        ) as writer:
            for group in _groups(_rows(options, shape.schema, piece.partitions)):
                writer.write_table(group.cast(schema), row_group_size=GROUP_ROW_COUNT)
                row_count += group.num_rows
        size = file.tell()
    return _written(piece, row_count, size)


def _written(piece: FilePiece, row_count: int, size: int) -> Written:
    return Written(piece.name, piece.first_offset, piece.next_offset, row_count, size)


def _rows(
    options: Options, schema: StructType, partitions: Sequence[SharePartition]
) -> Iterator[pa.RecordBatch]:
    for partition in partitions:
        yield from read_partition(options, schema, partition)


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Put rows together to row groups."""
    held: list[pa.RecordBatch] = []
    size = row_count = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        row_count += batch.num_rows
        if size >= GROUP_SIZE or row_count >= GROUP_ROW_COUNT:
            yield pa.Table.from_batches(held)
            held, size, row_count = [], 0, 0
    if held:
        yield pa.Table.from_batches(held)


def written_of(rows: Iterable[dict[str, Any]]) -> list[Written]:
    """Turn the rows that the tasks answered into files."""
    return [Written(**row) for row in rows]
