"""What producers sent and were told, what readers saw, and what of it cannot be.

It knows requests and answers alone. A record is a producer and a number; its value follows from
both, so that memory holds one number a record, however long a run is.

- A strict producer sends a number again until it is acknowledged, so all of its numbers are in
  the stream, once and in order. However it tells the stream its numbers: the same holds.
- A plain producer sends a number once. If it was refused with the outcome `none`, it is not in
  the stream; else it is there at most once, and wherever it arrived: one that got no answer may
  have been under way for long, and been overtaken.
"""

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, auto
from types import MappingProxyType
from typing import Final

from support.numbered_records import parse, split

FAULT_COUNT_MAX: Final = 30


class Mode(Enum):
    """How a strict producer tells the stream its numbers."""

    DENSE = auto()
    """The first of each append."""
    HIGHWATER = auto()
    """Each with its record."""
    TXN = auto()
    """One for each append."""


class Ledger:
    """Of one stream. Every method may be called from any thread."""

    def __init__(
        self,
        name: str,
        strict: Sequence[int],
        plain: Sequence[int],
        modes: Mapping[int, Mode] = MappingProxyType({}),
    ) -> None:
        self.name = name
        self.path = f"/v1/streams/{name}"
        self.stream_id = ""
        self.strict = tuple(strict)
        self.plain = tuple(plain)
        self.modes = modes
        """Of strict producers that do not say just the first number of each append."""
        self.acknowledged: dict[int, int] = {}
        """Records by their offsets."""
        self.refused: set[int] = set()
        self.sent = Counter[int]()
        """By producer: numbers below it were sent at least once."""
        self.seen: list[int] = []
        """What the follower was shown, from offset 0 on without a hole."""
        self.looks = 0
        """Records that were shown to who reads somewhere."""
        self.unknown = 0
        self.replayed = 0
        self.answers = Counter[str]()
        self.faults: list[str] = []
        self._next = Counter[int]()
        """By strict producer: the number that the follower has to see next."""
        self._plain_seen: set[int] = set()
        self._lock = threading.Lock()

    def fault(self, what: str) -> None:
        with self._lock:
            self._fault(what)

    def _fault(self, what: str) -> None:
        if len(self.faults) < FAULT_COUNT_MAX:
            self.faults.append(f"{self.name}: {what}")

    def note_acknowledged(self, first_offset: int, codes: Iterable[int]) -> None:
        with self._lock:
            for offset, code in enumerate(codes, first_offset):
                if self.acknowledged.setdefault(offset, code) != code:
                    self._fault(f"offset {offset} was acknowledged to two")
                if offset < len(self.seen) and self.seen[offset] != code:
                    self._fault(f"offset {offset} was acknowledged, and seen with another record")

    def note_refused(self, codes: Iterable[int]) -> None:
        with self._lock:
            self.refused.update(codes)

    def note_answer(self, words: str) -> None:
        with self._lock:
            self.answers[words] += 1

    def note_followed(self, records: Sequence[tuple[int, str]]) -> None:
        """What comes next of the stream, as the follower was shown it."""
        with self._lock:
            for offset, value in records:
                if offset != len(self.seen):
                    self._fault(f"after offset {len(self.seen) - 1} came {offset}")
                    return
                code = parse(value)
                if code is None:
                    self._fault(f"nobody sent what stands at offset {offset}: {value[:60]!r}")
                    return
                self._check_next(offset, code)
                self.seen.append(code)

    def _check_next(self, offset: int, code: int) -> None:
        producer, number = split(code)
        expected = self._next[producer]
        if producer not in self.strict:
            if code in self._plain_seen:
                self._fault(f"{producer} {number} is doubled at offset {offset}")
            self._plain_seen.add(code)
        elif number < expected:
            self._fault(f"{producer} {number} is doubled, or out of order, at offset {offset}")
        elif number > expected:
            self._fault(f"{producer} {expected} is missing before offset {offset}")
        if number >= self.sent[producer]:
            self._fault(f"{producer} {number} at offset {offset} was never sent")
        told = self.acknowledged.get(offset, code)
        if told != code:
            self._fault(f"offset {offset} was acknowledged for {split(told)}, and holds {code}")
        self._next[producer] = number + 1

    def note_looked(self, offset: int, records: Sequence[tuple[int, str]]) -> None:
        """What was shown to somebody who reads from `offset` on."""
        with self._lock:
            for place, (found, value) in enumerate(records, offset):
                if found != place:
                    self._fault(f"asked for offset {place}, {found} came")
                    return
                code = parse(value)
                known = self.seen[found] if found < len(self.seen) else self.acknowledged.get(found)
                if code is None or known not in (None, code):
                    self._fault(f"offset {found} was read as {value[:40]!r}, and not as {known}")
            self.looks += len(records)

    def check_all(self) -> None:
        """The follower has seen the whole stream, and every strict producer knows its outcome.

        What it has seen is then dense, in order and nobody's invention, see above. So what is
        left is whether all of it is there that has to be, and nothing that was refused.
        """
        lost = [offset for offset, code in self.acknowledged.items() if self._at(offset) != code]
        if lost:
            self.fault(f"{len(lost)} acknowledged records are lost, the first at {min(lost)}")
        for producer in self.strict:
            if self._next[producer] != self.sent[producer]:
                self.fault(
                    f"{producer} sent {self.sent[producer]}, {self._next[producer]} are there"
                )
        stored = self.refused.intersection(self.seen)
        if stored:
            self.fault(f"{len(stored)} records that were refused are stored: {sorted(stored)[:3]}")
        # Over again what was checked record by record.
        if len(set(self.seen)) != len(self.seen):
            self.fault("a record is stored twice")

    def _at(self, offset: int) -> int | None:
        return self.seen[offset] if offset < len(self.seen) else None
