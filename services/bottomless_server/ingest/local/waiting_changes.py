"""The changes of what a stream knows of its producers that wait, and which of them one round writes.

All that wait are decided against what is committed, and what they write shares one chunk and its
sync. A name is changed once in a round: a second change of it is decided anew in the next round,
when it is known what became of the first. A change that is refused, or that has nothing to write,
is answered here, and is nothing to the others.

On the record's path: beside it; asked by appender.py.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from bottomless.errors import StoreError
from bottomless.guards import guard
from bottomless.model.chunk import AppendMode, TrackedEntry
from bottomless_server.core.tracking.tracking import Tracking
from bottomless_server.ingest.producers.places import Places
from bottomless_server.ingest.records.conditions import FromProducer
from bottomless_server.runtime.base.without_frames import without_frames

_COUNT_MAX: Final = 256
"""Changes in one round: what they write fits into one chunk many times over."""
_LEFT_COUNT_MAX: Final = 64
"""How many changes one round steps over, so that rounds stay cheap."""

StateChange = Callable[[Tracking, int, Places], Sequence[TrackedEntry]]
"""Makes the entries to be written of a producer, from what is known, the time and the places that
the round still has; or raises why there are none."""


@dataclass(slots=True, eq=False)
class WaitingChange:
    """A change, and where its answer goes."""

    change: StateChange
    answer: asyncio.Future[None]

    def settle(self, error: StoreError | None = None) -> None:
        """Answer that it is durable, or why it is not."""
        if self.answer.done():
            return
        if error is None:
            self.answer.set_result(None)
        else:
            self.answer.set_exception(without_frames(error))


@dataclass(slots=True, eq=False)
class ChosenChanges:
    """The changes of one round, and all entries that it writes for them."""

    changes: list[WaitingChange]
    entries: list[TrackedEntry]

    def settle(self, error: StoreError | None = None) -> None:
        """Give all of them the same answer."""
        for one in self.changes:
            one.settle(error)


class WaitingChanges:
    """The changes of one stream that wait."""

    def __init__(self) -> None:
        self._waiting: deque[WaitingChange] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, change: StateChange) -> asyncio.Future[None]:
        """Put a change at the end; its future tells when it is durable."""
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(WaitingChange(change, answer))
        return answer

    def choose(self, tracking: Tracking, timestamp: int) -> ChosenChanges:
        """Take out what the next round writes, and answer changes that need no round."""
        chosen, left = ChosenChanges([], []), list[WaitingChange]()
        places, changed = Places(tracking), set[str]()
        try:
            while (
                self._waiting and len(chosen.changes) < _COUNT_MAX and len(left) < _LEFT_COUNT_MAX
            ):
                left.append(self._waiting.popleft())
                try:
                    entries = left[-1].change(tracking, timestamp, places)
                except StoreError as error:
                    left.pop().settle(error)
                    continue
                if not entries:
                    left.pop().settle()
                    continue
                names = {one.producer_id for one in entries if one.producer_id is not None}
                if not chosen.changes or may_share(names, changed, places):
                    changed |= names
                    for name in names:
                        places.take(FromProducer(name, 0, AppendMode.PLAIN))
                    chosen.entries += entries
                    chosen.changes.append(left.pop())
        except BaseException:
            # A bug: nobody may be forgotten, so all of them wait again, to be refused.
            left = chosen.changes + left
            raise
        finally:
            self._waiting.extendleft(reversed(left))
        return chosen

    def refuse_all(self, error: StoreError) -> None:
        """Refuse all that wait, for one reason."""
        while self._waiting:
            self._waiting.popleft().settle(error)


@guard("one change of a name in a round")
def may_share(names: set[str], changed: set[str], places: Places) -> bool:
    """Whether a change may be written with those before it: none of them has changed one of its
    names, or was given the place of one."""
    return names.isdisjoint(changed) and all(places.producers.fits(name) for name in names)
