"""Variables of the environment whose name says that they are ours, and what a wrong name means.

Servers and clients may share one environment, so each side lets be what the other reads. Pure.
"""

import re
from collections.abc import Collection
from difflib import get_close_matches
from typing import Final

PREFIX: Final = "BOTTOMLESS_"
OF_CLIENTS: Final = frozenset(
    PREFIX + name for name in ("URL", "TOKEN", "TOKEN_FILE", "PROFILE", "CA_FILE", "COMPLETE")
)
"""What the command line and the Python client read."""

_SLIP: Final = 0.9
"""Likeness of whole names of which one is a slip of the finger, as two exchanged letters are."""


def nearest_variable(name: str, known: Collection[str]) -> str | None:
    """Which of the known names a name that is none may have meant; a guess."""
    rests = [one.removeprefix(PREFIX) for one in known]
    meant = get_close_matches(name.upper().removeprefix(PREFIX), rests, n=1)
    return PREFIX + meant[0] if meant else None


def slip_of(name: str) -> str | None:
    """The variable of a client that a name surely meant; None of one that is right, or another's."""
    if name in OF_CLIENTS or not name.upper().startswith(PREFIX):
        return None
    meant = get_close_matches(name.upper(), OF_CLIENTS, n=1, cutoff=_SLIP)
    return meant[0] if meant else None


def shown_variable(name: str) -> str:
    """A name as a line can show it."""
    return re.sub(r"[^A-Za-z0-9_]", "?", name)[:100]
