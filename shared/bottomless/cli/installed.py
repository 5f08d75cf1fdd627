"""Installed: commands that other distributions add to this program, by their entry points."""

import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any


def installed(group: str) -> Iterator[tuple[str, Any]]:
    """Load what is entered under a group: names and commands, in the order of the names.

    What cannot be loaded is named on stderr and left out, so that all other commands work.
    """
    for entry in sorted(entry_points(group=group), key=lambda entry: entry.name):
        try:
            yield entry.name, entry.load()
        except ImportError as error:
            sys.stderr.write(f"bottomless: the command {entry.name} cannot be loaded: {error}\n")
