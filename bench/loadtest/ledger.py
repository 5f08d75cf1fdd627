"""What each producer was told, and whether a stream that is read to its end holds just that. Pure.

A producer is strict and has one append under way, so its records stand in its stream in the order
of their numbers. What was acknowledged is kept as a chain: each link is the digest of the link
before it, the offset that was told, and the bytes that were sent. Who reads the stream makes the same
chain of what is there. Both are equal only if each acknowledged record is there once, at its offset,
with its bytes; and a chain is 16 bytes, however many records it is of.

Why a chain for each producer and not for the stream? Acknowledgements of two producers come in any
order, those of one producer in its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from support.numbered_records import parse, record, split, value_of

FAULT_COUNT_MAX: Final = 5
"""Faults of one stream that are told; usually each is followed by many more."""


def link(chain: bytes, offset: int, value: bytes) -> bytes:
    """The chain with one record more."""
    head = offset.to_bytes(8, "big") + len(value).to_bytes(8, "big")
    return blake2b(chain + head + value, digest_size=16).digest()


@dataclass(slots=True)
class ProducerLedger:
    """What one producer of one stream has sent and was told."""

    producer: int
    size_max: int
    """Of the letters of a record, as its value is made."""
    sent: int = 0
    """Numbers below it were sent, at least once."""
    acknowledged: int = 0
    """Numbers below it were acknowledged."""
    chain: bytes = b""
    next_offset: int = 0
    """After the last record that was acknowledged."""

    @property
    def unknown(self) -> int:
        """Records that were sent, and nobody knows whether they are stored."""
        return self.sent - self.acknowledged

    def begin(self, count: int) -> list[str]:
        """The values of the next append, which is now sent. The one before is acknowledged."""
        assert not self.unknown
        first = self.sent
        self.sent += count
        codes = [record(self.producer, number) for number in range(first, self.sent)]
        return [value_of(code, self.size_max) for code in codes]

    def acknowledge(self, first_offset: int, values: Sequence[str]) -> str | None:
        """The append that was sent last is stored from this offset on; a fault in words if that
        cannot be."""
        assert len(values) == self.unknown
        fault = None
        if first_offset < self.next_offset:
            fault = (
                f"producer {self.producer} was told offset {first_offset} after {self.next_offset}"
            )
        for offset, value in enumerate(values, first_offset):
            self.chain = link(self.chain, offset, value.encode())
        self.acknowledged = self.sent
        self.next_offset = first_offset + len(values)
        return fault


@dataclass
class _Found:
    """What a stream holds of one producer."""

    count: int = 0
    chain: bytes = b""


@dataclass
class StreamReading:
    """A stream that is read from its first record to its end."""

    stream: str
    ledgers: Sequence[ProducerLedger]
    next_offset: int = 0
    unknown_stored: int = 0
    """Records of appends whose outcome was never known, and which are there."""
    faults: list[str] = field(default_factory=list)
    fault_count: int = 0

    def __post_init__(self) -> None:
        self._known = {ledger.producer: ledger for ledger in self.ledgers}
        self._found = {ledger.producer: _Found() for ledger in self.ledgers}

    def take(self, offset: int, value: str) -> None:
        """The next record that the reader was given."""
        if offset != self.next_offset:
            self._fault(f"after offset {self.next_offset - 1} came {offset}")
        self.next_offset = offset + 1
        producer, number = self._who(value)
        ledger = self._known.get(producer)
        if ledger is None:
            self._fault(f"nobody sent what stands at offset {offset}: {value[:40]!r}")
            return
        found = self._found[producer]
        what = f"number {number} of producer {producer} at offset {offset}"
        if number < found.count:
            self._fault(f"{what} is doubled, or out of order")
            return
        if number > found.count:
            self._fault(f"before {what} there is no {found.count}")
        if number >= ledger.sent:
            self._fault(f"{what} was never sent")
        elif number >= ledger.acknowledged:
            self.unknown_stored += 1
        else:
            found.chain = link(found.chain, offset, value.encode())
        found.count = number + 1

    def finish(self) -> None:
        """The end is reached: what had to be there was there."""
        for producer, found in self._found.items():
            ledger = self._known[producer]
            if found.count < ledger.acknowledged:
                first = f"{found.count} to {ledger.acknowledged - 1}"
                self._fault(f"producer {producer}: acknowledged, and not there: {first}")
            elif found.chain != ledger.chain:
                self._fault(
                    f"producer {producer}: what was acknowledged is not what is there, at its"
                    " offsets and with its bytes"
                )

    def _who(self, value: str) -> tuple[int, int]:
        code = parse(value, self.ledgers[0].size_max) if self.ledgers else None
        return (-1, -1) if code is None else split(code)

    def _fault(self, what: str) -> None:
        self.fault_count += 1
        if len(self.faults) < FAULT_COUNT_MAX:
            self.faults.append(f"{self.stream}: {what}")
