"""Parquet: each row is a record, a JSON object with a member for each column.

A file that has the columns of records, as `read -o parquet` writes it, is read as those.
Rows are taken in small batches, so that no row group is held as Python objects at once.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from bottomless.cli.inputs.arrow import parts_of_batches
from bottomless.cli.inputs.parts import COLUMNS_READ_ONLY, Part, Taking
from bottomless.cli.inputs.rows import parts_of_rows
from bottomless.errors import Code, InvalidRequest

if TYPE_CHECKING:
    import pyarrow as pa

_ROW_COUNT: Final = 1024


def parts(source: BinaryIO, taking: Taking) -> Iterator[Part]:
    """Read the parts of a Parquet file.

    Raises:
        InvalidRequest: the file is something else, or brings its own keys and is given some.
    """
    from bottomless.formats.batch import FIELDS  # noqa: PLC0415

    batches = _batches(source)
    columns, first = next(batches)
    known = COLUMNS_READ_ONLY | {field.name for field in FIELDS.values()}
    if "value" in columns and known.issuperset(columns) and taking.key_field is None:
        if taking.shared:
            raise InvalidRequest(
                "the file has the columns of records, which bring their own keys and headers",
                code=Code.VALIDATION_FAILED,
            )
        return parts_of_batches(_rest(first, batches), taking)
    return parts_of_rows(_rows(_rest(first, batches)), taking)


def _rest(
    first: "pa.RecordBatch | None", batches: Iterator[tuple[set[str], "pa.RecordBatch | None"]]
) -> Iterator["pa.RecordBatch"]:
    if first is not None:
        yield first
    for _, batch in batches:
        if batch is not None:
            yield batch


def _batches(source: BinaryIO) -> Iterator[tuple[set[str], "pa.RecordBatch | None"]]:
    """The names of the columns with each batch; the first time without one."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    if not source.seekable():
        raise InvalidRequest(
            "Parquet is read from a file, neither from a pipe nor from a compressed one",
            code=Code.VALIDATION_FAILED,
        )
    try:
        with pq.ParquetFile(source) as file:
            columns = set(file.schema_arrow.names)
            yield columns, None
            for batch in file.iter_batches(batch_size=_ROW_COUNT):
                yield columns, batch
    except (pa.ArrowException, OSError) as error:
        raise InvalidRequest(
            "the input is not Parquet, or is damaged", code=Code.VALIDATION_FAILED
        ) from error


def _rows(batches: Iterator["pa.RecordBatch"]) -> Iterator[dict[str, Any]]:
    for number, batch in enumerate(batches):
        if len(set(batch.schema.names)) != len(batch.schema.names):
            raise InvalidRequest("two columns have one name", code=Code.VALIDATION_FAILED)
        try:
            yield from batch.to_pylist()
        except (ValueError, OverflowError) as error:
            # Nanoseconds, and times that Python has no value for.
            raise InvalidRequest(
                "a row holds a time that JSON cannot say exactly: cast it to microseconds",
                code=Code.VALIDATION_FAILED,
                facts={"line": number * _ROW_COUNT + 1},
            ) from error
