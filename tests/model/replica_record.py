"""The record of a stream in coordination, as transactions see it: WATCH with its reads, and EXEC.

A transaction whose reply was lost has happened, or never happens, or happens later: then only if nobody
has written since what it watched. Whoever asked for it knows nothing of that.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, NamedTuple

from bottomless.model.names import NodeId
from bottomless.model.stream import StreamRecord

LATE_COUNT_MAX: Final = 8
Change = Callable[[StreamRecord], StreamRecord]


class Fate(Enum):
    """What becomes of a transaction."""

    DONE = 0
    LOST = 1
    """It happens, and nobody hears of it."""
    LATE = 2
    """It is on its way when whoever asked gives up."""
    NEVER = 3


class NoReply(Exception):
    """Nobody knows what became of it."""


class _Asked(NamedTuple):
    watched: tuple[tuple[str, int], ...]
    record: StreamRecord
    then: Callable[[], None]


def _nothing() -> None: ...


class SharedRecord:
    def __init__(self, record: StreamRecord) -> None:
        self.record = record
        self.late: list[_Asked] = []
        self.landed_count = 0
        self._writes: Counter[str] = Counter()

    def transact(
        self,
        change: Change,
        fate: Fate = Fate.DONE,
        leases: Sequence[NodeId] = (),
        then: Callable[[], None] = _nothing,
    ) -> StreamRecord:
        """Change the record, watching it and leases; `then` is called when it is changed.

        Raises:
            NoReply, and what `change` raises.
        """
        made = change(self.record)
        if fate is Fate.LATE:
            watched = tuple((key, self._writes[key]) for key in ("record", *leases))
            self.late.append(_Asked(watched, made, then))
            del self.late[:-LATE_COUNT_MAX]
        elif fate is not Fate.NEVER:
            self._write(made)
            then()
        if fate is not Fate.DONE:
            raise NoReply
        return made

    def land(self, which: int) -> None:
        """One that was late arrives, any of them."""
        if not self.late:
            return
        asked = self.late.pop(which % len(self.late))
        if all(self._writes[key] == count for key, count in asked.watched):
            self.landed_count += 1
            self._write(asked.record)
            asked.then()

    def touch(self, lease: NodeId) -> None:
        """A lease was taken: transactions that watch it fail."""
        self._writes[lease] += 1

    def _write(self, record: StreamRecord) -> None:
        self.record = record
        self._writes["record"] += 1
