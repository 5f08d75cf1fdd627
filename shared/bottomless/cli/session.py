"""Session: what the options before a command say, and the client that is made from it.

Nothing is read before a command talks to a server: help, completion and `serve` work even if a
profile is wrong.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from bottomless.cli.connection import CHOICE, Choice, Layer, choose, fault_of
from bottomless.cli.profiles import checked_token, config_file, load_profile, read_token

if TYPE_CHECKING:
    from bottomless.client import AsyncClient, Client
    from bottomless.errors import StoreError

URL: Final = "BOTTOMLESS_URL"
TOKEN: Final = "BOTTOMLESS_TOKEN"  # noqa: S105
TOKEN_FILE: Final = "BOTTOMLESS_TOKEN_FILE"  # noqa: S105
PROFILE: Final = "BOTTOMLESS_PROFILE"
CA_FILE: Final = "BOTTOMLESS_CA_FILE"

_OPTIONS: Final = "options"


@dataclass(frozen=True, slots=True)
class Session:
    """What the options before the command say."""

    options: Layer
    profile: str | None

    @classmethod
    def of_parameters(cls, given: Mapping[str, Any]) -> "Session":
        """Make a session from the values of the options, by their names."""
        token_file, ca_file = given.get("token_file"), given.get("ca_file")
        options = Layer(_OPTIONS, url=given.get("url"), token_file=token_file, ca_file=ca_file)
        return cls(options, given.get("profile"))


def chosen(context: typer.Context) -> Choice:
    """Choose the server and the credential, and remember which place named them.

    Raises:
        typer.BadParameter: the url is not that of a server, or a file or profile is missing.
    """
    session = context.find_root().obj
    assert isinstance(session, Session)
    choice = choose(list(_layers(session, os.environ, config_file())))
    fault = fault_of(choice.url)
    if fault is not None:
        where = "" if choice.url_source == _OPTIONS else f" (the {choice.url_source} says it)"
        raise typer.BadParameter(f"{fault}{where}", param_hint="--url")
    if choice.ca_file is not None and not choice.ca_file.is_file():
        raise typer.BadParameter(f"{choice.ca_file} is not a file", param_hint="--ca-file")
    context.meta[CHOICE] = choice
    return choice


def token_of(choice: Choice) -> str:
    """Read the token that was chosen; empty if there is none."""
    told = choice.credential
    if told is None:
        return ""
    named = "--token-file" if told.source == _OPTIONS else told.source
    if told.token is not None:
        return checked_token(told.token, named)
    assert told.token_file is not None
    return read_token(told.token_file, named)


def open_client(
    context: typer.Context,
    *,
    patient: bool = False,
    seconds: float | None = None,
    on_retry: "Callable[[StoreError], None] | None" = None,
) -> "Client":
    """Make a client for the server that the command line names; the caller closes it.

    A failure is told at once, since a user waits for it, unless the client is `patient`: for work
    that has begun well and should not be broken off. `seconds` bounds each call. `on_retry` hears, in
    another thread, of each failure after which one is made again.
    """
    choice = chosen(context)
    token = token_of(choice)
    # Here and not above: they bring libraries for HTTP, which help does not need.
    from bottomless.client import Client, Timeouts  # noqa: PLC0415
    from bottomless.client.retry import RETRY_SECONDS  # noqa: PLC0415

    timeouts = None if seconds is None else Timeouts(connect=seconds, answer=seconds)
    # An empty token, not none: then the client would look for one by itself.
    return Client(
        choice.url,
        token=token,
        timeouts=timeouts,
        retry_seconds=RETRY_SECONDS if patient else 0,
        ca_file=choice.ca_file,
        on_retry=on_retry,
    )


def open_async_client(context: typer.Context) -> "AsyncClient":
    """Make a client for a command that has many requests under way at once."""
    choice = chosen(context)
    token = token_of(choice)
    from bottomless.client import AsyncClient  # noqa: PLC0415

    return AsyncClient(choice.url, token=token, retry_seconds=0, ca_file=choice.ca_file)


def _layers(session: Session, environment: Mapping[str, str], file: Path) -> Iterator[Layer]:
    yield session.options
    if session.profile is not None:
        named = load_profile(session.profile, file)
        assert named is not None
        yield named
    yield _environment(environment)
    if session.profile is None:
        unnamed = load_profile(environment.get(PROFILE) or None, file)
        if unnamed is not None:
            yield unnamed


def _environment(environment: Mapping[str, str]) -> Layer:
    if environment.get(TOKEN) and environment.get(TOKEN_FILE):
        raise typer.BadParameter(f"{TOKEN} and {TOKEN_FILE} are both set; unset one")
    token_file, ca_file = environment.get(TOKEN_FILE), environment.get(CA_FILE)
    return Layer(
        "environment",
        # What is set to nothing counts as not set, as scripts mean it.
        url=environment.get(URL) or None,
        token=environment.get(TOKEN) or None,
        token_file=Path(token_file).expanduser() if token_file else None,
        ca_file=Path(ca_file).expanduser() if ca_file else None,
    )
