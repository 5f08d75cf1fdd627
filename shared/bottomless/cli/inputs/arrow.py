"""Arrow: an IPC stream whose rows are records, as `read -o arrow` writes it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO, cast

from bottomless.cli.inputs.parts import COLUMNS_READ_ONLY, Part, Taking
from bottomless.errors import Code, InvalidRequest

if TYPE_CHECKING:
    from io import IOBase

    import pyarrow as pa


def parts(source: BinaryIO, taking: Taking) -> Iterator[Part]:
    from bottomless.client.encoding import ARROW  # noqa: PLC0415
    from bottomless.client.tables import arrow_body  # noqa: PLC0415

    for rows in _tables(source, taking):
        yield Part(arrow_body(rows), ARROW, rows.num_rows, rows.nbytes)


def _tables(source: BinaryIO, taking: Taking) -> Iterator["pa.RecordBatch"]:
    """The record batches after the first rows, cut to requests."""
    import pyarrow as pa  # noqa: PLC0415

    from bottomless.formats.rows import slices_of  # noqa: PLC0415

    record_count, size = taking.limits
    skipped = taking.skipped
    try:
        with pa.ipc.open_stream(cast("IOBase", source)) as reader:
            kept = [name for name in reader.schema.names if name not in COLUMNS_READ_ONLY]
            for batch in reader:
                rows = batch.select(kept).slice(min(skipped, batch.num_rows))
                skipped -= batch.num_rows - rows.num_rows
                yield from slices_of(rows, record_count=record_count, size=size)
    except pa.ArrowInvalid as error:
        raise InvalidRequest(
            "the input is not an Arrow IPC stream", code=Code.VALIDATION_FAILED
        ) from error
