"""Stream names as an argument, which the shell can complete by asking the server.

A completion that fails is none: it may neither hang the shell nor write into its line.
"""

from contextlib import suppress
from itertools import islice
from typing import Annotated, Final

import typer

COUNT_MAX: Final = 50
"""More than this nobody reads as a choice."""

SECONDS_MAX: Final = 2.0
"""Longer nobody waits at a key."""


def complete_stream(context: typer.Context, incomplete: str) -> list[str]:
    """Names of streams that start so; none where the server is not there or does not say."""
    # Whatever is wrong, from a profile to the network: the key was pressed for a name.
    with suppress(Exception, SystemExit):
        from bottomless.cli.session import Session, open_client  # noqa: PLC0415

        root = context.find_root()
        root.obj = Session.of_parameters(root.params)
        with open_client(context, seconds=SECONDS_MAX) as client:
            found = islice(client.list_streams(prefix=incomplete), COUNT_MAX)
            return [stream["name"] for stream in found]
    return []


Stream = Annotated[str, typer.Argument(help="Name of the stream.", autocompletion=complete_stream)]
