"""The numbers of a writer's attempts: by them a commit whose reply was lost is told from all others.

Each EXEC that speaks of a flush, and each that decides about a lost one, writes its own number into
the record of the instance. So a record that has the number of the lost commit proves that it was
applied; any other number breaks the watch of that commit for ever.
"""

from collections.abc import Callable

from bottomless.guards import guard
from bottomless.model.names import Uid


class AttemptNumbers:
    """The attempts of one instance. It belongs to the one task that commits as that instance; whoever
    commits, or decides about a lost commit, takes the numbers by itself."""

    def __init__(
        self, instance: Uid, generation: int, is_held: Callable[[], bool], checked: int
    ) -> None:
        self.instance = instance
        self.generation = generation
        self.is_held = is_held
        """Tells whether the writer's lease was held without a break from the begin until now, by
        what it knows itself: then nobody can have taken its record away."""
        self.checked = checked
        """The run of the coordination store that was compared with the bucket (`check_wal`)."""
        self.attempt = 0
        """The `attempt` that the record has, as far as the writer knows."""
        self.lost: int | None = None
        """The number of a commit of which nobody knows whether it was applied. Nothing else is
        committed before that is decided."""
        self._lost_from = 0
        self._used = 0

    @guard("a number of its own for each attempt")
    def take(self) -> int:
        """Take the number of the next EXEC. It is never given again, whatever becomes of that one."""
        self._used += 1
        return self._used

    def lose(self, attempt: int, sequence: int) -> None:
        """Note that nobody knows whether the commit with this number was applied; `sequence` is the
        lowest of its objects."""
        self.lost, self._lost_from = attempt, sequence

    @guard("a commit that nobody knows of is not settled")
    def settled(self, sequence: int) -> int:
        """Tell what counts as settled where nothing else below `sequence` is left to decide.

        What nobody knows of may be stored, and has no notes. Where coordination was lost before it
        was decided it never will be, and the notes of this writer go on.
        """
        return sequence if self.lost is None else min(sequence, self._lost_from)

    def decided(self, attempt: int) -> None:
        """Note which number the record has now."""
        self.attempt, self.lost = attempt, None
