"""Import: bring streams along that another system has stored.

What a crash leaves: each append is stored whole or not at all, under the number of its last message,
and the next one begins only when it is stored. So the stream knows how far an import has come, and the
same command goes on after it; a request whose answer was lost is known again by its number. An older
run that is still under way is fenced before the number is asked for.
"""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from bottomless.cli.examples import examples
from bottomless.cli.failures import tell
from bottomless.cli.interrupts import Interrupted, interrupts
from bottomless.cli.outages import RETRY_SECONDS, LongWait, told_by_an_owner
from bottomless.cli.output import Form, Output, line, show
from bottomless.cli.progress import progress
from bottomless.cli.session import open_client
from bottomless.cli.stream_names import checked_stream, complete_stream
from bottomless.errors import StoreError
from bottomless.model.limits import MIB

if TYPE_CHECKING:
    from bottomless.cli.rabbitmq_files import Segments
    from bottomless.cli.rabbitmq_parts import Cutter, ImportPart
    from bottomless.client import Client
    from bottomless.formats.amqp_record import Taking

_PART_SIZE: Final = 4 * MIB
_HASH_DIGITS: Final = 16

_Directory = Annotated[
    Path,
    typer.Argument(
        exists=True,
        file_okay=False,
        help="The directory of the stream on a RabbitMQ node, or a copy of it under its own name.",
    ),
]
_Into = Annotated[
    str | None,
    typer.Option(
        "--stream",
        help="The stream to append to; not needed with --dry-run.",
        callback=checked_stream,
        autocompletion=complete_stream,
    ),
]
_DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Read and check everything; say what is there.")
]
_KeepOffsets = Annotated[
    bool,
    typer.Option("--keep-offsets", help="RabbitMQ's offset becomes the header rabbitmq.offset."),
]
_KeyFrom = Annotated[
    str | None,
    typer.Option(
        help="What becomes the key: property:NAME (such as property:group-id), "
        "application:NAME or annotation:NAME.",
    ),
]
_FilterFrom = Annotated[
    str | None,
    typer.Option(
        help="What becomes the filter value, in the same words. Default: x-stream-filter-value.",
    ),
]
_SkipUnfit = Annotated[
    bool,
    typer.Option(
        "--skip-unfit", help="Leave out messages that are larger than a record may be; count them."
    ),
]
_BatchBytes = Annotated[
    int, typer.Option(min=1024, max=_PART_SIZE, help="Bytes of a request, roughly.")
]


def add_to(app: typer.Typer) -> None:
    """Add `import` with its commands to the command line."""
    group = typer.Typer(help="Import: streams that another system stored.", no_args_is_help=True)
    group.callback()(_root)
    group.command(
        "rabbitmq",
        epilog=examples(
            "import rabbitmq copies/__orders_1663 --dry-run",
            "import rabbitmq copies/__orders_1663 --stream orders",
        ),
    )(_rabbitmq)
    app.add_typer(group, name="import")


def _root() -> None:
    """Import: streams that another system stored."""


def _rabbitmq(
    context: typer.Context,
    directory: _Directory,
    stream: _Into = None,
    dry_run: _DryRun = False,
    keep_offsets: _KeepOffsets = False,
    key_from: _KeyFrom = None,
    filter_from: _FilterFrom = None,
    skip_unfit: _SkipUnfit = False,
    batch_bytes: _BatchBytes = _PART_SIZE,
    output: Output = Form.TABLE,
) -> None:
    """Append the messages of a RabbitMQ stream, from the files in which a node keeps it.

    The same command on the same directory goes on where it was cut off, and adds nothing to
    what is there. Neither RabbitMQ nor its files are changed.
    """
    if stream is None and not dry_run:
        raise typer.BadParameter("is needed without --dry-run", param_hint="--stream")
    # Here and not above: they bring Arrow, which help does not need.
    from bottomless.cli.rabbitmq_files import Segments  # noqa: PLC0415
    from bottomless.cli.rabbitmq_parts import Cutter  # noqa: PLC0415

    segments = Segments(directory)
    taking = _taking(key_from, filter_from, keep_offsets=keep_offsets)
    cutter = Cutter(segments, taking, batch_bytes, skip_unfit=skip_unfit)
    if dry_run:
        with progress("read", segments.size, bytes_=True) as advance:
            for part in cutter.parts(0):
                advance(part.input_size)
        _tell_found(segments, cutter, output, directory.resolve().name)
        return
    assert stream is not None
    waits = LongWait()
    with open_client(context, on_retry=waits.note) as client:
        importer = Importer(client, stream, waits, producer_of(directory))
        importer.begin()
        if 0 < importer.start < segments.first_offset:
            tell(
                f"messages {importer.start} to {segments.first_offset - 1} of RabbitMQ are in "
                "no segment any more, and are left out"
            )
        _send(importer, cutter, segments.size)
    _tell_stored(importer, segments, cutter, output)


