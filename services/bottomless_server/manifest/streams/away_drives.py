"""Know since when a verification waits for drives that are away, and when it goes on without them. Pure.

What it knows is kept in the progress of the operation, so a crash lets it wait no longer. Times are those
of a wall clock: one that is set back lets it wait longer by as much, and one that is set ahead shorter.
"""

from collections.abc import Mapping
from typing import Final

from bottomless.guards import guard

WAIT_MS: Final = 60_000
"""How long a verification waits for one drive that is away, in all."""
LOOK_AGAIN_MS: Final = 5_000
"""How long it does nothing before it looks at such a drive again."""


class AwayDrives:
    """Drives beside drive 0 that did not answer, by their numbers, and since when."""

    def __init__(self, progress: Mapping[str, int]) -> None:
        """`progress` is what `noted` said."""
        self._since = {int(number): at for number, at in progress.items()}

    def noted(self) -> dict[str, int]:
        """Tell what the next step has to know."""
        return {str(number): at for number, at in sorted(self._since.items())}

    def waits_for(self, number: int, now: int) -> bool:
        """Whether to wait for a drive that did not answer at `now`, in ms since 1970."""
        return goes_on_waiting(now - self._since.setdefault(number, now))


@guard("the end of a wait for a drive that is verified")
def goes_on_waiting(ms: int) -> bool:
    """Whether a drive is waited for that has been away for so long."""
    return ms < WAIT_MS
