"""What a run came to: as a document, and in words. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from bench.loadtest.histogram import Histogram
from bench.loadtest.measures import Measures
from bench.loadtest.reconcile import KINDS, Verdict
from bench.loadtest.scenarios import Scenario


def summary_of(
    scenario: Scenario,
    verdict: Verdict,
    measures: Measures,
    cold: Histogram,
    *,
    phases: Mapping[str, float],
    events: Sequence[Mapping[str, Any]],
    disturbed: int,
) -> dict[str, Any]:
    """What summary.json holds."""
    return {
        "scenario": scenario.name,
        "reconciled": verdict.reconciled,
        "faults": verdict.faults,
        "records": {
            "acknowledged": verdict.acknowledged,
            "counted_by_ingest": verdict.counted,
            "counted_with_what_kills_hide": [verdict.counted_low, verdict.counted_high],
            "read": verdict.read,
            "of_unknown_outcome": verdict.unknown,
            "of_unknown_outcome_and_stored": verdict.unknown_stored,
        },
        "object_store_requests": {
            "counted_by_services": verdict.requests_counted,
            "seen_by_proxy": verdict.requests_seen,
            "hidden_by_kills": verdict.requests_hidden,
            "disturbed": disturbed,
        },
        "events": dict(Counter(event["event"] for event in events)),
        "seconds": {name: round(seconds, 3) for name, seconds in phases.items()},
        "clients": measures.told(phases["load"]),
        "read_pages": {"cold": scenario.cold_read, **cold.told()},
    }


def exit_code(summary: Mapping[str, Any]) -> int:
    """Of a run that came to its end: 0 if everything adds up, else 1."""
    return 0 if summary["reconciled"] else 1


def in_words(summary: Mapping[str, Any]) -> str:
    """For who waits for it at a terminal."""
    records, requests = summary["records"], summary["object_store_requests"]
    clients, pages = summary["clients"], summary["read_pages"]
    latency, late = clients["latency"], clients["late"]
    low, high = records["counted_with_what_kills_hide"]
    by_ingest = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    kinds = ", ".join(
        f"{kind} {requests['counted_by_services'].get(kind, 0):,}/"
        f"{requests['seen_by_proxy'].get(kind, 0):,}"
        for kind in KINDS
    )
    unknown = (
        f", {records['of_unknown_outcome']:,} of unknown outcome"
        f" ({records['of_unknown_outcome_and_stored']:,} of them stored)"
        if records["of_unknown_outcome"]
        else ""
    )
    lines = [
        f"{summary['scenario']}: {'reconciled' if summary['reconciled'] else 'NOT RECONCILED'}",
        (
            f"  records: {records['acknowledged']:,} acknowledged, {by_ingest} stored by the counters"
            f" of ingest, {records['read']:,} read{unknown}"
        ),
        (
            f"  requests to the object store, counted/seen by the proxy: {kinds};"
            f" {requests['hidden_by_kills']:,} hidden by kills, {requests['disturbed']:,} disturbed"
        ),
        f"  events: {', '.join(f'{name} {count}' for name, count in summary['events'].items())}",
        (
            f"  {clients['appends']:,} appends, {clients['appends_per_second']} a second; p50"
            f" {latency['p50_ms']} ms, p99 {latency['p99_ms']} ms, largest {latency['max_ms']} ms (of"
            f" which before it was sent: p50 {late['p50_ms']} ms, p99 {late['p99_ms']} ms);"
            f" {clients['repeats']:,} repeats, {clients['left_out']:,} left out,"
            f" {clients['remaps']:,} remaps"
        ),
        (
            f"  {pages['count']:,} {'cold ' if pages['cold'] else ''}pages read: p50"
            f" {pages['p50_ms']} ms, p99 {pages['p99_ms']} ms"
        ),
        *(f"  FAULT {fault}" for fault in summary["faults"]),
    ]
    return "\n".join(lines)
