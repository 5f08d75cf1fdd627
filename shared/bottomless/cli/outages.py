"""Outages, as a command that goes on over them tells of them."""

from bottomless.cli.failures import tell
from bottomless.errors import StoreError


class Outage:
    """Says once that the server is away, and once that it is back."""

    def __init__(self) -> None:
        self._on = False

    def note(self, error: StoreError) -> None:
        """Note that something failed and is done again."""
        # An answer that the server ended in good order is none.
        if error.retry_after_seconds == 0 or self._on:
            return
        self._on = True
        tell(f"{error.message} ({error.code}); waiting for it")

    def over(self) -> None:
        """Note that something has come."""
        if self._on:
            self._on = False
            tell("connected again")
