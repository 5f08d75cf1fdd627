"""The numbers of a writer's attempts: by them a commit whose reply was lost is told from all others.

Each EXEC that speaks of a flush, and each that decides about a lost one, writes its own number into
the record of the instance. So a record that has the number of the lost commit proves that it was
applied; any other number breaks the watch of that commit for ever.

Even numbers say as well that nothing of the writer is missing in the store. An odd one says that of
what it has acknowledged alone: a commit whose reply was lost with an earlier run of the store may have
been seen by readers, and is not there any more. Its pieces come first of all, at their offsets. A process
writes as two instances, and others go by either: while one of them may owe something, both are odd.
"""

from collections.abc import Callable, Iterable
from typing import Final

from bottomless.guards import guard
from bottomless.model.names import Uid

NOTHING_COMPARED: Final = -1
"""What no connection is."""


class AttemptNumbers:
    """The attempts of one instance. It belongs to the one task that commits as that instance; whoever
    commits, or decides about a lost commit, takes the numbers by itself."""

    def __init__(
        self,
        instance: Uid,
        generation: int,
        is_held: Callable[[], bool],
        checked: int,
        run_id: str = "",
        living: Callable[[], Iterable["AttemptNumbers"]] = tuple,
    ) -> None:
        """`living` tells the numbers of all instances as which the process writes."""
        self.instance = instance
        self.generation = generation
        self.is_held = is_held
        """Tells whether the writer's lease was held without a break from the begin until now, by
        what it knows itself: then nobody can have taken its record away."""
        self.checked = checked
        """The connection to the coordination store that was compared with the bucket (`check_wal`)."""
        self.run_id = run_id
        """The run of the store that this connection is to."""
        self.attempt = 0
        """The `attempt` that the record has, as far as the writer knows."""
        self.lost: int | None = None
        """The number of a commit of which nobody knows whether it was applied. Nothing else is
        committed before that is decided."""
        self.owes = False
        """Whether a commit may have been seen that the store has not got any more: it is made again
        before anything else."""
        self.under_way = False
        """Whether an EXEC of a commit was sent, or will be, and nobody knows yet what became of it."""
        self._living = living
        self._whole = True
        """Whether all others were heard of which may have to repeat a commit too, before `checked`."""
        self._may_be_seen = False
        """Whether the lost commit had pieces."""
        self._lost_from = 0
        self._lost_with = ""
        """The run of the store that the lost commit was sent to."""
        self._used = 0

    @guard("a number of its own for each attempt")
    def take(self, *, owing: bool = False) -> int:
        """Take the number of the next EXEC: an odd one while the process owes something. It is never
        given again, whatever becomes of that EXEC."""
        self._used += 1
        return 2 * self._used - (owing or owes_beside(self, self._living()))

    def lose(self, attempt: int, sequence: int, *, may_be_seen: bool = True) -> None:
        """Note that nobody knows whether the commit with this number was applied; `sequence` is the
        lowest of its objects, and nothing can have been seen of one that had no pieces."""
        self.lost, self._lost_from, self._lost_with = attempt, sequence, self.run_id
        self._may_be_seen = may_be_seen

    def compared(self, checked: int, run_id: str, *, whole: bool = True) -> None:
        """Note that another connection was compared with the bucket, and which run of the store it
        is to. Where that is not `whole`, others may have to repeat commits as well: then it is good
        for what this writer repeats, and for nothing else."""
        self.checked, self.run_id, self._whole = checked, run_id, whole

    @property
    def owes_lost(self) -> bool:
        """Whether it may have to repeat a commit."""
        return self.owes or (self.lost is not None and self._may_be_seen)

    @property
    def may_owe(self) -> bool:
        """Whether it may have to repeat a commit, or may find out that it has to."""
        return self.owes_lost or self.under_way

    @property
    def is_outlived(self) -> bool:
        """Whether the run of the store is over that the lost commit was sent to. If the next one does
        not have it, it may have been there all the same."""
        lost = self.lost is not None and self._may_be_seen
        return lost and self._lost_with != self.run_id

    @guard("a commit that nobody knows of is not settled")
    def settled(self, sequence: int) -> int:
        """Tell what counts as settled where nothing else below `sequence` is left to decide.

        What nobody knows of may be stored, or have been, and has no notes. Where coordination was lost before it
        was decided it never will be, and the notes of this writer go on.
        """
        decided = self.lost is None and not self.owes
        return sequence if decided else min(sequence, self._lost_from)

    def decided(self, attempt: int) -> None:
        """Note which number the record has now: that of a commit. Nothing is lost, or owed."""
        self.attempt, self.lost, self.owes = attempt, None, False
        self._end_of_part()

    def shown(self, attempt: int) -> None:
        """Note which number the record has now; what is lost, or owed, is so still."""
        self.attempt = attempt

    def bumped(self, attempt: int) -> None:
        """Note which number the record has now; the lost commit is not there, and never will be."""
        self.attempt, self.owes, self.lost = attempt, self.owes or self.is_outlived, None
        if not self.owes:
            self._end_of_part()

    def _end_of_part(self) -> None:
        """What was compared for a repeat alone counts for nothing after it."""
        if ends_with_repeat(self._whole):
            self.checked, self._whole = NOTHING_COMPARED, True


@guard("others that may have to repeat something too, heard before anything new")
def ends_with_repeat(whole: bool) -> bool:
    """Tell whether the store has to be compared again once a writer has repeated what it owed: it
    did not wait for others that may owe something as well, or they would wait for each other."""
    return not whole


@guard("what a process owes as its other instance, told with each number")
def owes_beside(numbers: AttemptNumbers, living: Iterable[AttemptNumbers]) -> bool:
    """Tell whether another instance of the process may have to repeat a commit: others take any even
    number of an address for the word of all instances there."""
    return any(one.may_owe for one in living if one is not numbers)


def is_owing(attempt: int) -> bool:
    """Tell whether whoever wrote this number may have to repeat a commit that was seen."""
    return attempt % 2 == 1
