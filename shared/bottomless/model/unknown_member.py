"""The sentence about a member that is not known: its name where that is harmless, and the known
ones.

Errors carry no input, since what was sent by mistake may be a secret. A name of a few letters is no
secret, and neither is one that differs from a known name by a typing error. Keys and tokens contain
digits, so any other name that has some is not repeated. Pure.
"""

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Final

_PLAIN: Final = re.compile(r"[A-Za-z][A-Za-z_-]{0,31}", re.ASCII)
_SLIPPED: Final = re.compile(r"[A-Za-z0-9_-]{1,32}", re.ASCII)
_LIKENESS: Final = 0.75
"""From this likeness on a name counts as a slip: one wrong, missing or exchanged letter in a name
of four or more."""


def unknown_member(given: Iterable[object], known: Sequence[str]) -> str:
    """Make one sentence about the unknown members `given`; it names the first safe to name."""
    listed = f"known here: {', '.join(known)}" if known else "none is known here"
    for name in given:
        if not isinstance(name, str) or not _SLIPPED.fullmatch(name):
            continue
        near = get_close_matches(name, known, n=1, cutoff=_LIKENESS)
        if near:
            return f"there is no member {name}; {near[0]} is known; {listed}"
        if _PLAIN.fullmatch(name):
            return f"there is no member {name}; {listed}"
    return f"there is a member that is not known; {listed}"
