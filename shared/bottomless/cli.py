"""`bottomless`: the command line. Other distributions add commands by entry points.

The group is `bottomless.commands`; an entry is a function that typer makes a command of,
or a whole `typer.Typer`. `bottomless-server` adds `serve` so, and this distribution
knows nothing of servers.
"""

import sys
from importlib.metadata import entry_points, version

import typer

COMMANDS = "bottomless.commands"


def main() -> None:
    """Run the command line."""
    create_app()()


def create_app() -> typer.Typer:
    """The command line with every command that is installed."""
    app = typer.Typer(
        name="bottomless",
        help="Streams that never end, over HTTP.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    # With a callback a lone command keeps its name instead of being the whole program.
    app.callback()(_root)
    app.command("version")(_print_version)
    for entry in sorted(entry_points(group=COMMANDS), key=lambda entry: entry.name):
        try:
            command = entry.load()
        except ImportError as error:
            sys.stderr.write(f"bottomless: the command {entry.name} cannot be loaded: {error}\n")
            continue
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=entry.name)
        else:
            app.command(entry.name)(command)
    return app


def _root() -> None:
    """Streams that never end, over HTTP."""


def _print_version() -> None:
    """Print the version."""
    sys.stdout.write(f"bottomless {version('bottomless')}\n")
