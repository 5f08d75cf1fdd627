"""The numbers of a process: as text and as JSON, and how values are distributed."""

from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Histogram
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from starlette.types import Receive, Scope, Send
from support.asgi import client_of

from bottomless_server.core.histogram import HistogramCounts
from bottomless_server.runtime.observe.metrics import (
    Metrics,
    counted,
    counted_by,
    distributed,
    distributed_by,
    gauged,
    gauged_by,
)

PROMETHEUS: Final = (
    "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1"
)
"""What Prometheus accepts."""


class Numbers:
    """A service with one series of each kind."""

    def metrics(self) -> list[Metric]:
        values = HistogramCounts((1, 2.5))
        for value in (1, 2, 3):
            values.note(value)
        return [
            counted("test_things", "Things.", 3),
            counted_by("test_calls", "Calls.", "operation", {"get": 2, "put": 0}),
            gauged("test_size_bytes", "Bytes.", 7),
            gauged_by("test_kept_bytes", "Bytes kept.", "kind", {"root": 1.5}),
            distributed("test_seconds", "Seconds.", values),
            distributed_by("test_stage_seconds", "Seconds.", "stage", {"put": values}),
        ]


async def _nothing(_: Scope, __: Receive, ___: Send) -> None:
    raise AssertionError("the service is not asked")


def served() -> Any:
    metrics = Metrics()
    metrics.add(Numbers())
    return client_of(metrics.served(_nothing))


def of_text(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("test_")
    }


def of_json(found: Any) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample["name"], tuple(sorted(sample["labels"].items()))): sample["value"]
        for name, family in found["metrics"].items()
        for sample in family["samples"]
        if name.startswith("test_")
    }


async def test_json_has_the_same_numbers_as_the_text_for_prometheus() -> None:
    async with served() as client:
        text = await client.get("/metrics", headers={"accept": PROMETHEUS})
        asked = await client.get("/metrics", headers={"accept": "application/json"})
    assert text.headers["content-type"].startswith("text/plain; version=")
    assert asked.headers["content-type"] == "application/json"
    found = asked.json()
    assert of_json(found) == of_text(text.text)
    assert of_text(text.text)["test_seconds_bucket", (("le", "2.5"),)] == 2
    kinds = {
        name: family["kind"] for name, family in found["metrics"].items() if name[:5] == "test_"
    }
    assert kinds == {
        "test_things_total": "counter",
        "test_calls_total": "counter",
        "test_size_bytes": "gauge",
        "test_kept_bytes": "gauge",
        "test_seconds": "histogram",
        "test_stage_seconds": "histogram",
    }
    assert found["metrics"]["test_things_total"]["meaning"] == "Things."


@pytest.mark.parametrize("accept", [None, "*/*", PROMETHEUS, "image/png", "text/plain", "nonsense"])
async def test_who_does_not_ask_for_json_gets_text(accept: str | None) -> None:
    async with served() as client:
        answer = await client.get("/metrics", headers={"accept": accept} if accept else {})
    assert answer.headers["content-type"].startswith("text/plain; version=")


async def test_one_path_is_text_whatever_is_asked_for() -> None:
    async with served() as client:
        answer = await client.get("/metrics/prometheus", headers={"accept": "application/json"})
        refused = await client.post("/metrics/prometheus")
        wrong = await client.get("/metrics/prometheus?a=b")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert "test_things_total 3.0" in answer.text
    assert (refused.status_code, wrong.status_code) == (405, 400)


def shown(metric: Metric) -> list[tuple[str, dict[str, str], float]]:
    return [(sample.name, sample.labels, sample.value) for sample in metric.samples]


@given(
    st.lists(st.integers(0, 60), max_size=30),
    st.lists(st.integers(0, 50), min_size=1, max_size=8, unique=True).map(sorted),
)
def test_values_are_distributed_as_the_library_does_it(
    values: list[int], bounds: list[float]
) -> None:
    ours, theirs = (
        HistogramCounts(bounds),
        Histogram("test", "Test.", buckets=bounds, registry=None),
    )
    for value in values:
        ours.note(value)
        theirs.observe(value)
    (expected,) = theirs.collect()
    wanted = [one for one in shown(expected) if not one[0].endswith("_created")]
    assert ours.count == len(values)
    assert shown(distributed("test", "Test.", ours)) == wanted


@pytest.mark.parametrize("make", [counted_by, gauged_by, distributed_by])
def test_a_label_with_no_value_yet_has_no_sample(make: Callable[..., Metric]) -> None:
    assert shown(make("test", "Test.", "kind", {})) == []
