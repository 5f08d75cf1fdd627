"""Spark: jobs over whole streams, here or on a cluster; bottomless/spark/commands.py has them."""

import os
from typing import Final

import typer

from bottomless.cli.examples import examples
from bottomless.cli.session import TOKEN, chosen, token_of
from bottomless.spark.command_line import CONNECT
from bottomless.spark.commands import COMMANDS

_EXAMPLES: Final = {
    "verify": ("spark verify orders", "spark verify orders --report /data/reports/orders -o json"),
    "export": (
        "spark export orders /data/orders",
        "spark export orders /data/delta/orders --format delta",
    ),
    "replay": (
        "spark replay orders orders-again --name again --from 1040",
        "spark replay orders first --name first --until 1040",
    ),
    "stats": ("spark stats orders", "spark stats orders --plot orders.png"),
    "import": (
        "spark import /data/orders orders --name first",
        "spark import trips.parquet trips --name trips --rows-as-json",
    ),
}


def add_to(app: typer.Typer) -> None:
    """Add `spark` with its commands to the command line."""
    group = typer.Typer(help="Jobs over whole streams, on Spark.", no_args_is_help=True)
    group.callback()(_root)
    for name, command in COMMANDS.items():
        group.command(name, epilog=examples(*_EXAMPLES[name]))(command)
    app.add_typer(group, name="spark")


def _root(context: typer.Context) -> None:
    """Jobs over whole streams, on Spark."""

    # Asked when a job runs, so that help works whatever is wrong with a profile.
    def connect() -> str:
        choice = chosen(context)
        token = token_of(choice)
        if token:
            # Where workers look for it, too: options of Spark are shown in its logs.
            os.environ[TOKEN] = token
        return choice.url

    context.meta[CONNECT] = connect
