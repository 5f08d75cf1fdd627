"""Asking: nothing is removed without a yes, at the terminal or on the command line."""

import sys
from typing import Annotated

import typer

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Say what would be removed; change nothing.")
]


def confirm(question: str, yes: bool) -> None:
    """Continue only after a yes; if there is no terminal to ask at, that is wrong usage.

    Raises:
        typer.BadParameter: nobody can be asked.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter(
            "this asks before it does anything, and there is no terminal to ask at; --yes says yes",
            param_hint="--yes",
        )
    if not typer.confirm(question, err=True):
        raise typer.Exit(1)
