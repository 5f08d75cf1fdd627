"""Consumers: how far each of them has come, and setting that by hand."""

from typing import Annotated, Final

import typer

from bottomless.cli.asking import Yes, confirm
from bottomless.cli.examples import examples
from bottomless.cli.output import Column, Form, Output, show, show_list, tell_unreadable
from bottomless.cli.session import open_client
from bottomless.cli.stream_names import Consumer, Stream
from bottomless.model.limits import OFFSET_MAX

_COLUMNS: Final = [
    Column("CONSUMER", lambda item: item["consumer"]),
    Column("NEXT OFFSET", lambda item: item["next_offset"]),
    Column("LAG", lambda item: item["lag_records"]),
    Column("COMMITTED", lambda item: item["committed_at"]),
]


def add_to(app: typer.Typer) -> None:
    """Add `consumers` with its commands to the command line."""
    group = typer.Typer(help="The stored offsets of consumers.", no_args_is_help=True)
    group.command("ls", epilog=examples("consumers ls orders"))(_list)
    group.command("get", epilog=examples("consumers get orders billing -o json"))(_get)
    group.command(
        "set",
        epilog=examples(
            "consumers set orders billing 1040",
            "consumers set orders billing 0 --allow-regression",
        ),
    )(_set)
    group.command("rm", epilog=examples("consumers rm orders billing"))(_remove)
    app.add_typer(group, name="consumers")


def _list(context: typer.Context, stream: Stream, output: Output = Form.TABLE) -> None:
    """List the consumers of a stream."""
    with open_client(context) as client:
        consumers = client.list_consumers(stream, unreadable=tell_unreadable("consumer"))
        show_list(consumers, _COLUMNS, output)


def _get(
    context: typer.Context, stream: Stream, consumer: Consumer, output: Output = Form.TABLE
) -> None:
    """Show how far a consumer has come."""
    with open_client(context) as client:
        show(client.describe_consumer(stream, consumer), output, name=consumer)


def _set(
    context: typer.Context,
    stream: Stream,
    consumer: Consumer,
    next_offset: Annotated[
        int, typer.Argument(min=0, max=OFFSET_MAX + 1, help="The offset to continue with.")
    ],
    allow_regression: Annotated[
        bool,
        typer.Option(
            "--allow-regression", help="Store it even if it is lower than what is stored."
        ),
    ] = False,
    output: Output = Form.TABLE,
) -> None:
    """Store the offset that a consumer continues with."""
    with open_client(context) as client:
        stored = client.commit(stream, consumer, next_offset, allow_regression=allow_regression)
        show(stored, output, name=consumer)


def _remove(context: typer.Context, stream: Stream, consumer: Consumer, yes: Yes = False) -> None:
    """Forget a consumer's stored offset."""
    confirm(f"Forget how far {consumer} has come in {stream}?", yes)
    with open_client(context) as client:
        client.forget_consumer(stream, consumer)
