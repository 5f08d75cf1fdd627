"""Passes of the garbage collector are counted with how long they took, and shown."""

import gc

from prometheus_client.parser import text_string_to_metric_families

from bottomless_server.runtime.observe.gc_pauses import GENERATIONS, GcPauses, timed_passes
from bottomless_server.runtime.observe.metrics import Metrics


def shown() -> dict[tuple[str, str], float]:
    """What a process shows of its pauses, by the end of the name and the generation."""
    text = Metrics().render().decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    return {
        (
            sample.name.removeprefix("bottomless_gc_pause_"),
            sample.labels["generation"],
        ): sample.value
        for sample in families["bottomless_gc_pause_seconds"].samples
        if "le" not in sample.labels
    }


def test_each_generation_has_a_series_from_the_start() -> None:
    names = {(f"seconds_{end}", str(number)) for end in ("count", "sum") for number in range(3)}

    assert shown().keys() == names
    assert len(gc.get_threshold()) == GENERATIONS


def test_a_pass_is_counted_with_its_generation_while_somebody_counts() -> None:
    gc.disable()
    try:
        before = shown()
        with timed_passes():
            gc.collect(2)
        gc.collect(2)
        after = shown()
    finally:
        gc.enable()

    assert after["seconds_count", "2"] - before["seconds_count", "2"] == 1
    assert after["seconds_sum", "2"] > before["seconds_sum", "2"]


def test_a_pass_is_in_all_buckets_that_it_is_not_too_long_for() -> None:
    now = 0.0
    pauses = GcPauses(lambda: now)
    for seconds in (0.001, 0.2, 9.0):
        pauses("start", {"generation": 1})
        now += seconds
        pauses("stop", {"generation": 1})
    (family,) = pauses.metrics()
    counts = {
        sample.labels["le"]: sample.value
        for sample in family.samples
        if "le" in sample.labels and sample.labels["generation"] == "1"
    }

    assert list(counts.values()) == [1, 1, 1, 1, 1, 2, 2, 2, 3]