class Importer:
    """Appends the parts of one import, and knows how far it has come."""

    def __init__(self, client: "Client", stream: str, waits: LongWait, producer: str) -> None:
        self._client = client
        self.stream = stream
        self._waits = waits
        self._producer = producer
        self._epoch = 0
        self.start = 0
        """RabbitMQ's offset from which on nothing was stored before this run."""
        self.count = 0
        """Records that this run stored."""
        self.next_offset: int | None = None
        """The stream's next offset, after the last append."""

    def begin(self) -> None:
        """Fence older runs, and learn how far they came, from the owner of the stream, which is
        waited for as with an append."""
        known = told_by_an_owner(
            self._waits, lambda: self._client.raise_producer_epoch(self.stream, self._producer)
        )
        self._epoch = known["epoch"]
        self.start = 0 if known["last_seq"] is None else known["last_seq"] + 1

    def append(self, part: "ImportPart") -> None:
        """Append a part; returns when it is stored.

        Raises:
            StoreError: it is not stored, or that is not known.
        """
        from bottomless.client.encoding import FRAMES  # noqa: PLC0415

        with self._waits.told(f"the answer to {_records(part.record_count)}"):
            stored = self._client.append_transaction(
                self.stream,
                part.body,
                FRAMES,
                producer=self._producer,
                epoch=self._epoch,
                number=part.number,
                retry_seconds=RETRY_SECONDS,
            )
        self.count += part.record_count
        self.next_offset = stored.next_offset


def producer_of(directory: Path) -> str:
    """Name the producer of an import: by the directory's own name, which RabbitMQ gives to one
    stream only, wherever a copy of it lies."""
    name = directory.resolve().name.encode(errors="surrogateescape")
    return f"import.{hashlib.sha256(name).hexdigest()[:_HASH_DIGITS]}"


def _send(importer: Importer, cutter: "Cutter", total: int) -> None:
    from bottomless.cli.rabbitmq_parts import in_turn, one_ahead  # noqa: PLC0415

    try:
        with interrupts() as taken, progress("import", total, bytes_=True) as advance:

            def append(part: "ImportPart") -> None:
                with taken.shielded():
                    importer.append(part)

            for part, _ in in_turn(one_ahead(cutter.parts(importer.start)), append):
                advance(part.input_size)
    except StoreError as error:
        if importer.count:
            error.facts["stored_before"] = importer.count
        raise
    except Interrupted as interrupted:
        tell(
            f"interrupted: {_records(importer.count)} stored by this run; "
            "the same command goes on after them"
        )
        raise typer.Exit(interrupted.exit_code) from interrupted


def _taking(key_from: str | None, filter_from: str | None, *, keep_offsets: bool) -> "Taking":
    from bottomless.formats.amqp_record import Source, Taking, parse_source  # noqa: PLC0415

    def source(option: str, text: str | None) -> Source | None:
        try:
            return None if text is None else parse_source(text)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint=option) from error

    key, filter_value = source("--key-from", key_from), source("--filter-from", filter_from)
    return Taking(key, filter_value, keep_offsets)


def _tell_found(segments: "Segments", cutter: "Cutter", output: Form, name: str) -> None:
    facts = {
        "segments": len(segments.paths),
        "bytes": segments.size,
        **cutter.seen.facts(),
        "not_amqp": cutter.collected.other_count,
        "left_out": cutter.seen.left_out,
        "torn_bytes": segments.torn_size,
    }
    show(facts, output, name=name)


def _tell_stored(importer: Importer, segments: "Segments", cutter: "Cutter", output: Form) -> None:
    if segments.torn_size:
        tell(
            f"the last segment ends within a chunk: its last {segments.torn_size} bytes were left out"
        )
    if cutter.seen.left_out:
        tell(f"{_records(cutter.seen.left_out)} would have been larger than a record may be")
    if output is Form.TABLE:
        where = f", the next offset is {importer.next_offset}" if importer.count else ""
        before = ""
        if importer.start:
            before = f"; messages below {importer.start} of RabbitMQ were stored before"
        line(f"stored {_records(importer.count)}{where}{before}")
        return
    stored = {
        "stored": importer.count,
        "left_out": cutter.seen.left_out,
        "torn_bytes": segments.torn_size,
        "next_offset": importer.next_offset,
        "rabbitmq_first_offset": importer.start,
        "rabbitmq_next_offset": cutter.seen.next_offset or importer.start or None,
    }
    show(stored, output, name=importer.stream)


def _records(count: int) -> str:
    return "1 record" if count == 1 else f"{count} records"
