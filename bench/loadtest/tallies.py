"""What clients know of the counters of a process, as bounds. Pure.

A process counts an append when it is stored, before it answers. So of each append that was sent to
it a client knows: it was answered, and is counted; it was refused with nothing stored, and is not; or
there was no answer, and it may be counted. While nothing is under way and no answer was lost, both
bounds are equal: counters are compared exactly.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

SERIES: Final = {
    "appends": "bottomless_ingest_appends_total",
    "records": "bottomless_ingest_records_total",
    "bytes": "bottomless_ingest_append_bytes_total",
    "duplicates": "bottomless_ingest_duplicates_total",
}
"""What ingest counts, by the names of `Counts`."""


class Counts(NamedTuple):
    """What ingest counts of appends."""

    appends: int = 0
    records: int = 0
    bytes: int = 0
    duplicates: int = 0

    def plus(self, other: "Counts") -> "Counts":
        return Counts(*(one + two for one, two in zip(self, other, strict=True)))

    def minus(self, other: "Counts") -> "Counts":
        return Counts(*(one - two for one, two in zip(self, other, strict=True)))


def counts_of(metrics: Mapping[str, Any]) -> Counts:
    """What the JSON of `/metrics` of an ingest node says."""
    return Counts(
        **{
            name: int(sum(sample["value"] for sample in metrics[series]["samples"]))
            for name, series in SERIES.items()
        }
    )


def at_most(record_count: int, size: int) -> Counts:
    """The most that one append can add: it is stored, or a repeat."""
    return Counts(1, record_count, size, record_count)


class Bounds(NamedTuple):
    """Counters are between these, both included."""

    low: Counts
    high: Counts

    def misses(self, counted: Counts) -> list[str]:
        """The names of counters that are outside."""
        return [
            name
            for name, low, value, high in zip(
                Counts._fields, self.low, counted, self.high, strict=True
            )
            if not low <= value <= high
        ]


class Tally:
    """What clients know of the counters of one life of a process."""

    def __init__(self) -> None:
        self.answered = Counts()
        self._doubtful = Counts()
        self._under_way = Counts()

    @property
    def bounds(self) -> Bounds:
        """Of the counters as of now."""
        return Bounds(self.answered, self.answered.plus(self._doubtful).plus(self._under_way))

    def begin(self, record_count: int, size: int) -> None:
        """An append is sent, with a body of so many bytes."""
        self._under_way = self._under_way.plus(at_most(record_count, size))

    def stored(self, record_count: int, size: int) -> None:
        """It was answered as stored by this request."""
        self._end(record_count, size)
        self.answered = self.answered.plus(Counts(1, record_count, size))

    def repeated(self, record_count: int, size: int) -> None:
        """It was answered as a repeat of one that was stored before."""
        self._end(record_count, size)
        self.answered = self.answered.plus(Counts(duplicates=record_count))

    def refused(self, record_count: int, size: int) -> None:
        """It is known that this request stored nothing, and never will."""
        self._end(record_count, size)

    def lost(self, record_count: int, size: int) -> None:
        """It has no answer, or one that does not say."""
        self._end(record_count, size)
        self._doubtful = self._doubtful.plus(at_most(record_count, size))

    def may_have(self, record_count: int, size: int) -> None:
        """It was answered, and nobody knows by which life of the process."""
        self._doubtful = self._doubtful.plus(at_most(record_count, size))

    def _end(self, record_count: int, size: int) -> None:
        self._under_way = self._under_way.minus(at_most(record_count, size))
