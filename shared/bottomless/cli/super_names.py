"""Super streams by their names, for commands that take the name of a stream: the server knows which it is."""

from typing import TYPE_CHECKING

import typer

from bottomless.errors import Denied, NotFound

if TYPE_CHECKING:
    from bottomless.client import Client


def is_super_stream(client: "Client", name: str) -> bool:
    """Ask whether a super stream has this name; false if that may not be seen."""
    try:
        client.describe_super_stream(name)
    except (NotFound, Denied):
        return False
    return True


def refuse_offset(place: str | None, option: str) -> None:
    """Refuse a number as a place in a super stream.

    Raises:
        typer.BadParameter: it is one.
    """
    if place is not None and place.isdigit():
        raise typer.BadParameter(
            "an offset is a place in one partition; give another place, or name a partition",
            param_hint=option,
        )
