"""Decide whether the data directory of a node is lost, by looks at one of its files. Pure.

One look that does not find the file proves little: something may be in the midst of putting the
directory back, or of mounting it. Two in a row do. A look that fails for another reason says
nothing about the file, and what was seen before it no longer counts.
"""

from enum import Enum, auto
from typing import Final

LOOKS_UNTIL_LOST: Final = 2
"""Looks in a row that do not find the file."""
AGAIN_SECONDS: Final = 0.2
"""Until the look after one that did not find it."""


class Seen(Enum):
    """What a look finds at the path of a file that this process has open."""

    SAME = auto()
    """The file itself."""
    GONE = auto()
    """No file, or another one."""
    UNKNOWN = auto()
    """The system did not say it."""


class DirectoryLooks:
    """The looks at one directory so far."""

    def __init__(self) -> None:
        self._gone_count = 0

    @property
    def is_doubted(self) -> bool:
        """Whether the last look did not find the file."""
        return self._gone_count > 0

    def is_lost(self, seen: Seen) -> bool:
        """Take up one look more, and return whether the directory is lost by now."""
        self._gone_count = self._gone_count + 1 if seen is Seen.GONE else 0
        return self._gone_count >= LOOKS_UNTIL_LOST
