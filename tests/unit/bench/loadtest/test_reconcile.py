"""A run adds up, or it is said what does not."""

from typing import Any

import pytest

from bench.loadtest.ledger import ProducerLedger, StreamReading
from bench.loadtest.reconcile import (
    Evidence,
    IngestLife,
    StoreLife,
    reconcile,
    requests_of,
)
from bench.loadtest.tallies import Bounds, Counts, Tally, counts_of

SIZE = 100


def reading(records: int = 10, unknown: int = 0, *, stored: bool = False) -> StreamReading:
    """A stream of one producer whose last append may be of unknown outcome."""
    ledger = ProducerLedger(1, SIZE)
    values = ledger.begin(records)
    ledger.acknowledge(0, values)
    if unknown:
        more = ledger.begin(unknown)
        values += more if stored else []
    made = StreamReading("orders", [ledger])
    for offset, value in enumerate(values):
        made.take(offset, value)
    made.finish()
    return made


def alive(records: int, counted: Counts | None = None) -> IngestLife:
    counts = Counts(1, records, 900)
    return IngestLife("ingest-1", counted or counts, Bounds(counts, counts), None)


def killed(low: int, counted: int, high: int, end_low: int, end_high: int) -> IngestLife:
    return IngestLife(
        "ingest-2 (killed)",
        Counts(0, counted),
        Bounds(Counts(0, low), Counts(0, high)),
        Bounds(Counts(0, end_low), Counts(0, end_high)),
    )


def seen(counted: int, before: int, after: int, slack: int = 0) -> StoreLife:
    return StoreLife("manifest", {"put": counted}, {"put": before}, {"put": after}, slack)


def faults(
    *ingests: IngestLife, records: int = 10, stores: tuple[StoreLife, ...] = ()
) -> list[str]:
    return reconcile(Evidence([reading(records)], ingests, stores)).faults


def test_a_run_without_deaths_adds_up_exactly() -> None:
    verdict = reconcile(Evidence([reading()], [alive(10)], [seen(5, 5, 5)]))
    assert verdict.reconciled
    assert (verdict.acknowledged, verdict.counted, verdict.read) == (10, 10, 10)
    assert verdict.requests_counted["put"] == verdict.requests_seen["put"] == 5


@pytest.mark.parametrize("name", Counts._fields)
@pytest.mark.parametrize("more", [-1, 1])
def test_a_counter_that_disagrees_is_noticed(name: str, more: int) -> None:
    counts = Counts(1, 10, 900)
    wrong = counts._replace(**{name: getattr(counts, name) + more})
    assert f"ingest-1 counted {getattr(wrong, name)} {name}" in faults(alive(10, wrong))[0]


def test_fewer_or_more_records_than_ingest_has_counted_are_noticed() -> None:
    for records in (9, 11):
        assert any(
            "by the counters of ingest it is 10 to 10" in one
            for one in faults(alive(10), records=records)
        )


def test_what_a_kill_hides_is_allowed_up_to_what_clients_know() -> None:
    """It counted 4 at its sample, was known to have stored 5 at its end, and perhaps 2 more."""
    life = killed(3, 4, 6, 5, 7)
    for records in (10, 11, 12):
        assert faults(alive(5), life, records=records) == []
    for records in (9, 13):
        assert faults(alive(5), life, records=records)


@pytest.mark.parametrize("counted", [2, 7])
def test_a_sample_before_a_kill_outside_of_its_bounds_is_noticed(counted: int) -> None:
    assert "clients know of 3 to 6" in faults(alive(5), killed(3, counted, 6, 5, 5))[0]


def test_a_fault_of_a_stream_or_of_the_run_fails_it() -> None:
    broken = reading()
    broken.faults.append("orders: lost")
    assert reconcile(Evidence([broken], [alive(10)], [])).faults == ["orders: lost"]
    evidence = Evidence([reading()], [alive(10)], [], ["manifest ended by itself"])
    assert reconcile(evidence).faults == ["manifest ended by itself"]


