"""Session: which server a command talks to."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from bottomless.client import BottomlessClient


@dataclass(frozen=True, slots=True)
class Session:
    """What the options before the command say."""

    url: str


def open_client(context: typer.Context) -> "BottomlessClient":
    """A client of the server that the command line names; close it."""
    # Here and not above: it brings pyarrow and an HTTP library, which help does not need.
    from httpx import InvalidURL  # noqa: PLC0415

    from bottomless.client import BottomlessClient  # noqa: PLC0415

    session = context.obj
    assert isinstance(session, Session)
    try:
        return BottomlessClient(session.url)
    except InvalidURL as error:
        raise typer.BadParameter("that is no url", param_hint="--url") from error
