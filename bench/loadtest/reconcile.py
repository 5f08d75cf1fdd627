"""Whether a run adds up: what clients were told, what services counted, what is stored. Pure.

    acknowledged = counters of ingest = read            records, each once, by its chain
    requests that services counted = that the S3 proxy counted

Both are compared for each life of a process, from its start to its end. Of a life that goes on, they
are compared at a moment at which nothing is under way, and have to be equal. Of a life that SIGKILL
ended, what it counted after its last sample is lost with it. So it is sampled right before the kill,
with appends under way: its counters then lie between bounds that are known exactly, and in the
sum over all lives it stands with what clients were told it stored. Decision 69.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from bench.loadtest.ledger import StreamReading
from bench.loadtest.tallies import Bounds, Counts

KINDS: Final = ("put", "get", "head", "list", "delete")
REQUESTS: Final = "bottomless_object_store_requests_total"


def requests_of(metrics: Mapping[str, Any]) -> dict[str, int]:
    """Requests to the object store by kind, as the JSON of `/metrics` says."""
    samples = metrics[REQUESTS]["samples"]
    found = {one["labels"]["operation"]: int(one["value"]) for one in samples}
    return {kind: found.get(kind, 0) for kind in KINDS}


class IngestLife(NamedTuple):
    """One life of an ingest node."""

    name: str
    counted: Counts
    """By its last sample."""
    at_sample: Bounds
    """What clients knew of its counters then: from before it was asked to after it had answered."""
    at_end: Bounds | None
    """What they knew in the end, of a life that was killed after the sample."""

    @property
    def records(self) -> tuple[int, int]:
        """At least and at most so many records were stored by it."""
        if self.at_end is None:
            # One whose client has gone may be stored and not counted.
            return self.counted.records, max(self.counted.records, self.at_sample.high.records)
        return self.at_end.low.records, self.at_end.high.records


class StoreLife(NamedTuple):
    """One life of any service, and its requests to the object store by kind."""

    name: str
    counted: Mapping[str, int]
    """By its last sample."""
    seen_before: Mapping[str, int]
    """What the proxy had been asked by it before the sample was asked for."""
    seen_after: Mapping[str, int]
    """And what by its end, or at a moment after the sample at which nothing had come since."""
    slack: int
    """Requests that may be under way at a sample: 0 where nothing was; else one per connection."""


@dataclass(frozen=True)
class Evidence:
    """All that a run has found out."""

    readings: Sequence[StreamReading]
    """Every stream, read to its end."""
    ingests: Sequence[IngestLife]
    stores: Sequence[StoreLife]
    faults: Sequence[str] = ()
    """What was seen during the run and may never be."""


@dataclass
class Verdict:
    """What a reconciliation found."""

    faults: list[str] = field(default_factory=list)
    acknowledged: int = 0
    """Records."""
    counted: int = 0
    counted_low: int = 0
    counted_high: int = 0
    """Bounds of what all lives have stored by their counters, with what a SIGKILL hides of them."""
    read: int = 0
    unknown: int = 0
    unknown_stored: int = 0
    requests_counted: dict[str, int] = field(default_factory=dict)
    requests_seen: dict[str, int] = field(default_factory=dict)
    requests_hidden: int = 0
    """Requests that killed processes sent after their last sample."""

    @property
    def reconciled(self) -> bool:
        return not self.faults


def reconcile(evidence: Evidence) -> Verdict:
    """Compare everything with everything."""
    verdict = Verdict(faults=list(evidence.faults))
    for reading in evidence.readings:
        verdict.faults += reading.faults
        if reading.fault_count > len(reading.faults):
            more = reading.fault_count - len(reading.faults)
            verdict.faults.append(f"{reading.stream}: and {more} more of the kind")
        verdict.acknowledged += sum(ledger.acknowledged for ledger in reading.ledgers)
        verdict.unknown += sum(ledger.unknown for ledger in reading.ledgers)
        verdict.unknown_stored += reading.unknown_stored
        verdict.read += reading.next_offset
    _compare_read(verdict)
    _compare_counters(verdict, evidence.ingests)
    for life in evidence.stores:
        _compare_requests(verdict, life)
    return verdict


def _compare_read(verdict: Verdict) -> None:
    expected = verdict.acknowledged + verdict.unknown_stored
    if verdict.read != expected:
        verdict.faults.append(
            f"{verdict.read} records were read; {verdict.acknowledged} were acknowledged, and"
            f" {verdict.unknown_stored} more are of appends whose outcome was never known"
        )


def _compare_counters(verdict: Verdict, lives: Sequence[IngestLife]) -> None:
    for life in lives:
        for name in life.at_sample.misses(life.counted):
            low, value, high = (
                getattr(counts, name)
                for counts in (life.at_sample.low, life.counted, life.at_sample.high)
            )
            wanted = f"{low}" if low == high else f"{low} to {high}"
            verdict.faults.append(f"{life.name} counted {value} {name}; clients know of {wanted}")
        verdict.counted += life.counted.records
        low, high = life.records
        verdict.counted_low += low
        verdict.counted_high += high
    # An append that was given up may be stored after its stream was read.
    late = verdict.unknown - verdict.unknown_stored
    if not verdict.counted_low - late <= verdict.read <= verdict.counted_high:
        bounds = f"{verdict.counted_low} to {verdict.counted_high}"
        verdict.faults.append(
            f"{verdict.read} records were read; by the counters of ingest it is {bounds}"
        )


def _compare_requests(verdict: Verdict, life: StoreLife) -> None:
    for kind in KINDS:
        counted = life.counted.get(kind, 0)
        before, after = life.seen_before.get(kind, 0), life.seen_after.get(kind, 0)
        if not before - life.slack <= counted <= after + life.slack:
            seen = f"{before}" if before == after else f"{before} to {after}"
            verdict.faults.append(
                f"{life.name} counted {counted} requests of the kind {kind}; the S3 proxy saw {seen}"
            )
        for totals, value in (
            (verdict.requests_counted, counted),
            (verdict.requests_seen, after),
        ):
            totals[kind] = totals.get(kind, 0) + value
        verdict.requests_hidden += max(after - counted, 0)
