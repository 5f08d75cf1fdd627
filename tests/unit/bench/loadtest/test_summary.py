"""What a run came to, as a document and in words."""

from bench.loadtest.histogram import Histogram
from bench.loadtest.measures import Measures
from bench.loadtest.reconcile import Verdict
from bench.loadtest.scenarios import SCENARIOS
from bench.loadtest.summary import exit_code, in_words, summary_of


def summary(*faults: str) -> dict[str, object]:
    verdict = Verdict(
        list(faults),
        1_000,
        990,
        998,
        1_003,
        1_000,
        requests_counted={"put": 7},
        requests_seen={"put": 9},
    )
    measures = Measures()
    measures.acknowledged("ingest-1", 3, 900, 250.0)
    return summary_of(
        SCENARIOS["tiny"],
        verdict,
        measures,
        Histogram(),
        phases={"load": 2.0},
        events=[{"event": "kill"}, {"event": "kill"}],
        disturbed=0,
    )


def test_the_exit_code_says_whether_everything_adds_up() -> None:
    assert exit_code(summary()) == 0
    assert exit_code(summary("orders: lost")) == 1


def test_the_words_say_what_was_found() -> None:
    told = in_words(summary("orders: lost"))
    assert told.startswith("tiny: NOT RECONCILED\n")
    assert "1,000 acknowledged, 998 to 1,003 stored by the counters of ingest, 1,000 read" in told
    assert "put 7/9, get 0/0" in told
    assert "kill 2" in told
    assert told.endswith("  FAULT orders: lost")
    assert in_words(summary()).startswith("tiny: reconciled\n")


def test_intervals_add_up_to_the_whole() -> None:
    whole = Measures()
    for place in range(3):
        one = Measures(repeats=place, left_out=1, remaps=2)
        one.acknowledged(f"ingest-{place % 2}", 2, 50, 10.0 * (place + 1))
        one.attempts["unknown: ReadError"] += 1
        whole.merge(one)
    told = whole.told(2.0)
    assert (told["appends"], told["records"], told["bytes"], told["repeats"]) == (3, 6, 150, 3)
    assert (told["left_out"], told["remaps"], told["appends_per_second"]) == (3, 6, 1.5)
    assert told["nodes"] == {"ingest-0": 2, "ingest-1": 1}
    assert told["attempts"] == {"unknown: ReadError": 3}
    assert told["latency"]["max_ms"] == 30.0
