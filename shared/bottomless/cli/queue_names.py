"""Queues as arguments of commands: their names, checked before anything is asked, and times and headers."""

from contextlib import suppress
from itertools import islice
from typing import Annotated, Final

import typer

from bottomless.cli.meant import note_queue
from bottomless.cli.stream_config import number_in
from bottomless.cli.stream_names import COUNT_MAX, SECONDS_MAX
from bottomless.model.duration import parse_milliseconds
from bottomless.model.names import parse_queue_name

TIME: Final = "milliseconds, or 500ms, 10s, 5m"
"""How a time is given."""


def complete_queue(context: typer.Context, incomplete: str) -> list[str]:
    """List the names of queues that start with a text, for the shell.

    It is empty if the server is not there or does not say.
    """
    # Whatever is wrong, from a profile to the network: the key was pressed for a name.
    with suppress(Exception, SystemExit):
        from bottomless.cli.session import Session, open_client  # noqa: PLC0415

        root = context.find_root()
        root.obj = Session.of_parameters(root.params)
        with open_client(context, seconds=SECONDS_MAX) as client:
            return [one["name"] for one in islice(client.queues(prefix=incomplete), COUNT_MAX)]
    return []


def checked_queue(text: str | None) -> str | None:
    """Check the name of a queue, before anything is asked or sent.

    Raises:
        InvalidRequest: `bad-name`, which ends the program.
    """
    return None if text is None else parse_queue_name(text)


def milliseconds(text: str | None, named: str) -> int | None:
    """Read a time; `named` is the option.

    Raises:
        typer.BadParameter: it is none.
    """
    return number_in(text, named, parse_milliseconds)


def message_headers(words: list[str] | None) -> dict[str, str]:
    """Read the headers of a message.

    Raises:
        typer.BadParameter: one is not NAME=VALUE, or a name comes twice.
    """
    headers: dict[str, str] = {}
    for word in words or []:
        name, equals, value = word.partition("=")
        if not equals or not name or name in headers:
            raise typer.BadParameter("NAME=VALUE, each name once", param_hint="--header")
        headers[name] = value
    return headers


Queue = Annotated[
    str,
    typer.Argument(help="Name of the queue.", callback=note_queue, autocompletion=complete_queue),
]
Visibility = Annotated[
    str | None,
    typer.Option(
        "--visibility-ms", help=f"How long they are nobody else's: {TIME}. Default: the queue's."
    ),
]
Delay = Annotated[str | None, typer.Option("--delay-ms", help=f"How long nobody gets it: {TIME}.")]
