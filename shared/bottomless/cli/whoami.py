"""Whoami: who the caller is to the server, and what the caller may do."""

import typer

from bottomless.cli.examples import examples
from bottomless.cli.output import Form, Output, show
from bottomless.cli.session import open_client


def add_to(app: typer.Typer) -> None:
    """Add `whoami` to the command line."""
    app.command("whoami", epilog=examples("whoami", "--profile staging whoami -o json"))(_whoami)


def _whoami(context: typer.Context, output: Output = Form.TABLE) -> None:
    """Show who the server takes you for, for which tenant, and what you may do."""
    with open_client(context) as client:
        found = client.whoami()
    show(found, output, name=found["principal"])
