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
from bottomless.cli.examples import examples
from bottomless.cli.output import Form, Output, line, show
from bottomless.cli.sending import Sender
from bottomless.cli.session import open_client
from bottomless.cli.stream_names import Stream, checked_reference
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


class _Input(NamedTuple):
    """How records are made of what is read."""

    form: Format
    key_field: str | None
    limits: batches.Limits


class _Part(NamedTuple):
    body: bytes
    media_type: str
    record_count: int
    input_size: int


_File = Annotated[
    Path | None,
    typer.Argument(exists=True, dir_okay=False, readable=True, help="Default: stdin."),
]
_Format = Annotated[
    Format,
    typer.Option(
        "--format",
        "-f",
        help=(
            "A record a line (lines); a JSON value a line (ndjson); what `read -o ndjson` "
            "writes (records); all of it as one record (raw); an Arrow IPC stream (arrow)."
        ),
    ),
]
_KeyField = Annotated[str | None, typer.Option(help="With ndjson: the member that is the key.")]
_Producer = Annotated[
    str | None,
    typer.Option(
        help="Number the records as this producer: repeats are not stored twice.",
        callback=checked_reference,
    ),
]
_Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="With --producer, and all of its input again: skip what is stored already.",
    ),
]
_BatchCount = Annotated[
    int, typer.Option(min=1, max=JSON_RECORD_COUNT_MAX, help="Records of a request at most.")
]
_BatchBytes = Annotated[
    int, typer.Option(min=1024, max=_BATCH_SIZE_MAX, help="Bytes of a request, about.")
]


def add_to(app: typer.Typer) -> None:
    app.command(
        "produce",
        epilog=examples(
            "produce orders access.log",
            "produce orders orders.ndjson --format ndjson --key-field id",
            "produce orders orders.ndjson --format ndjson --producer loader-7 --resume",
        ),
    )(_produce)


def _produce(
    context: typer.Context,
    stream: Stream,
    file: _File = None,
    input_format: _Format = Format.LINES,
    key_field: _KeyField = None,
    producer: _Producer = None,
    resume: _Resume = False,
    batch_count: _BatchCount = 5000,
    batch_bytes: _BatchBytes = MIB,
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
    what = _Input(input_format, key_field, batches.Limits(batch_count, batch_bytes))
    with open_client(context) as client, _opened(file) as source:
        sender = Sender(client, stream, producer=producer)
        sender.begin()
        skipped = sender.sequence if resume else 0
        _send(sender, source, what, skipped)
    _tell_stored(sender, skipped, output, stream)


def _send(sender: Sender, source: BinaryIO, what: _Input, skipped: int) -> None:
    try:
        with _progress(source) as advance:
            for part in _parts(source, what, skipped):
                sender.send(part.body, part.media_type, part.record_count)
                advance(part.input_size)
    except StoreError as error:
        if sender.count:
            error.facts["stored_before"] = sender.count
        raise


def _tell_stored(sender: Sender, skipped: int, output: Form, stream: str) -> None:
    if output is not Form.TABLE:
        stored = {
            "stored": sender.count,
            "skipped": skipped,
            "first_offset": sender.first_offset,
            "next_offset": sender.next_offset,
        }
        show(stored, output, name=stream)
        return
    before = f"; {skipped} were stored before" if skipped else ""
    where = f", the next offset is {sender.next_offset}" if sender.count else ""
    records = "1 record" if sender.count == 1 else f"{sender.count} records"
    line(f"stored {records}{where}{before}")


def _parts(source: BinaryIO, what: _Input, skipped: int) -> Iterator[_Part]:
    from bottomless.client.encoding import ARROW, JSON, OCTETS  # noqa: PLC0415

    if what.form is Format.RAW:
        value = source.read(RECORD_VALUE_SIZE_MAX + 1)
        if len(value) > RECORD_VALUE_SIZE_MAX:
            raise InvalidRequest(
                "the input is too long for one record",
                code=Code.RECORD_TOO_LARGE,
                facts={"max_bytes": RECORD_VALUE_SIZE_MAX},
            )
        if not skipped:
            yield _Part(value, OCTETS, 1, len(value))
    elif what.form is Format.ARROW:
        from bottomless.client.tables import arrow_body  # noqa: PLC0415

        for rows in batches.tables_of(source, what.limits, skipped):
            yield _Part(arrow_body(rows), ARROW, rows.num_rows, rows.nbytes)
    else:
        encode = {
            Format.LINES: batches.encode_line,
            Format.NDJSON: batches.json_encoder(what.key_field),
            Format.RECORDS: batches.encode_record,
        }[what.form]
        for batch in batches.batches_of(batches.lines_of(source), encode, what.limits, skipped):
            yield _Part(batch.body(), JSON, len(batch.records), batch.input_size)


@contextmanager
def _opened(file: Path | None) -> Iterator[BinaryIO]:
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
