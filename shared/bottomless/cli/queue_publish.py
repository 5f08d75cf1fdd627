"""Publish: put messages into queues, from stdin, from a file or from the command line."""

from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final

import orjson
import typer

from bottomless.cli.examples import examples
from bottomless.cli.failures import tell
from bottomless.cli.inputs.file import File, opened_input
from bottomless.cli.inputs.lines import value_member
from bottomless.cli.inputs.parts import Limits
from bottomless.cli.inputs.text import Encode, batches_of, lines_of, loaded_line
from bottomless.cli.interrupts import Interrupted, interrupts
from bottomless.cli.output import Form, Output, line, show
from bottomless.cli.queue_names import (
    TIME,
    Delay,
    Queue,
    checked_queue,
    complete_queue,
    message_headers,
    milliseconds,
)
from bottomless.cli.session import open_client
from bottomless.errors import StoreError
from bottomless.model.limits import MIB

if TYPE_CHECKING:
    from bottomless.client import Client

_BATCH_COUNT: Final = 1000
_BODY_SIZE_MAX: Final = 16 * MIB
"""More than a server takes as one message."""


class _Format(StrEnum):
    LINES = "lines"
    NDJSON = "ndjson"
    RAW = "raw"


def add_to(group: typer.Typer) -> None:
    """Add `queue publish` to the commands about queues."""
    group.command(
        "publish",
        epilog=examples(
            "queue publish invoices --value hello --priority 5",
            "queue publish invoices orders.ndjson --format ndjson",
            "queue publish scans a.pdf --format raw --header type=pdf",
        ),
    )(_publish)


def _publish(
    context: typer.Context,
    queue: Queue,
    file: File = None,
    value: Annotated[
        list[str] | None,
        typer.Option("--value", help="A message with this text, instead of a file; repeatable."),
    ] = None,
    input_format: Annotated[
        _Format,
        typer.Option(
            "--format",
            "-f",
            help="A message a line (lines); a JSON value a line (ndjson); all of it as one (raw).",
        ),
    ] = _Format.LINES,
    also: Annotated[
        list[str] | None,
        typer.Option(
            help="Another queue that gets each message, or none gets it; repeatable.",
            autocompletion=complete_queue,
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", help="A header of every message, as NAME=VALUE; repeatable."),
    ] = None,
    priority: Annotated[int, typer.Option(min=0, max=9, help="The higher is delivered first.")] = 0,
    delay_ms: Delay = None,
    ttl_ms: Annotated[
        str | None, typer.Option("--ttl-ms", help=f"How long it is there at most: {TIME}.")
    ] = None,
    idempotency_key: Annotated[
        str | None,
        typer.Option(help="With --value or raw: the same command again stores nothing twice."),
    ] = None,
    output: Output = Form.TABLE,
) -> None:
    """Publish messages to a queue; they are synced to disk when it says so.

    What is piped in slowly is published as it comes. A request whose answer is lost is sent again and
    stored once. Ctrl-C says how many are stored.
    """
    if value and file is not None:
        raise typer.BadParameter("goes without a file", param_hint="--value")
    if idempotency_key is not None and not value and input_format is not _Format.RAW:
        raise typer.BadParameter(
            "goes with --value or --format raw, where there is one request",
            param_hint="--idempotency-key",
        )
    shared = _shared(header, priority, milliseconds(delay_ms, "--delay-ms"), ttl_ms)
    queues = [queue, *(checked_queue(name) or "" for name in also or [])]
    with open_client(context, patient=True) as client, opened_input(file) as source:
        sender = _Sender(client, queues, idempotency_key)
        if value:
            batches: Iterable[list[dict[str, Any]]] = [[{"value": one, **shared} for one in value]]
        else:
            batches = _batches(source, input_format, shared)
        _send(sender, batches)
    if output is Form.TABLE:
        line(f"published {sender.said()}")
    else:
        show({"published": sender.count, "duplicates": sender.duplicates}, output, name=queue)


class _Sender:
    """Publishes batches, and counts what is stored."""

    def __init__(self, client: "Client", queues: list[str], key: str | None) -> None:
        self._client = client
        self._queues = queues
        self._key = key
        self.count = 0
        self.duplicates = 0

    def send(self, batch: list[dict[str, Any]]) -> None:
        """Publish a batch."""
        if len(self._queues) == 1:
            published = self._client.publish(self._queues[0], batch, idempotency_key=self._key)
        else:
            answers = self._client.publish_to(self._queues, batch, idempotency_key=self._key)
            published = answers[self._queues[0]]
        self.count += len(published)
        self.duplicates += sum(one.duplicate for one in published)

    def said(self) -> str:
        """Say how many are stored."""
        count = "1 message" if self.count == 1 else f"{self.count} messages"
        before = f"; {self.duplicates} were stored before" if self.duplicates else ""
        return f"{count}{before}"


def _send(sender: _Sender, batches: Iterable[list[dict[str, Any]]]) -> None:
    try:
        with interrupts() as taken:
            for batch in batches:
                with taken.shielded():
                    sender.send(batch)
    except StoreError as error:
        if sender.count:
            error.facts["stored_before"] = sender.count
        raise
    except Interrupted as interrupted:
        tell(f"interrupted: {sender.said()} published; go on with what comes after them")
        raise typer.Exit(interrupted.exit_code) from interrupted


def _shared(
    header: list[str] | None, priority: int, delay_ms: int | None, ttl_ms: str | None
) -> dict[str, Any]:
    """The members that every message gets."""
    given = {
        "headers": message_headers(header) or None,
        "priority": priority or None,
        "delay_ms": delay_ms,
        "ttl_ms": milliseconds(ttl_ms, "--ttl-ms"),
    }
    return {name: member for name, member in given.items() if member is not None}


def _batches(
    source: BinaryIO, form: _Format, shared: dict[str, Any]
) -> Iterator[list[dict[str, Any]]]:
    if form is _Format.RAW:
        body = source.read(_BODY_SIZE_MAX + 1)
        yield [{"value_base64": b64encode(body).decode("ascii"), **shared}]
        return
    encode, message_of = _ENCODED[form]
    for batch in batches_of(lines_of(source), encode, Limits(_BATCH_COUNT, MIB)):
        yield [{**message_of(one), **shared} for one in batch.records]


def _text_line(text: bytes, _number: int) -> bytes:
    return orjson.dumps(value_member(text))


def _json_line(text: bytes, number: int) -> bytes | None:
    if text.strip():
        loaded_line(text, number)
    return text.strip() or None


def _json_message(text: bytes) -> dict[str, Any]:
    # As it stands there: what is decoded may lose digits.
    return {"json": orjson.Fragment(text)}


_ENCODED: Final[dict[_Format, tuple[Encode, Callable[[bytes], dict[str, Any]]]]] = {
    _Format.LINES: (_text_line, orjson.loads),
    _Format.NDJSON: (_json_line, _json_message),
}
"""How a line is kept until a batch is whole, and what message is made of it then."""
