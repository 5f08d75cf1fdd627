"""Copies of errors, for what tells several callers of one failure."""

from typing import TypeVar

from bottomless.errors import Outcome, StoreError

E = TypeVar("E", bound=StoreError)


def restated(error: E, outcome: Outcome | None = None) -> E:
    """A copy of an error, with another outcome if one is given: one that is kept and raised often
    would grow with every raise."""
    return type(error)(
        error.message,
        code=error.code,
        retryable=error.retryable,
        outcome=error.outcome if outcome is None else outcome,
        retry_after_seconds=error.retry_after_seconds,
        faults=error.faults,
        facts=error.facts,
    )
