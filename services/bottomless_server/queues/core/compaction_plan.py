"""The plan of a compaction in place: which live records go into which gaps, and where the file ends then.

    before   │ A │ dead ...... │ B │ dead ... │ C │ dead │ D │
    plan     the last record goes into the first gap that it fits, until one fits nowhere
    after    │ A │ D │ C │hole │ B │ T

A gap is a longest run without a live record. What is written into one is whole records, then a hole
for what is left of it: so a gap is filled exactly, and the records after it stay where they are.
A file is written in sectors, of which each is old or new after a loss of power. That a gap is one hole,
and later that it holds its new records, is said by its first five bytes: so these must lie in one
sector, and a gap whose first five do not gets nothing.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from bottomless.formats.message_file import HEADER_SIZE, HOLE_SIZE_MIN, RECORD_SIZE_MAX
from bottomless.guards import guard

SECTOR_SIZE: Final = 512


class LiveRecord(NamedTuple):
    """A record that a message needs."""

    msg_id: bytes
    position: int
    size: int


class Filling(NamedTuple):
    """A gap, and the records that go into it, in their new order."""

    position: int
    size: int
    records: tuple[LiveRecord, ...]

    @property
    def filled(self) -> int:
        """Bytes of the records."""
        return sum(record.size for record in self.records)


class CompactionPlan(NamedTuple):
    """What a compaction in place does to a file."""

    fillings: tuple[Filling, ...]
    """In the order of their positions."""
    end: int
    """The size of the file afterwards."""

    @property
    def moves(self) -> list[tuple[LiveRecord, int]]:
        """Each record that moves, with its new position."""
        found = []
        for filling in self.fillings:
            position = filling.position
            for record in filling.records:
                found.append((record, position))
                position += record.size
        return found


def is_candidate(valid: int, size: int, live_share: float) -> bool:
    """Whether so little of a file is needed that it is worth being compacted.

    Its header counts for nothing: of a file that was just written anew all the rest is needed, so it
    is no candidate, whatever the share.
    """
    return valid < (size - HEADER_SIZE) * live_share


def is_enough(plan: CompactionPlan, valid: int, live_share: float) -> bool:
    """Whether a file would not be a candidate again after this plan; else it is better rewritten."""
    return not is_candidate(valid, plan.end, live_share)


@guard("a destination's first bytes in one sector")
def begins_in_one_sector(position: int) -> bool:
    """Whether the first five bytes at a position are all old or all new after a loss of power."""
    return position % SECTOR_SIZE <= SECTOR_SIZE - HOLE_SIZE_MIN


def plan_compaction(live: Sequence[LiveRecord], size: int) -> CompactionPlan:
    """Plan which records of a file of this size move. `live` is in the order of positions."""
    gaps = gaps_of(live, size)
    room = _Room([length if _is_destination(at, length) else 0 for at, length in gaps])
    records: list[list[LiveRecord]] = [[] for _ in gaps]
    end = HEADER_SIZE
    for number in range(len(live) - 1, -1, -1):
        record = live[number]
        chosen = room.first(record.size)
        if chosen is None or gaps[chosen][0] > record.position:
            end = record.position + record.size
            break
        records[chosen].append(record)
        room.take(chosen, record.size)
    fillings = tuple(
        Filling(at, length, tuple(moved))
        for (at, length), moved in zip(gaps, records, strict=True)
        if moved
    )
    end = max([end, *(filling.position + filling.filled for filling in fillings)])
    return CompactionPlan(fillings, end)


def gaps_of(live: Sequence[LiveRecord], size: int) -> list[tuple[int, int]]:
    """Position and size of each longest run without a live record."""
    gaps, position = [], HEADER_SIZE
    for record in live:
        assert record.position >= position, "live records do not overlap"
        if record.position > position:
            gaps.append((position, record.position - position))
        position = record.position + record.size
    assert position <= size, "live records end where the file does"
    if position < size:
        gaps.append((position, size - position))
    return gaps


def _is_destination(position: int, size: int) -> bool:
    return HOLE_SIZE_MIN <= size <= RECORD_SIZE_MAX and begins_in_one_sector(position)


class _Room:
    """How much room each gap has; the first one with enough is found without looking at all."""

    def __init__(self, rooms: Sequence[int]) -> None:
        self._leaves = 1 << max(len(rooms) - 1, 0).bit_length()
        # Each inner node has the largest room below it; the leaves are the gaps.
        self._largest = [0] * self._leaves + [*rooms] + [0] * (self._leaves - len(rooms))
        for node in range(self._leaves - 1, 0, -1):
            self._largest[node] = max(self._largest[2 * node], self._largest[2 * node + 1])

    def first(self, size: int) -> int | None:
        """The number of the first gap with room for a record of this size."""
        if self._largest[1] < size:
            return None
        node = 1
        while node < self._leaves:
            node *= 2
            node += self._largest[node] < size
        return node - self._leaves

    def take(self, number: int, size: int) -> None:
        """Fill so much of a gap."""
        node = self._leaves + number
        self._largest[node] -= size
        while node > 1:
            node //= 2
            self._largest[node] = max(self._largest[2 * node], self._largest[2 * node + 1])
