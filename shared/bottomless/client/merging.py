"""Merging: records of several partitions in the order of their timestamps. Pure.

A partition has an order, and a super stream has none: a record that is appended to one partition
may have an older timestamp than one that was read of another. So records are held back only while a
partition that is not caught up has nothing in hand: of what was there when reading began the order
is that of the timestamps, and what comes later is given as it comes.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heapreplace

from bottomless.client.record import Record


class _Hand:
    """What is in hand of one partition."""

    def __init__(self, position: int, until: int) -> None:
        self.records: deque[Record] = deque()
        self.position = position
        """The offset after what was given."""
        self.next_offset = position
        """The offset after what is in hand."""
        self.until = until
        self.ended = False

    @property
    def caught_up(self) -> bool:
        """Whether nobody waits for more of it."""
        return self.ended or self.next_offset >= self.until


class Merge:
    """Puts the records of partitions into one order; a partition is named by its index."""

    def __init__(self) -> None:
        self._hands: dict[int, _Hand] = {}

    def begin(self, partition: int, position: int, until: int) -> None:
        """Have records of a partition from an offset on; its older ones end at `until`."""
        assert partition not in self._hands, "a partition begins once"
        self._hands[partition] = _Hand(position, until)

    def add(self, partition: int, records: Sequence[Record], next_offset: int) -> None:
        """Take the next records of a partition, which end before `next_offset`."""
        hand = self._hands[partition]
        hand.records.extend(records)
        hand.next_offset = next_offset
        if not hand.records:
            hand.position = next_offset

    def end(self, partition: int) -> None:
        """Note that no more of a partition will come."""
        self._hands[partition].ended = True

    def empty(self) -> list[int]:
        """The partitions of which nothing is in hand and more may come."""
        return [index for index, hand in self._hands.items() if not hand.records and not hand.ended]

    def take(self) -> list[Record]:
        """Take out what can be given now, in its order; each record says its partition."""
        return list(self._given())

    @property
    def positions(self) -> dict[int, int]:
        """The offset after what was given, of each partition."""
        return {index: hand.position for index, hand in self._hands.items()}

    def _given(self) -> Iterator[Record]:
        hands = self._hands
        if any(not hand.records and not hand.caught_up for hand in hands.values()):
            return
        heads = [
            (hand.records[0].timestamp, index) for index, hand in hands.items() if hand.records
        ]
        heapify(heads)
        while heads:
            index = heads[0][1]
            hand = hands[index]
            record = hand.records.popleft()
            record["partition"] = index
            hand.position = record.offset + 1
            yield record
            if hand.records:
                heapreplace(heads, (hand.records[0].timestamp, index))
                continue
            # What lies after the last record, such as a gap, is passed too.
            hand.position = hand.next_offset
            heappop(heads)
            if not hand.caught_up:
                # What comes next of it may be older than what the others have.
                return
