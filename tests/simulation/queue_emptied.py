"""Accounts of queues whose messages go in other ways than by their consumers: purged, deleted with their queue,
or redriven from where the dead letters are.

Whether a purge or a deletion that had no answer comes to pass is not known for the rest of a run. Of all
others is: what was stored before one began is delivered to nobody who asks after its answer, and what was
published after its answer is not lost by it.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from support.queue_account import Message, QueueAccount, QueueExpected, QueuePlan, Wrong


class Emptying(NamedTuple):
    """What was there for certain when somebody began to empty a queue."""

    values: frozenset[str]
    queue_ids: frozenset[str]


@dataclass
class EmptiedExpected(QueueExpected):
    """A queue that is purged, deleted, and made anew under its name."""

    queue_ids: list[str] = field(default_factory=list)
    buried: set[str] = field(default_factory=set)
    """Ids of queues that were deleted for certain."""
    gone: set[str] = field(default_factory=set)
    """Values that were in it when it was emptied for certain."""
    perhaps: set[str] = field(default_factory=set)
    """Values of which nobody knows whether they were."""
    under_way: int = 0
    unsure: bool = False
    """Whether something is under way for the rest of the run, as far as anybody knows."""
    successors: int = 0
    """So many queues may follow the last one that is known."""

    def begin(self) -> Emptying:
        """Somebody is about to ask for a purge or a deletion."""
        self.under_way += 1
        return Emptying(frozenset(self.stored), frozenset(self.queue_ids))

    def end(self, emptying: Emptying, *, done: bool | None, deleted: bool = False) -> None:
        """It was answered: done or not; None where nobody knows."""
        self.under_way -= 1
        if done is False:
            return
        # Also what was published while it was under way.
        self.perhaps |= self.asked
        if done is None:
            self.unsure = True
            return
        self.gone |= emptying.values
        self.over |= emptying.values
        if deleted:
            self.buried |= emptying.queue_ids
            self.successors += 1

    @property
    def may_be_missing(self) -> bool:
        """Whether it may be deleted at the moment."""
        return bool(self.under_way or self.unsure or self.buried)

    def note_id(self, queue_id: str) -> None:
        """An answer named the queue.

        Raises:
            Wrong: it is another one than before, and nobody has deleted that.
        """
        if queue_id in self.queue_ids:
            return
        if self.queue_ids and not (self.successors or self.under_way or self.unsure):
            raise Wrong(f"{self.name}: was {self.queue_ids[-1]}, and is {queue_id}")
        self.successors = max(self.successors - 1, 0)
        self.queue_ids.append(queue_id)
        self.queue_id = queue_id

    def know(self, value: str, message_id: str) -> Message:
        """A message with this value has this id; another one in each queue that may have got it."""
        if self._may_be_gone(value):
            self.forget_id(value)
        return super().know(value, message_id)

    def _may_be_gone(self, value: str) -> bool:
        return bool(value in self.perhaps or self.under_way or self.unsure)

    def check_ends(
        self,
        totals: Mapping[str, int] | None,
        dead: Mapping[str, str],
        archived: Mapping[str, str],
        loose: Collection[str],
    ) -> None:
        """How did each message end of which that is known?"""
        del totals
        unknown = {*loose, *self.perhaps, *self.gone, *(self.asked if self.unsure else ())}
        known = {value: reason for value, reason in dead.items() if value not in unknown}
        super().check_ends(None, known, archived, unknown)


@dataclass
class MovedExpected(QueueExpected):
    """A queue whose messages are redriven, or that gets such ones: each time they have another id."""

    def know(self, value: str, message_id: str) -> Message:
        """A message with this value has this id now."""
        self.forget_id(value)
        return super().know(value, message_id)

    def describe(self, told: Mapping[str, int]) -> None:
        """No total counts what was redriven, so that is left out of the sums."""


class StormAccount(QueueAccount):
    """What one ledger was told of its queues; those of `emptied` and `moved` are accounts of here."""

    def __init__(
        self,
        plans: Collection[QueuePlan],
        sent: dict[str, dict[str, object]],
        emptied: str,
        moved: tuple[str, str],
    ) -> None:
        """`moved` are the queue that has dead letters, and the one from which they are redriven."""
        kinds = {emptied: EmptiedExpected, **dict.fromkeys(moved, MovedExpected)}
        super().__init__(list(plans), sent, kinds)
        found = self.queues[emptied]
        assert isinstance(found, EmptiedExpected)
        self.emptied = found
        self.moved = [self.queues[name] for name in moved]

    def check_moved(self, loose: Collection[str]) -> None:
        """Whatever was stored was done with, in the one queue or in the other.

        Raises:
            Wrong: something is lost.
        """
        there = [message for queue in self.moved for message in queue.messages.values()]
        done = {message.value for message in there if message.asked}
        for value in self.moved[0].stored.keys() - done - set(loose):
            raise Wrong(f"{self.moved[0].name}: {value[:40]} was stored, and is lost")
