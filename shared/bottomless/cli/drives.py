"""Drives: the stores on which fragments may lie, their registration and retirement."""

from typing import Annotated, Final

import typer

from bottomless.cli.asking import Yes, confirm
from bottomless.cli.examples import examples
from bottomless.cli.meant import note_name
from bottomless.cli.operations import Wait, finish
from bottomless.cli.output import Column, Form, Output, show, show_list
from bottomless.cli.session import open_client

_COLUMNS: Final = [
    Column("NAME", lambda item: item["name"]),
    Column("NUMBER", lambda item: item["number"]),
    Column("STATE", lambda item: item["state"]),
]

DriveName = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="Name of a drive, as BOTTOMLESS_DRIVES of the servers has it.",
        callback=note_name,
    ),
]


def add_to(app: typer.Typer) -> None:
    """Add `drives` with its commands to the command line."""
    group = typer.Typer(help="The stores on which fragments may lie.", no_args_is_help=True)
    group.command("ls", epilog=examples("drives ls"))(_list)
    group.command("add", epilog=examples("drives add cold"))(_add)
    group.command("retire", epilog=examples("drives retire cold --wait"))(_retire)
    group.command("lost", epilog=examples("drives lost shelf --yes --wait"))(_lost)
    app.add_typer(group, name="drives")


def _list(context: typer.Context, output: Output = Form.TABLE) -> None:
    """List drives: those that are used, away or retired, and those that wait to be registered."""
    with open_client(context) as client:
        show_list(client.list_drives(), _COLUMNS, output)


def _add(context: typer.Context, name: DriveName, output: Output = Form.TABLE) -> None:
    """Register a drive that BOTTOMLESS_DRIVES of the servers names, so that it is used.

    It is tried and marked; its number is taken for ever. Again changes nothing.
    """
    with open_client(context) as client:
        show(client.register_drive(name), output, name=name)


def _retire(
    context: typer.Context,
    name: DriveName,
    wait: Wait = False,
    output: Output = Form.TABLE,
) -> None:
    """Retire a drive on which nothing lies any more; nothing new is put on it from then on.

    Fails if a stream uses it, and says which. Its name and number stay taken.
    """
    with open_client(context) as client:
        finish(client, client.retire_drive(name), output, wait=wait)


def _lost(
    context: typer.Context,
    name: DriveName,
    yes: Yes = False,
    wait: Wait = False,
    output: Output = Form.TABLE,
) -> None:
    """Say that a drive will never be back: what streams have on it is given up, for ever.

    Reads tell of it as of a gap, and deletions, rebuilds and uploads wait for the drive no more.
    """
    confirm(f"Give up for ever all that streams have on the drive {name}?", yes)
    with open_client(context) as client:
        finish(client, client.lose_drive(name), output, wait=wait)
