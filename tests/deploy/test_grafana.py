"""deploy/grafana: a dashboard whose every number exists, and shows in its place."""

import re
from itertools import combinations
from typing import Any

import pytest
from support.grafana import dashboards, expressions, panels
from support.prometheus import metrics_of

from deploy.composition import ROOT

ROW = re.compile(r"^\| `(bottomless_\w+)` \| (\w+) \|([^|]*)\|", re.MULTILINE)
ENDS = re.compile(r"_(bucket|sum|count)$")
BY = re.compile(r"by \(([^)]+)\)")


@pytest.fixture(params=dashboards(), scope="module")
def dashboard(request: pytest.FixtureRequest) -> Any:
    return dashboards()[request.param]


def documented() -> dict[str, tuple[str, set[str]]]:
    """The kind and the labels of each metric that docs/metrics.md lists."""
    page = (ROOT / "docs" / "metrics.md").read_text()
    return {
        name: (kind, set(filter(None, words.strip().split(", "))))
        for name, kind, words in ROW.findall(page)
    }


def test_there_is_one_for_leaderless_streams_and_one_for_replicas_and_tiers() -> None:
    assert dashboards().keys() == {"leaderless.json", "replicas-tiers.json"}


def test_every_metric_of_replicas_and_moves_is_shown() -> None:
    shown = {
        ENDS.sub("", name)
        for expression in expressions(dashboards()["replicas-tiers.json"])
        for name in metrics_of(expression)
    }
    wanted = {
        name
        for name in documented()
        if "_ingest_replica_" in name
        or re.search(r"uploader_move|manifest_moves|_failovers_", name)
    }
    assert len(wanted) >= 14
    assert wanted <= shown


def test_every_number_that_a_panel_asks_for_is_documented_with_its_labels(dashboard: Any) -> None:
    known = documented()
    asked = expressions(dashboard)
    assert len(asked) >= 18
    for expression in asked:
        names = {ENDS.sub("", name) for name in metrics_of(expression)}
        assert names
        assert names <= known.keys(), expression
        labels = {label.strip() for words in BY.findall(expression) for label in words.split(",")}
        # `service` is what a scrape adds, `le` what a histogram has.
        allowed = {"service", "le"}.union(*(known[name][1] for name in names))
        assert labels <= allowed, expression


def test_counters_are_added_up_as_rates_and_gauges_are_not_summed_where_all_show_the_same(
    dashboard: Any,
) -> None:
    """A counter is of its process, and what manifest has counted in the bucket is the same in all."""
    known = documented()
    for expression in expressions(dashboard):
        for name in metrics_of(expression):
            kind = known[ENDS.sub("", name)][0]
            rated = re.search(rf"\brate\({name}\b", expression)
            assert bool(rated) == (kind != "gauge"), expression
            if kind == "gauge" and name.startswith("bottomless_manifest_"):
                assert expression.startswith("max"), expression


def test_panels_stand_beside_each_other_and_say_what_they_show(dashboard: Any) -> None:
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above
    assert all(place["x"] + place["w"] <= 24 for place in places)
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    titles = [panel["title"] for panel in panels(dashboard)]
    assert len(set(titles)) == len(titles)
    assert all(panel["description"].endswith(".") for panel in panels(dashboard))
    source = {"type": "prometheus", "uid": "${source}"}
    assert all(panel["datasource"] == source for panel in panels(dashboard))
