"""How much is fetched of each fragment within an hour, for those that were fetched last. Pure.

Time comes in slots of five minutes, so what is told of an hour may be of 55 minutes. What is moved
to another drive has another key there, and is counted anew.
"""

from collections import OrderedDict, deque
from itertools import islice
from typing import Final, NamedTuple

from bottomless.formats.keys import fragment_of_key

FRAGMENT_COUNT_MAX: Final = 10_000
"""Fragments that are counted: some 600 bytes each."""
SLOT_MS: Final = 300_000
SLOT_COUNT: Final = 12
"""An hour."""


class Fetched(NamedTuple):
    """What was fetched of a fragment within an hour."""

    object_key: str
    drive: int
    """The number of the drive on which it lies."""
    size: int
    """Bytes, of the same ranges as often as they were fetched."""


class _Slot(NamedTuple):
    number: int
    size: int


class Heat:
    """Bytes by fragment, the least recently fetched one first to be forgotten."""

    def __init__(self, fragment_count_max: int = FRAGMENT_COUNT_MAX) -> None:
        self._fragment_count_max = fragment_count_max
        self._slots: OrderedDict[tuple[str, int], deque[_Slot]] = OrderedDict()
        self._untold: dict[tuple[str, int], None] = {}
        """Fragments that wait to be told, the one that waits longest first."""

    def __len__(self) -> int:
        """How many fragments are counted."""
        return len(self._slots)

    def add(self, object_key: str, drive: int, size: int, now: int) -> None:
        """Count bytes that were fetched at `now`, in ms of a clock that never goes back.

        Of what is no fragment, as a WAL object, nothing is counted.
        """
        if size == 0 or fragment_of_key(object_key) is None:
            return
        name = object_key, drive
        slots = self._slots.setdefault(name, deque())
        self._slots.move_to_end(name)
        number = now // SLOT_MS
        if slots and slots[-1].number == number:
            size += slots.pop().size
        slots.append(_Slot(number, size))
        _forget_old(slots, number)
        self._untold.setdefault(name)
        if len(self._slots) > self._fragment_count_max:
            gone, _ = self._slots.popitem(last=False)
            self._untold.pop(gone, None)

    def take(self, now: int, count_max: int) -> list[Fetched]:
        """What was fetched, at `now`, of those fragments of which something was fetched since they were
        taken last, the most first. What is left over comes later: half of the places are for those that
        wait longest, or a few that are read all the time would hide all others for ever."""
        number = now // SLOT_MS
        found = []
        for name in self._untold:
            slots = self._slots[name]
            _forget_old(slots, number)
            found.append(Fetched(*name, sum(slot.size for slot in slots)))
        # By the key where as much was fetched, so that a set of strings has one order.
        found.sort(key=lambda one: (-one.size, one.object_key, one.drive))
        names = {one[:2] for one in found[: count_max - count_max // 2]}
        names.update(islice((one for one in self._untold if one not in names), count_max // 2))
        for name in names:
            del self._untold[name]
        return [one for one in found if one[:2] in names and one.size]


def _forget_old(slots: deque[_Slot], number: int) -> None:
    while slots and slots[0].number <= number - SLOT_COUNT:
        slots.popleft()
