"""Environment variables whose name says that they are ours, and what a wrong name may mean.

Servers and clients may share one environment, so each side ignores what the other reads. Pure.
"""

import re
from collections.abc import Collection
from difflib import get_close_matches
from typing import Final

PREFIX: Final = "BOTTOMLESS_"
OF_CLIENTS: Final = frozenset(
    PREFIX + name for name in ("URL", "TOKEN", "TOKEN_FILE", "PROFILE", "CA_FILE", "COMPLETE")
)
"""The variables that the command line and the Python client read."""

_SLIP: Final = 0.9
"""Likeness of whole names of which one is a slip of the finger, as two exchanged letters are."""


def nearest_variable(name: str, known: Collection[str]) -> str | None:
    """Guess which of the known variables an unknown name was meant to be; None without a guess."""
    rests = [one.removeprefix(PREFIX) for one in known]
    meant = get_close_matches(name.upper().removeprefix(PREFIX), rests, n=1)
    return PREFIX + meant[0] if meant else None


def slip_of(name: str) -> str | None:
    """Find the client's variable that a name was surely meant to be.

    It is None for a name that is right, and for one that is not ours.
    """
    if name in OF_CLIENTS or not name.upper().startswith(PREFIX):
        return None
    meant = get_close_matches(name.upper(), OF_CLIENTS, n=1, cutoff=_SLIP)
    return meant[0] if meant else None


def shown_variable(name: str) -> str:
    """Make a name safe to show: at most 100 characters, all but letters, digits and `_` as `?`."""
    return re.sub(r"[^A-Za-z0-9_]", "?", name)[:100]
