"""The sequences that an instance may give its objects: taken from a block that it reserved before.

So a note needs no coordination. Commits reserve the next block in time; the last few of a block are
kept for notes, which must go on also where nothing can be committed for a while.
"""

from typing import Final

from bottomless.guards import guard

KEPT_COUNT: Final = 16
"""Sequences that only objects with notes alone get: with coordination away there are few of those,
since nothing new is committed."""


class Sequences:
    """What one instance may still put."""

    def __init__(self, reserved: int) -> None:
        self.next = 0
        """The sequence that is given next."""
        self._reserved = reserved

    @property
    def left(self) -> int:
        """How many may be given before more are reserved."""
        return self._reserved - self.next

    @property
    def may_take(self) -> bool:
        """Whether a flush gets a sequence."""
        return may_take(self.left, for_notes=False)

    def note_reserved(self, reserved: int) -> None:
        """Take up what the instance's record says."""
        self._reserved = max(self._reserved, reserved)

    def take(self, *, for_notes: bool = False) -> int | None:
        """Give the next sequence; None where the block is used up."""
        if not may_take(self.left, for_notes=for_notes):
            return None
        self.next += 1
        return self.next - 1


@guard("the sequences that are kept for notes")
def may_take(left: int, *, for_notes: bool) -> bool:
    """Tell whether a sequence may be given while so many are left."""
    return left > (0 if for_notes else KEPT_COUNT)
