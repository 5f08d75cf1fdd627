"""Names as arguments: checked before anything is asked or sent; the shell can complete streams.

A completion that fails gives nothing: it may neither hang the shell nor write into its line.
"""

from contextlib import suppress
from itertools import islice
from typing import Annotated, Final

import typer

from bottomless.cli.meant import note_stream
from bottomless.model.names import parse_reference, parse_stream_name

COUNT_MAX: Final = 50
"""Nobody reads more names than this as a choice."""

SECONDS_MAX: Final = 2.0
"""Nobody waits longer than this after pressing a key."""


def complete_stream(context: typer.Context, incomplete: str) -> list[str]:
    """List the names of streams that start with a text, for the shell.

    It is empty if the server is not there or does not say.
    """
    # Whatever is wrong, from a profile to the network: the key was pressed for a name.
    with suppress(Exception, SystemExit):
        from bottomless.cli.session import Session, open_client  # noqa: PLC0415

        root = context.find_root()
        root.obj = Session.of_parameters(root.params)
        with open_client(context, seconds=SECONDS_MAX) as client:
            found = islice(client.list_streams(prefix=incomplete), COUNT_MAX)
            return [stream["name"] for stream in found]
    return []


def checked_stream(text: str | None) -> str | None:
    """Check the name of a stream, before anything is asked or sent.

    Raises:
        InvalidRequest: `bad-name`, which ends the program.
    """
    return None if text is None else parse_stream_name(text)


def checked_reference(text: str | None) -> str | None:
    """Check the name of a consumer or producer, before anything is asked or sent.

    Raises:
        InvalidRequest: `bad-name`, which ends the program.
    """
    return None if text is None else parse_reference(text)


Stream = Annotated[
    str,
    typer.Argument(
        help="Name of the stream.", callback=note_stream, autocompletion=complete_stream
    ),
]
Producer = Annotated[str, typer.Argument(help="Name of the producer.", callback=checked_reference)]
Consumer = Annotated[str, typer.Argument(help="Name of the consumer.", callback=checked_reference)]