def test_more_faults_of_a_stream_than_are_told_are_told_as_a_number() -> None:
    broken = reading()
    broken.faults, broken.fault_count = ["orders: lost"], 8
    assert reconcile(Evidence([broken], [alive(10)], [])).faults[1] == (
        "orders: and 7 more of the kind"
    )


@pytest.mark.parametrize("stored", [True, False])
def test_an_outcome_that_was_never_known_adds_up_either_way(stored: bool) -> None:
    life = alive(10 + 2 * stored)
    verdict = reconcile(Evidence([reading(10, 2, stored=stored)], [life], []))
    assert verdict.reconciled
    assert (verdict.unknown, verdict.unknown_stored) == (2, 2 * stored)


def test_an_append_that_was_given_up_may_be_stored_after_its_stream_was_read() -> None:
    late = reading(10, 2)
    assert reconcile(Evidence([late], [alive(12)], [])).reconciled
    [fault] = reconcile(Evidence([late], [alive(13)], [])).faults
    assert "by the counters of ingest it is 13 to 13" in fault


def test_an_append_whose_client_has_gone_may_be_stored_and_not_counted() -> None:
    counts = Counts(1, 10, 900)
    doubtful = Bounds(counts, counts.plus(Counts(1, 2, 90, 2)))
    life = IngestLife("ingest-1", counts, doubtful, None)
    for records in (10, 12):
        assert faults(life, records=records) == []
    assert faults(life, records=13)


@pytest.mark.parametrize("counted", [4, 6])
def test_a_request_that_only_one_side_has_counted_is_noticed(counted: int) -> None:
    found = faults(alive(10), stores=(seen(counted, 5, 5),))
    assert found == [f"manifest counted {counted} requests of the kind put; the S3 proxy saw 5"]


def test_requests_of_the_killed_are_compared_within_what_was_under_way() -> None:
    for counted in range(3, 12):
        assert faults(alive(10), stores=(seen(counted, 5, 9, slack=2),)) == []
    for counted in (2, 12):
        assert faults(alive(10), stores=(seen(counted, 5, 9, slack=2),))
    verdict = reconcile(Evidence([reading()], [alive(10)], [seen(6, 5, 9, slack=2)]))
    assert verdict.requests_hidden == 3


def test_an_append_moves_from_under_way_to_what_came_of_it() -> None:
    tally = Tally()
    for _ in range(4):
        tally.begin(3, 100)
    assert tally.bounds == Bounds(Counts(), Counts(4, 12, 400, 12))
    tally.stored(3, 100)
    tally.repeated(3, 100)
    tally.refused(3, 100)
    known = Counts(1, 3, 100, 3)
    assert tally.bounds == Bounds(known, known.plus(Counts(1, 3, 100, 3)))
    tally.lost(3, 100)
    assert tally.bounds == Bounds(known, known.plus(Counts(1, 3, 100, 3)))
    tally.may_have(3, 100)
    assert tally.bounds.high == known.plus(Counts(2, 6, 200, 6))


def metrics(name: str, *samples: tuple[dict[str, str], float]) -> dict[str, Any]:
    told = [{"name": name, "labels": labels, "value": value} for labels, value in samples]
    return {name: {"kind": "counter", "meaning": "", "samples": told}}


def test_counters_are_taken_from_the_json_of_metrics() -> None:
    found = {
        **metrics("bottomless_ingest_appends_total", ({}, 2.0)),
        **metrics("bottomless_ingest_records_total", ({}, 6.0)),
        **metrics("bottomless_ingest_append_bytes_total", ({}, 700.0)),
        **metrics("bottomless_ingest_duplicates_total", ({}, 0.0)),
    }
    assert counts_of(found) == Counts(2, 6, 700, 0)
    name = "bottomless_object_store_requests_total"
    told = metrics(name, ({"operation": "put"}, 3.0), ({"operation": "get"}, 1.0))
    assert requests_of(told) == {"put": 3, "get": 1, "head": 0, "list": 0, "delete": 0}
