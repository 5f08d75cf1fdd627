"""Growths of super streams that have begun and not ended, as this process has looked at them.

Any process may do the next step of a growth, so one that was not looked at for some time here may have
ended elsewhere: it does not count.
"""

from typing import Final, NamedTuple

from cachetools import LRUCache

_KNOWN_COUNT_MAX: Final = 1_000
_LOOKED_MS: Final = 180_000
"""Three times as long as the longest pause between two steps of a growth."""


class _Looked(NamedTuple):
    begun_at: int
    """Milliseconds since 1970."""
    looked_at: int
    """The time of the last look, in ms of a clock that never goes back."""


class UnendedGrowths:
    """What one process knows of growths."""

    def __init__(self) -> None:
        self._known: LRUCache[str, _Looked] = LRUCache(_KNOWN_COUNT_MAX)

    def note(self, operation_id: str, begun_at: int, elapsed: int) -> None:
        """A step of a growth is done now."""
        self._known[operation_id] = _Looked(begun_at, elapsed)

    def end(self, operation_id: str) -> None:
        """A growth has ended."""
        self._known.pop(operation_id, None)

    def oldest_ms(self, now: int, elapsed: int) -> int:
        """The age of the oldest of them, in ms; 0 if there is none."""
        looked = [one for one in self._known.values() if elapsed - one.looked_at < _LOOKED_MS]
        return max((now - one.begun_at for one in looked if one.begun_at < now), default=0)
