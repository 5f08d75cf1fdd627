"""Arrow: an IPC stream or file whose rows are records, as `read -o arrow` writes it."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from bottomless.cli.inputs.parts import COLUMNS_READ_ONLY, Part, Taking
from bottomless.errors import Code, InvalidRequest

if TYPE_CHECKING:
    from io import BufferedReader, IOBase

    import pyarrow as pa

_FILE_BEGIN: Final = b"ARROW1\0\0"
"""After it a file goes on as a stream, and is read as one: also from a pipe."""


def parts(source: BinaryIO, taking: Taking) -> Iterator[Part]:
    """Read the parts of an Arrow IPC stream or file.

    Raises:
        InvalidRequest: the input is something else; the parts before it were given.
    """
    return parts_of_batches(_batches(source), taking)


def parts_of_batches(batches: Iterable["pa.RecordBatch"], taking: Taking) -> Iterator[Part]:
    """Make parts of batches that have the columns of records, without the rows to skip."""
    from bottomless.client.encoding import ARROW  # noqa: PLC0415
    from bottomless.client.tables import arrow_body  # noqa: PLC0415
    from bottomless.formats.rows import slices_of  # noqa: PLC0415

    record_count, size = taking.limits
    skipped = taking.skipped
    for batch in batches:
        kept = [name for name in batch.schema.names if name not in COLUMNS_READ_ONLY]
        rows = batch.select(kept).slice(min(skipped, batch.num_rows))
        skipped -= batch.num_rows - rows.num_rows
        for piece in slices_of(rows, record_count=record_count, size=size):
            yield Part(arrow_body(piece), ARROW, piece.num_rows, piece.nbytes)


def _batches(source: BinaryIO) -> Iterator["pa.RecordBatch"]:
    import pyarrow as pa  # noqa: PLC0415

    if cast("BufferedReader", source).peek(1)[: len(_FILE_BEGIN)] == _FILE_BEGIN:
        source.read(len(_FILE_BEGIN))
    try:
        with pa.ipc.open_stream(cast("IOBase", source)) as reader:
            yield from reader
    except (pa.ArrowException, OSError) as error:
        raise InvalidRequest(
            "the input is not an Arrow IPC stream, nor a file of one",
            code=Code.VALIDATION_FAILED,
        ) from error
