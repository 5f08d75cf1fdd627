"""Positions: the bounds of a stream, and the offset that an offset spec leads to."""

from typing import Annotated

import typer

from bottomless.cli.examples import examples
from bottomless.cli.output import Form, Output, line, show
from bottomless.cli.places import CHOICES, checked_place
from bottomless.cli.session import open_client
from bottomless.cli.stream_names import Stream


def add_to(app: typer.Typer) -> None:
    """Add `offsets` and `resolve` to the command line."""
    app.command("offsets", epilog=examples("offsets orders -o json"))(_offsets)
    app.command(
        "resolve",
        epilog=examples(
            "resolve orders tail:10",
            "resolve orders timestamp:2026-08-22T09:20:00Z",
            "resolve orders stored --consumer billing",
        ),
    )(_resolve)


def _offsets(context: typer.Context, stream: Stream, output: Output = Form.TABLE) -> None:
    """Show the bounds of a stream; those called next are exclusive."""
    with open_client(context) as client:
        show(client.bounds(stream), output, name=stream)


def _resolve(
    context: typer.Context,
    stream: Stream,
    spec: Annotated[
        str,
        typer.Argument(callback=checked_place, help=f"{CHOICES}."),
    ],
    consumer: Annotated[
        str | None, typer.Option(help="With `stored`: the consumer whose offset it is.")
    ] = None,
    output: Output = Form.TABLE,
) -> None:
    """Print the offset that an offset spec leads to."""
    asked = {} if consumer is None else {"consumer": consumer}
    with open_client(context) as client:
        found = client.resolve(stream, spec, **asked)
    if output is Form.JSON:
        show(found, output, name=stream)
    else:
        line(str(found["offset"]))
