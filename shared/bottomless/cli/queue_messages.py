"""Messages of a queue: receive them, say what became of their work, look at them."""

import sys
from base64 import b64decode
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import orjson
import typer

from bottomless.cli.examples import examples
from bottomless.cli.failures import tell
from bottomless.cli.output import Column, Form, Output, line, show, show_list
from bottomless.cli.queue_names import TIME, Delay, Queue, Visibility, milliseconds
from bottomless.cli.session import open_client

if TYPE_CHECKING:
    from bottomless.client import Settled

_SHOWN_MAX: Final = 80
"""Characters of a value in a table."""
_STALE: Final = 4
"""The exit code where a receipt is somebody else's by now."""


def _value(item: Mapping[str, Any]) -> str:
    if "json" in item:
        text = orjson.dumps(item["json"]).decode()
    elif "value" in item:
        text = item["value"]
    elif "value_base64" in item:
        text = f"({len(b64decode(item['value_base64']))} bytes)"
    else:
        return "-"
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"


_RECEIVED: Final = [
    Column("SEQUENCE", lambda item: item["sequence"]),
    Column("DELIVERIES", lambda item: item["deliveries"]),
    Column("PUBLISHED", lambda item: item["published_at"]),
    Column("RECEIPT", lambda item: item["receipt"]),
    Column("VALUE", _value),
]
_PEEKED: Final = [
    Column("SEQUENCE", lambda item: item["sequence"]),
    Column("STATE", lambda item: item["state"]),
    Column("PRIORITY", lambda item: item["priority"]),
    Column("DELIVERIES", lambda item: item["deliveries"]),
    Column("PUBLISHED", lambda item: item["published_at"]),
    Column("DUE", lambda item: item["due_at"]),
    Column("VALUE", _value),
]
_Receipts = Annotated[
    list[str] | None,
    typer.Argument(help="What `receive` shows; default: stdin, one a line."),
]


class _State(StrEnum):
    READY = "ready"
    IN_FLIGHT = "in-flight"
    DELAYED = "delayed"
    DAMAGED = "damaged"


def add_to(group: typer.Typer) -> None:
    """Add the commands about messages to those about queues."""
    group.command(
        "receive",
        epilog=examples(
            "queue receive invoices --limit 1 --wait-ms 20s",
            "queue receive invoices -o name",
        ),
    )(_receive)
    group.command("ack", epilog=examples("queue ack invoices RECEIPT"))(_ack)
    group.command(
        "nack",
        epilog=examples(
            "queue nack invoices RECEIPT --delay-ms 1m", "queue nack invoices RECEIPT --dead-letter"
        ),
    )(_nack)
    group.command("extend", epilog=examples("queue extend invoices RECEIPT --visibility-ms 5m"))(
        _extend
    )
    group.command(
        "peek", epilog=examples("queue peek invoices", "queue peek invoices --state in-flight")
    )(_peek)


def _receive(
    context: typer.Context,
    queue: Queue,
    limit: Annotated[int, typer.Option(min=1, max=100, help="So many messages at most.")] = 10,
    wait_ms: Annotated[
        str, typer.Option(help=f"How long to wait where there is none, up to 30s: {TIME}.")
    ] = "0",
    visibility_ms: Visibility = None,
    output: Output = Form.TABLE,
) -> None:
    """Receive messages; what is not acknowledged in time is delivered again.

    As names only the receipts are shown, which `queue ack`, `nack` and `extend` take. To work on
    messages one after the other there is `queue work`.
    """
    with open_client(context) as client:
        received = client.receive(
            queue,
            limit=limit,
            max_wait_ms=milliseconds(wait_ms, "--wait-ms") or 0,
            visibility_ms=milliseconds(visibility_ms, "--visibility-ms"),
        )
    show_list(received, _RECEIVED, output, name="receipt")


def _ack(
    context: typer.Context, queue: Queue, receipts: _Receipts = None, output: Output = Form.TABLE
) -> None:
    """Acknowledge messages by their receipts: they are gone for good."""
    with open_client(context) as client:
        _tell("acked", client.ack(queue, _given(receipts)), queue, output)


def _nack(
    context: typer.Context,
    queue: Queue,
    receipts: _Receipts = None,
    delay_ms: Delay = None,
    dead_letter: Annotated[
        bool,
        typer.Option("--dead-letter", help="Nobody should try again: make dead letters of them."),
    ] = False,
    output: Output = Form.TABLE,
) -> None:
    """Give messages back by their receipts: they are ready again, or dead letters."""
    with open_client(context) as client:
        settled = client.nack(
            queue,
            _given(receipts),
            delay_ms=milliseconds(delay_ms, "--delay-ms") or 0,
            dead_letter=dead_letter,
        )
        _tell("returned", settled, queue, output)


def _extend(
    context: typer.Context,
    queue: Queue,
    receipts: _Receipts = None,
    visibility_ms: Visibility = None,
    output: Output = Form.TABLE,
) -> None:
    """Keep messages for longer, from now on."""
    with open_client(context) as client:
        settled = client.extend(
            queue,
            _given(receipts),
            visibility_ms=milliseconds(visibility_ms, "--visibility-ms"),
        )
        _tell("extended", settled, queue, output)


def _peek(
    context: typer.Context,
    queue: Queue,
    after: Annotated[
        int | None, typer.Option(min=0, help="Only messages after this sequence.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="So many at most.")] = 10,
    state: Annotated[_State | None, typer.Option(help="Only messages in this state.")] = None,
    output: Output = Form.TABLE,
) -> None:
    """Look at messages in the order of their sequences; nothing is taken."""
    with open_client(context) as client:
        peeked = client.peek(
            queue, after=after, limit=limit, state=None if state is None else state.value
        )
    show_list(peeked.messages, _PEEKED, output, name="sequence")
    if output is Form.TABLE and peeked.after is not None:
        tell(f"there are more: --after {peeked.after}")


def _given(receipts: list[str] | None) -> list[str]:
    """The receipts of the command line, else those of stdin."""
    found = receipts or sys.stdin.read().split()
    if not found:
        raise typer.BadParameter("there is none, neither here nor on stdin", param_hint="RECEIPTS")
    return found


def _tell(what: str, settled: "Settled", queue: str, output: Form) -> None:
    if output is Form.TABLE:
        gone = f", {len(settled.gone)} gone" if settled.gone else ""
        stale = f", {len(settled.stale)} stale" if settled.stale else ""
        line(f"{what} {settled.done}{gone}{stale}")
    else:
        value = {what: settled.done, "gone": settled.gone, "stale": settled.stale}
        show(value, output, name=queue)
    if settled.stale:
        tell(
            "stale: those messages were delivered again meanwhile, and are somebody else's; or the "
            "receipts are of a ledger that was replaced, and the messages come again"
        )
        raise typer.Exit(_STALE)
