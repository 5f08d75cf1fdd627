"""Produce: append what stdin or a file holds."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from enum import StrEnum
from pathlib import Path
from stat import S_ISREG
from typing import Annotated, BinaryIO, Final, NamedTuple

import typer

from bottomless.cli import batches
from bottomless.cli.output import Form, Output, line, show
from bottomless.cli.sending import Sender
from bottomless.cli.session import open_client
from bottomless.cli.streams import Stream
from bottomless.errors import Code, InvalidRequest, StoreError
from bottomless.model.limits import JSON_RECORD_COUNT_MAX, MIB, RECORD_VALUE_SIZE_MAX

_BATCH_SIZE_MAX: Final = 4 * MIB
"""Of what is asked for; a record that is larger by itself still goes, alone."""


class Format(StrEnum):
    """What the input is made of."""

    LINES = "lines"
    NDJSON = "ndjson"
    RECORDS = "records"
    RAW = "raw"
    ARROW = "arrow"


class _Part(NamedTuple):
    body: bytes
    media_type: str
    record_count: int
    input_size: int


def add_to(app: typer.Typer) -> None:
    app.command("produce")(_produce)


def _produce(
    context: typer.Context,
    stream: Stream,
    file: Annotated[
        Path | None,
        typer.Argument(exists=True, dir_okay=False, readable=True, help="Default: stdin."),
    ] = None,
    input_format: Annotated[
        Format,
        typer.Option(
            "--format",
            "-f",
            help=(
                "A record a line (lines); a JSON value a line (ndjson); what `read -o ndjson` "
                "writes (records); all of it as one record (raw); an Arrow IPC stream (arrow)."
            ),
        ),
    ] = Format.LINES,
    key_field: Annotated[
        str | None, typer.Option(help="With ndjson: the member that is the key.")
    ] = None,
    producer: Annotated[
        str | None,
        typer.Option(help="Number the records as this producer: repeats are not stored twice."),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="With --producer, and all of its input again: skip what is stored already.",
        ),
    ] = False,
    batch_count: Annotated[
        int, typer.Option(min=1, max=JSON_RECORD_COUNT_MAX, help="Records of a request at most.")
    ] = 5000,
    batch_bytes: Annotated[
        int, typer.Option(min=1024, max=_BATCH_SIZE_MAX, help="Bytes of a request, about.")
    ] = MIB,
    output: Output = Form.TABLE,
) -> None:
    """Append records from a file or from stdin.

    What is piped in slowly is sent as it comes. With --producer and --resume the same command
    on the same file goes on where it was interrupted.
    """
    if key_field is not None and input_format is not Format.NDJSON:
        raise typer.BadParameter("only ndjson has members", param_hint="--key-field")
    if resume and producer is None:
        raise typer.BadParameter("needs --producer", param_hint="--resume")
    with open_client(context) as client, _input(file) as source:
        sender = Sender(client, stream, producer=producer)
        sender.begin()
        skipped = sender.sequence if resume else 0
        limits = batches.Limits(batch_count, batch_bytes)
        parts = _parts(source, input_format, key_field, limits, skipped)
        try:
            with _progress(source) as advance:
                for part in parts:
                    sender.send(part.body, part.media_type, part.record_count)
                    advance(part.input_size)
        except StoreError as error:
            error.facts["stored_before"] = sender.count
            raise
    stored = {
        "stored": sender.count,
        "skipped": skipped,
        "first_offset": sender.first_offset,
        "next_offset": sender.next_offset,
    }
    if output is Form.JSON:
        show(stored, output)
        return
    before = f"; {skipped} were stored before" if skipped else ""
    where = f", the next offset is {sender.next_offset}" if sender.count else ""
    records = "1 record" if sender.count == 1 else f"{sender.count} records"
    line(f"stored {records}{where}{before}")


def _parts(
    source: BinaryIO, form: Format, key_field: str | None, limits: batches.Limits, skipped: int
) -> Iterator[_Part]:
    from bottomless.client.wire import ARROW, JSON, OCTETS  # noqa: PLC0415

    if form is Format.RAW:
        value = source.read(RECORD_VALUE_SIZE_MAX + 1)
        if len(value) > RECORD_VALUE_SIZE_MAX:
            raise InvalidRequest(
                "the input is too long for one record",
                code=Code.RECORD_TOO_LARGE,
                facts={"max_bytes": RECORD_VALUE_SIZE_MAX},
            )
        if not skipped:
            yield _Part(value, OCTETS, 1, len(value))
    elif form is Format.ARROW:
        for rows in batches.tables_of(source, limits, skipped):
            yield _Part(batches.arrow_body(rows), ARROW, rows.num_rows, rows.nbytes)
    else:
        encode = {
            Format.LINES: batches.encode_line,
            Format.NDJSON: batches.json_encoder(key_field),
            Format.RECORDS: batches.encode_record,
        }[form]
        for batch in batches.batches_of(batches.lines_of(source), encode, limits, skipped):
            yield _Part(batch.body(), JSON, len(batch.records), batch.input_size)


@contextmanager
def _input(file: Path | None) -> Iterator[BinaryIO]:
    with nullcontext(sys.stdin.buffer) if file is None else file.open("rb") as source:
        yield source


@contextmanager
def _progress(source: BinaryIO) -> Iterator[Callable[[int], None]]:
    """A bar on stderr where somebody looks at it; takes bytes as they are done."""
    if not sys.stderr.isatty() or source.isatty():
        yield lambda _size: None
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        DownloadColumn,
        Progress,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    about = os.fstat(source.fileno())
    total = about.st_size if S_ISREG(about.st_mode) else None
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("produce", total=total)
        yield lambda size: bar.advance(task, size)
