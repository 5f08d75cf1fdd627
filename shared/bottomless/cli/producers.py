"""Producers: what a stream knows about the producers that number what they append."""

from typing import Final

import typer

from bottomless.cli.asking import Yes, confirm
from bottomless.cli.examples import examples
from bottomless.cli.output import Column, Form, Output, show, show_list
from bottomless.cli.session import open_client
from bottomless.cli.stream_names import Producer, Stream

_COLUMNS: Final = [
    Column("PRODUCER", lambda item: item["producer_id"]),
    Column("MODE", lambda item: item["mode"]),
    Column("EPOCH", lambda item: item["epoch"]),
    Column("LAST NUMBER", lambda item: item["last_seq"]),
    Column("UPDATED", lambda item: item["updated_at"]),
]


def add_to(app: typer.Typer) -> None:
    """Add `producers` with its commands to the command line."""
    group = typer.Typer(help="Producers that number what they append.", no_args_is_help=True)
    group.command("ls", epilog=examples("producers ls orders"))(_list)
    group.command("get", epilog=examples("producers get orders loader-7 -o json"))(_get)
    group.command("rm", epilog=examples("producers rm orders loader-7"))(_remove)
    app.add_typer(group, name="producers")


def _list(context: typer.Context, stream: Stream, output: Output = Form.TABLE) -> None:
    """List the producers that a stream knows."""
    with open_client(context) as client:
        show_list(client.list_producers(stream), _COLUMNS, output)


def _get(
    context: typer.Context, stream: Stream, producer: Producer, output: Output = Form.TABLE
) -> None:
    """Show what a stream knows about a producer: its epoch and its last number."""
    with open_client(context) as client:
        show(client.describe_producer(stream, producer), output, name=producer)


def _remove(context: typer.Context, stream: Stream, producer: Producer, yes: Yes = False) -> None:
    """Forget a producer: records that it sends again are stored again."""
    confirm(f"Forget what {stream} has of {producer}? A repeat would be stored again.", yes)
    with open_client(context) as client:
        client.forget_producer(stream, producer)
