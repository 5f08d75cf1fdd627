"""Limits: how much a request may hold, as the server says it."""

import typer

from bottomless.cli.examples import examples
from bottomless.cli.output import Form, Output, show
from bottomless.cli.session import open_client


def add_to(app: typer.Typer) -> None:
    """Add `limits` to the command line."""
    app.command("limits", epilog=examples("limits", "limits -o json"))(_limits)


def _limits(context: typer.Context, output: Output = Form.TABLE) -> None:
    """Show the limits of requests and of answers; sizes in bytes."""
    with open_client(context) as client:
        show(client.limits(), output, name="limits")
