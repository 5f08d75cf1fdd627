"""Read: what a stream holds from one place to another, as it was when the command began."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final, NamedTuple, cast

import typer

from bottomless.cli.examples import examples
from bottomless.cli.failures import tell
from bottomless.cli.output import line
from bottomless.cli.outputs import RecordForm, Writer, writer_of
from bottomless.cli.outputs.csv import CsvWriter
from bottomless.cli.outputs.template import ESCAPES, LETTERS, TemplateWriter, parse_template
from bottomless.cli.places import CHOICES, checked_place
from bottomless.cli.progress import progress
from bottomless.cli.session import open_client
from bottomless.cli.stream_names import Stream
from bottomless.cli.super_names import is_super_stream
from bottomless.cli.super_read import SuperRead, read_super_stream
from bottomless.cli.wanted import FilterValues, Keys, MatchUnfiltered, RawKeys, wanted_of
from bottomless.cli.whole_file import whole_file
from bottomless.errors import Code, NotFound, Unavailable
from bottomless.model.limits import MIB, PAGE_RECORD_COUNT_MAX, PAGE_SIZE_MAX

if TYPE_CHECKING:
    from io import IOBase

    import pyarrow as pa

    from bottomless.client import ArrowPage, Client
    from bottomless.client.parameters import Parameter

_PAGE_SIZE: Final = 4 * MIB
"""Bytes of values in a page: enough for speed, and little beside what Python needs anyway."""

_WITHOUT_OWNER: Final = frozenset({Code.NOT_OWNER, Code.PEER_UNAVAILABLE})

Details = Annotated[
    bool,
    typer.Option("--details", "-d", help="As text: write offset, time and key before the value."),
]


class Span(NamedTuple):
    """What is to be read, in offsets that do not move any more."""

    stream_id: str
    start_offset: int
    end_offset: int | None
    """The offset after the last one to read (exclusive end); None while nobody says where the stream ends."""
    limit: int | None
    """Records that are read at most; None for all."""
    wanted: "Mapping[str, Parameter]" = MappingProxyType({})
    """Parameters of a read that say which records are asked for; none where all are."""


def add_to(app: typer.Typer) -> None:
    """Add `read` to the command line."""
    app.command(
        "read",
        epilog=examples(
            "read orders --limit 2",
            "read orders --filter emea --filter apac",
            "read orders --from timestamp:2026-08-22T09:20:00Z --details",
            "read orders -o parquet --to orders.parquet",
            r"read orders -f '%o %k %s\n'",
        ),
    )(_read)


def _read(
    context: typer.Context,
    stream: Stream,
    start: Annotated[
        str,
        typer.Option("--from", callback=checked_place, help=f"{CHOICES}."),
    ] = "first",
    until: Annotated[
        str | None,
        typer.Option(callback=checked_place, help="Stop before this place; same forms as --from."),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Records.")] = None,
    consumer: Annotated[
        str | None, typer.Option(help="With --from stored: the consumer whose offset it is.")
    ] = None,
    filter_values: FilterValues = None,
    match_unfiltered: MatchUnfiltered = False,
    keys: Keys = None,
    raw_keys: RawKeys = None,
    details: Details = False,
    output: Annotated[
        RecordForm, typer.Option("--output", "-o", help="How to write records.")
    ] = RecordForm.TEXT,
    template: Annotated[
        str | None,
        typer.Option("--template", "-f", help=f"A record as this says: {LETTERS}; {ESCAPES}."),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(help="With arrow and parquet: only these columns, with commas."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--to", dir_okay=False, help="With csv and parquet: the file to write."),
    ] = None,
) -> None:
    """Write records to stdout, up to the end that the stream had when the command began.

    Those of a super stream come in the order of their timestamps.

    With --to they go into a file, which has its name when all of them are in it.
    """
    _check_together(output, template, file, columns, details=details)
    _check_order(start, until)
    wanted = wanted_of(filter_values, keys, raw_keys, match_unfiltered=match_unfiltered)
    parts = None if template is None else parse_template(template, stream)

    def plain() -> Writer:
        written = writer_of(output, details=details)
        return written if parts is None else TemplateWriter(parts)

    try:
        with open_client(context) as client:
            span = span_of(client, stream, start, until=until, limit=limit, consumer=consumer)
            span = span._replace(wanted=wanted)
    except NotFound as error:
        asked = SuperRead(stream, start, until, limit, consumer, wanted)
        if error.code is not Code.STREAM_NOT_FOUND or not _read_super(
            context, asked, output, plain, file
        ):
            raise
        return
    with open_client(context, patient=True) as client:
        if file is not None:
            _read_into(client, stream, span, output, file, columns)
        elif output is RecordForm.ARROW:
            _read_arrow(client, stream, span, columns)
        else:
            read_span(client, stream, span, plain())


def _read_super(
    context: typer.Context,
    asked: SuperRead,
    output: RecordForm,
    plain: Callable[[], Writer],
    file: Path | None,
) -> bool:
    """Do the same for a super stream; false if none has the name."""
    with open_client(context, patient=True) as client:
        if not is_super_stream(client, asked.stream):
            return False
        asked.require(output)
        if file is None:
            read_super_stream(client, asked, plain())
        else:
            _into(file, lambda opened: read_super_stream(client, asked, CsvWriter(opened.write)))
    return True


def _check_together(
    output: RecordForm,
    template: str | None,
    file: Path | None,
    columns: str | None,
    *,
    details: bool,
) -> None:
    """Refuse options that say two things at once, before anything is asked."""
    if output is RecordForm.ARROW and sys.stdout.isatty():
        raise typer.BadParameter("arrow is for a file or a pipe", param_hint="--output")
    if output is RecordForm.PARQUET and file is None:
        raise typer.BadParameter("needs --to, the file to write", param_hint="--output")
    if file is not None and output not in (RecordForm.CSV, RecordForm.PARQUET):
        raise typer.BadParameter("goes with -o csv and -o parquet", param_hint="--to")
    if columns is not None and output not in (RecordForm.ARROW, RecordForm.PARQUET):
        raise typer.BadParameter("goes with -o arrow and -o parquet", param_hint="--columns")
    if template is not None and (output is not RecordForm.TEXT or details):
        raise typer.BadParameter("goes without -o and --details", param_hint="--template")


def _check_order(start: str, until: str | None) -> None:
    """Refuse a range that is the wrong way round, where two numbers say so by themselves."""
    if until is not None and until.isdigit() and start.isdigit() and int(until) < int(start):
        raise typer.BadParameter("it lies before --from", param_hint="--until")


def _read_into(
    client: "Client",
    stream: str,
    span: Span,
    form: RecordForm,
    path: Path,
    columns: str | None,
) -> None:
    def write(file: BinaryIO) -> int:
        if form is RecordForm.CSV:
            return read_span(client, stream, span, CsvWriter(file.write))
        return _read_parquet(client, stream, span, file, columns)

    _into(path, write)


def _into(path: Path, write: Callable[[BinaryIO], int]) -> None:
    """Write a file whole, and say how many records it has."""
    try:
        with whole_file(path) as file:
            count = write(file)
    except OSError as error:
        if error.filename is None and error.errno is None:
            raise
        raise typer.BadParameter(
            f"the file cannot be written: {error.strerror}", param_hint="--to"
        ) from error
    line(f"wrote {count} {'record' if count == 1 else 'records'}")


def span_of(
    client: "Client",
    stream: str,
    start: str,
    *,
    until: str | None = None,
    limit: int | None = None,
    consumer: str | None = None,
) -> Span:
    """Find where a read starts and ends; tells the user if it starts elsewhere than asked."""
    asked = {} if consumer is None else {"consumer": consumer}
    found = client.resolve(stream, start, **asked)
    # Words have a place by themselves; only of a number something is missing.
    if found["clamped"] and start.isdigit():
        tell(f"offset {start} is not there; this starts at {found['offset']}")
    end = _end_now(client, stream)
    if until is not None:
        stop = _end_of(client, stream, until, asked)
        if stop < found["offset"]:
            tell(f"nothing is read: --from leads to {found['offset']} and --until to {stop}")
        end = stop if end is None else min(end, stop)
    return Span(found["stream_id"], found["offset"], end, limit)


def _end_now(client: "Client", stream: str) -> int | None:
    """The end of a stream; None where its place was found and no node says where it ends.

    What is in object storage can be read then, and the page after it is an error.
    """
    try:
        end: int = client.bounds(stream)["next_offset"]
    except Unavailable as error:
        if error.code not in _WITHOUT_OWNER:
            raise
        tell("no node says now where the stream ends; this reads what is in object storage first")
        return None
    return end


def _end_of(client: "Client", stream: str, until: str, asked: Mapping[str, str]) -> int:
    # A number is what it is; the server would move one that retention has passed.
    if until.isdigit():
        return int(until)
    end: int = client.resolve(stream, until, **asked)["offset"]
    return end


def read_span(client: "Client", stream: str, span: Span, writer: Writer) -> int:
    """Write the records of a span, page by page; returns how many there were."""
    offset, left, count = span.start_offset, span.limit, 0
    with _progress(span) as advance:
        while (span.end_offset is None or offset < span.end_offset) and left != 0:
            page = client.read(
                stream,
                offset,
                limit=PAGE_RECORD_COUNT_MAX if left is None else min(left, PAGE_RECORD_COUNT_MAX),
                max_bytes=_PAGE_SIZE,
                value_encoding=writer.value_encoding,
                **_exactly(span),
            )
            tell_gaps(page.gaps)
            writer.write(page.records)
            count += len(page.records)
            if page.next_offset <= offset:
                break
            if span.end_offset is None and page.up_to_date:
                # A node owns it again, and this is its end.
                span = span._replace(end_offset=page.next_offset)
            advance(page.next_offset - offset)
            offset = page.next_offset
            left = None if left is None else left - len(page.records)
    writer.close()
    return count


def _progress(span: Span) -> AbstractContextManager[Callable[[int], None]]:
    """A bar where the records go into a file or a pipe, which nobody sees."""
    if sys.stdout.isatty():
        return nullcontext(lambda _done: None)
    counts = [] if span.limit is None else [span.limit]
    if span.end_offset is not None:
        counts.append(max(span.end_offset - span.start_offset, 0))
    return progress("read", min(counts, default=None), bytes_=False)


def _read_arrow(client: "Client", stream: str, span: Span, columns: str | None) -> None:
    import pyarrow as pa  # noqa: PLC0415

    tables = _tables(client, stream, span, columns)
    first = next(tables)
    with pa.ipc.new_stream(cast("IOBase", sys.stdout.buffer), first.schema) as sink:
        sink.write_table(first)
        for rows in tables:
            sink.write_table(rows)


def _read_parquet(
    client: "Client", stream: str, span: Span, file: BinaryIO, columns: str | None
) -> int:
    """Write each page as a row group, so that no more than one is held."""
    import pyarrow.parquet as pq  # noqa: PLC0415

    tables = _tables(client, stream, span, columns)
    first = next(tables)
    count = first.num_rows
    with pq.ParquetWriter(file, first.schema, compression="zstd") as sink:
        sink.write_table(first)
        for rows in tables:
            sink.write_table(rows)
            count += rows.num_rows
    return count


def _tables(client: "Client", stream: str, span: Span, columns: str | None) -> Iterator["pa.Table"]:
    """The records of a span, page by page: at least one, which may have no rows."""

    def page_from(offset: int) -> "ArrowPage":
        return client.read_arrow(
            stream, offset, columns=columns, max_bytes=_PAGE_SIZE, **_exactly(span)
        )

    offset, left = span.start_offset, span.limit
    # An empty span is asked for too: its page is empty, and has the schema.
    page = page_from(offset)
    with _progress(span) as advance:
        while True:
            rows = page.table if left is None else page.table.slice(0, left)
            yield rows
            advance(page.next_offset - offset if left is None else rows.num_rows)
            left = None if left is None else left - rows.num_rows
            if page.next_offset <= offset or left == 0:
                return
            if page.up_to_date if span.end_offset is None else page.next_offset >= span.end_offset:
                return
            offset = page.next_offset
            page = page_from(offset)


def tell_gaps(gaps: Any, partition: int | None = None) -> None:
    """Tell the user on stderr which offsets were given up for good, of a partition where it is one."""
    where = "" if partition is None else f" of partition {partition}"
    for gap in gaps:
        tell(
            f"offsets {gap['first_offset']} to {gap['next_offset'] - 1}{where} were given up for good; "
            "reading goes on after them"
        )


def _exactly(span: Span) -> "Mapping[str, Parameter]":
    """Parameters that make a page an error rather than one of something else."""
    end: Mapping[str, Parameter] = (
        {} if span.end_offset is None else {"until_offset": span.end_offset}
    )
    return {
        **span.wanted,
        **end,
        "expect_stream_id": span.stream_id,
        "on_out_of_range": "error",
    }


assert _PAGE_SIZE <= PAGE_SIZE_MAX
