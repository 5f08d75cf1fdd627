"""The command line as a whole: its own commands, and those that other distributions add.

The group is `bottomless.commands`; an entry is a function that typer makes a command of, or a whole
`typer.Typer`. `bottomless-server` adds `serve` in this way, and this distribution knows nothing
about servers.
"""

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from bottomless.cli import (
    admin,
    bench,
    consumers,
    doctor,
    drives,
    fragments,
    groups,
    imports,
    keys,
    leases,
    limits,
    manifest,
    nodes,
    operations,
    positions,
    produce,
    producers,
    queues,
    read,
    replicas,
    retention,
    spark,
    streams,
    supers,
    tail,
    tiers,
    whoami,
)
from bottomless.cli.connection import URL_DEFAULT
from bottomless.cli.failures import EXIT_CODES, Guarded, tell
from bottomless.cli.installed import installed
from bottomless.cli.profiles import complete_profile
from bottomless.cli.session import CA_FILE, PROFILE, TOKEN, TOKEN_FILE, URL, Session

COMMANDS = "bottomless.commands"


def main() -> None:
    """Run the command line."""
    # What is no UTF-8 has surrogates here, which neither a path nor JSON can carry.
    if any(not word.isascii() and not _encodable(word) for word in sys.argv):
        tell("an argument must be UTF-8")
        sys.exit(2)
    create_app()()


def create_app() -> typer.Typer:
    """Make the command line with every command that is installed."""
    app = typer.Typer(
        name="bottomless",
        epilog=EXIT_CODES,
        cls=Guarded,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
        add_completion=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    # With a callback a lone command keeps its name instead of being the whole program.
    app.callback()(_root)
    streams.add_to(app)
    produce.add_to(app)
    read.add_to(app)
    tail.add_to(app)
    positions.add_to(app)
    retention.add_to(app)
    whoami.add_to(app)
    limits.add_to(app)
    doctor.add_to(app)
    bench.add_to(app)
    for group in (
        consumers,
        groups,
        queues,
        supers,
        producers,
        leases,
        fragments,
        manifest,
        drives,
        tiers,
        replicas,
        nodes,
        operations,
        keys,
        imports,
        spark,
        admin,
    ):
        group.add_to(app)
    app.command("version")(_print_version)
    for name, command in installed(COMMANDS):
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    if not any(command.name == "serve" for command in app.registered_commands):
        app.command("serve", hidden=True, context_settings={"ignore_unknown_options": True})(
            _no_server
        )
    return app


def _no_server(_words: Annotated[list[str] | None, typer.Argument()] = None) -> None:
    """Say where the server is."""
    tell(
        "this is the client alone; the server is a distribution of its own: in a checkout of "
        "Bottomless, `./dev serve`, or pip install ./shared ./services"
    )
    raise typer.Exit(2)


def _encodable(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def _if_asked(asked: bool) -> None:
    if asked:
        _print_version()
        raise typer.Exit


def _root(
    context: typer.Context,
    url: Annotated[
        str | None,
        typer.Option(
            help=f"The server, or the proxy before several; else {URL}, else the profile's.",
            show_default=URL_DEFAULT,
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            help=f"The profile of the configuration file; else {PROFILE}.",
            autocompletion=complete_profile,
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help=f"File that holds the token, for its owner only; else {TOKEN_FILE} or {TOKEN}."
        ),
    ] = None,
    ca_file: Annotated[
        Path | None,
        typer.Option(
            help=f"Certificates to trust, where the server's are of your own; else {CA_FILE}."
        ),
    ] = None,
    _version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_if_asked, help="Print the version."),
    ] = False,
) -> None:
    """Streams that never end, over HTTP.

    These options can be given before a command or after it.
    """
    given = {"url": url, "profile": profile, "token_file": token_file, "ca_file": ca_file}
    context.obj = Session.of_parameters(given)


def _print_version() -> None:
    """Print the version."""
    sys.stdout.write(f"bottomless {version('bottomless')}\n")
