"""The argument FILE of commands that read: a file, or stdin where none is named or `-` is."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, BinaryIO, Final

import typer

from bottomless.cli.inputs.packed import opened

_STDIN: Final = Path("-")


def _named(file: Path | None) -> Path | None:
    if file is None or file == _STDIN:
        return None
    # Not left to typer, whose own check takes `-` for a file that is not there.
    if not file.exists():
        raise typer.BadParameter(f"file {str(file)!r} does not exist.")
    return file


File = Annotated[
    Path | None,
    typer.Argument(
        dir_okay=False,
        readable=True,
        callback=_named,
        help="Default, or as -: stdin.",
    ),
]
"""None for stdin."""


@contextmanager
def opened_input(file: Path | None) -> Iterator[BinaryIO]:
    """Open what a command reads, unpacked where its name says that it is compressed; stdin stays open."""
    with nullcontext(sys.stdin.buffer) if file is None else opened(file) as source:
        yield source
