"""Produce: append the contents of stdin or of a file."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import UnsupportedOperation
from stat import S_ISREG
from typing import Annotated, BinaryIO, Final

import typer

from bottomless.cli.examples import examples
from bottomless.cli.failures import tell
from bottomless.cli.inputs import (
    WITH_MEMBERS,
    WITHOUT_ENVELOPE,
    Format,
    Parts,
    format_of,
    is_doubtful,
    parts_of,
)
from bottomless.cli.inputs.file import File, opened_input
from bottomless.cli.inputs.parts import Limits, Part, Taking
from bottomless.cli.interrupts import Interrupted, interrupts
from bottomless.cli.outages import LongWait
from bottomless.cli.output import Form, Output, line, show
from bottomless.cli.progress import progress
from bottomless.cli.sending import Sender, SuperSender, begun
from bottomless.cli.session import open_client
from bottomless.cli.stream_names import Stream, checked_reference
from bottomless.errors import Outcome, StoreError
from bottomless.model.limits import JSON_RECORD_COUNT_MAX, MIB

_BATCH_SIZE_MAX: Final = 4 * MIB

_Format = Annotated[
    Format | None,
    typer.Option(
        "--format",
        "-f",
        help=(
            "A record a line (lines); a JSON value a line (ndjson); what `read -o ndjson` "
            "writes (records); all of it as one record (raw); an Arrow IPC stream or file "
            "(arrow); a row a record (csv, parquet). Default: what a name that ends in "
            ".csv, .ndjson, .jsonl, .parquet, .arrow, .arrows or .feather says, otherwise lines."
        ),
    ),
]
_KeyField = Annotated[
    str | None,
    typer.Option(
        help="With ndjson, csv, parquet: the member or column that is the key; a record without it is an error."
    ),
]
_KeyOptional = Annotated[
    bool,
    typer.Option(
        "--key-optional", help="With --key-field: store records without that member, keyless."
    ),
]
_Key = Annotated[str | None, typer.Option("--key", help="The key of every record.")]
_Headers = Annotated[
    list[str] | None,
    typer.Option("--header", help="A header of every record, as NAME=VALUE; repeatable."),
]
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
        help="With --producer, and the whole input again: skip what is stored already.",
    ),
]
_BatchCount = Annotated[
    int, typer.Option(min=1, max=JSON_RECORD_COUNT_MAX, help="Records of a request, at most.")
]
_BatchBytes = Annotated[
    int, typer.Option(min=1024, max=_BATCH_SIZE_MAX, help="Bytes of a request, roughly.")
]


def add_to(app: typer.Typer) -> None:
    """Add `produce` to the command line."""
    app.command(
        "produce",
        epilog=examples(
            "produce orders access.log",
            "produce orders orders.ndjson --key-field id",
            "produce orders access.log --producer loader-7 --resume",
        ),
    )(_produce)


def _produce(
    context: typer.Context,
    stream: Stream,
    file: File = None,
    input_format: _Format = None,
    key: _Key = None,
    header: _Headers = None,
    key_field: _KeyField = None,
    key_optional: _KeyOptional = False,
    producer: _Producer = None,
    resume: _Resume = False,
    batch_count: _BatchCount = 5000,
    batch_bytes: _BatchBytes = MIB,
    output: Output = Form.TABLE,
) -> None:
    """Append records from a file or from stdin.

    What is piped in slowly is sent as it comes. With --producer and --resume the same command
    on the same file goes on where it was interrupted. Ctrl-C says what is stored.
    """
    form = input_format or format_of(file)
    if key_field is not None and form not in WITH_MEMBERS:
        known = ", ".join(WITH_MEMBERS)
        raise typer.BadParameter(
            f"goes with a --format that has members: {known}", param_hint="--key-field"
        )
    for given, name in ((key, "--key"), (header, "--header")):
        if given is not None and form not in WITHOUT_ENVELOPE:
            known = ", ".join(WITHOUT_ENVELOPE)
            raise typer.BadParameter(
                f"goes with one of these as --format: {known}", param_hint=name
            )
    if key is not None and key_field is not None:
        raise typer.BadParameter("goes without --key-field", param_hint="--key")
    if key_optional and key_field is None:
        raise typer.BadParameter("needs --key-field", param_hint="--key-optional")
    if resume and producer is None:
        raise typer.BadParameter("needs --producer", param_hint="--resume")
    taking = Taking(
        Limits(batch_count, batch_bytes),
        key_field=key_field,
        key_optional=key_optional,
        key=key,
        headers=_headers_of(header or []),
    )
    if input_format is None and is_doubtful(file):
        tell("each line of this file becomes a record; --format says what it is otherwise")
    waits = LongWait()
    with open_client(context, on_retry=waits.note) as client, opened_input(file) as source:
        sender = begun(client, stream, waits, producer, resume=resume)
        taking.skipped = skipped = sender.sequence if resume else 0
        _send(sender, source, parts_of(form), taking, waits)
    if taking.keyless_count:
        tell(f"{_records(taking.keyless_count)} had no member of that name, and no key then")
    _tell_stored(sender, skipped, output, stream)


def _send(sender: Sender, source: BinaryIO, parts: Parts, taking: Taking, waits: LongWait) -> None:
    skipped = taking.skipped
    try:
        with interrupts() as taken, _progress(source) as advance:
            for part in parts(source, taking):
                what = f"the answer to {_records(part.record_count)}"
                with taken.shielded(), waits.told(what):
                    sender.send(part.body, part.media_type, part.record_count)
                advance(part, sender)
    except StoreError as error:
        if sender.count:
            error.facts["stored_before"] = sender.count
            if error.retryable:
                tell(_given_up_sentence(sender, skipped, error))
        raise
    except Interrupted as interrupted:
        tell(interrupted_sentence(sender, skipped))
        raise typer.Exit(interrupted.exit_code) from interrupted


def _given_up_sentence(sender: Sender, skipped: int, error: StoreError) -> str:
    if error.outcome is Outcome.NONE:
        sender.pending = 0
    return interrupted_sentence(sender, skipped, "given up")


def interrupted_sentence(sender: Sender, skipped: int, why: str = "interrupted") -> str:
    """Say what is stored after an interrupt, or after trying in vain, and how to continue."""
    stored = f"{why}: {_records(sender.count)} stored"
    if sender.next_offset is not None:
        stored += f", the next offset is {sender.next_offset}"
    if skipped:
        stored += f"; {skipped} were stored before"
    if sender.pending:
        stored += f"; whether {_records(sender.pending)} more are stored is not known"
    if isinstance(sender, SuperSender) and sender.pending:
        return f"{stored}; some partitions may have theirs of these, and others not"
    if sender.producer is not None and not isinstance(sender, SuperSender):
        return f"{stored}; the same command with --resume goes on after them"
    if sender.count:
        first = "record" if sender.count == 1 else f"{sender.count} records"
        return (
            f"{stored}; the same command again stores them twice: go on with what comes after the "
            f"first {first} of the input; only a run that had --producer can be resumed"
        )
    if sender.pending:
        return f"{stored}; look with `bottomless tail` before the same command again"
    return f"{stored}; the same command again begins anew"


def _records(count: int) -> str:
    return "1 record" if count == 1 else f"{count} records"


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
    where = "" if sender.next_offset is None else f", the next offset is {sender.next_offset}"
    line(f"stored {_records(sender.count)}{where}{before}")


def _headers_of(words: list[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name or name in headers:
            raise typer.BadParameter("NAME=VALUE, each name once", param_hint="--header")
        headers[name] = value
    return headers


@contextmanager
def _progress(source: BinaryIO) -> Iterator[Callable[[Part, Sender], None]]:
    """Tells what is stored where somebody looks: a bar for a file, a line for what is typed."""
    if source.isatty():
        tell("type what is to be stored; Ctrl-D on an empty line ends it")
        yield lambda part, sender: tell(
            f"stored {_records(part.record_count)}"
            if sender.next_offset is None
            else f"stored {_records(part.record_count)}, the next offset is {sender.next_offset}"
        )
        return
    with progress("produce", _total_of(source), bytes_=True) as advance:
        yield lambda part, _sender: advance(part.input_size)


def _total_of(source: BinaryIO) -> int | None:
    """How much there is to read, where that is known: not of a pipe, nor of what is unpacked."""
    try:
        about = os.fstat(source.fileno())
    except UnsupportedOperation:
        return None
    return about.st_size if S_ISREG(about.st_mode) else None
