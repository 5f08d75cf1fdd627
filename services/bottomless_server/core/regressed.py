"""Answers where coordination was lost or is old, where more than one floor gives them.

Each of them names the command that mends it: whoever reads it may never have heard of a rebuild.
"""

from typing import Final

from bottomless.errors import Code, Unavailable

REBUILD: Final = "bottomless admin rebuild"
"""The command of the operator."""
LOST: Final = "the coordination store was lost, or went back"


def coordination_lost(fact: str = LOST) -> Unavailable:
    """The answer where coordination is empty, or older than the bucket: a rebuild mends that."""
    return _regressed(f"{fact}; an operator has to run `{REBUILD}`")


def coordination_outdated(fact: str) -> Unavailable:
    """The answer where coordination is an older copy, with the generation of the bucket all the
    same: a rebuild takes place on an empty store only."""
    return _regressed(f"{fact}; an operator has to empty it and run `{REBUILD}`")


def _regressed(message: str) -> Unavailable:
    return Unavailable(message, code=Code.COORDINATION_REGRESSED, retryable=False)
