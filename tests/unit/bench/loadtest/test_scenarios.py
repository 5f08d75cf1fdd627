"""Scenarios as data."""

import json

import pytest

from bench.loadtest.routing import Policy
from bench.loadtest.scenarios import (
    SCENARIOS,
    BadScenario,
    Kill,
    Scenario,
    StoreTrouble,
    changed,
)

TINY = SCENARIOS["tiny"]


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_every_scenario_can_be_run_written_and_read_again(scenario: Scenario) -> None:
    assert scenario.check() is scenario
    again = Scenario.from_json(json.loads(json.dumps(scenario.to_json())))
    assert again.to_json() == scenario.to_json()
    assert again.troubles == tuple(scenario.troubles)


def test_the_scenarios_are_as_large_as_they_were_asked_for() -> None:
    smoke, soak = SCENARIOS["smoke"], SCENARIOS["soak"]
    assert (smoke.nodes, smoke.streams, smoke.seconds) == (2, 200, 120)
    assert (soak.streams, soak.seconds) == (1_000, 1_800)
    for scenario in SCENARIOS.values():
        assert any(isinstance(one, Kill) for one in scenario.troubles)


def test_values_can_be_changed_by_their_names() -> None:
    given = ["seconds=7.5", "streams=3", "policy=least_in_flight", "cold_read=false", "loop=closed"]
    found = changed(TINY, given)
    assert (found.seconds, found.streams, found.policy) == (7.5, 3, Policy.LEAST_IN_FLIGHT)
    assert (found.cold_read, found.loop) == (False, "closed")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("seconds", "is not NAME=VALUE"),
        ("size=1", "is not NAME=VALUE"),
        ("node_names=1", "is not NAME=VALUE"),
        ("streams=many", "'many' is no value of streams"),
        ("cold_read=perhaps", "'perhaps' is no value of cold_read"),
        ("policy=any", "'any' is no value of policy"),
        ("troubles=none", "'none' is no value of troubles"),
        ("streams=0", "streams is not above 0"),
        ("owners=3", "more than there are nodes"),
        ("profile=both", "there is no profile both"),
        ("profile=local", "a local stream has one owner"),
        ("loop=round", "a loop is open or closed"),
        ("store=tape", "a store is one of"),
        ("seconds=1", "outside of the load"),
    ],
)
def test_what_cannot_be_run_is_refused_in_a_sentence(change: str, told: str) -> None:
    with pytest.raises(BadScenario, match=told):
        changed(TINY, [change])


def test_troubles_of_nobody_are_refused() -> None:
    document = TINY.to_json()
    for trouble, told in (
        (Kill(1, "ingest-9"), "no service ingest-9"),
        (StoreTrouble(1, 1, "FLOOD"), "no fault FLOOD"),
        (Kill(1, "reader"), "nobody does the work of reader"),
    ):
        kind = type(trouble).__name__
        with pytest.raises(BadScenario, match=told):
            Scenario.from_json({**document, "troubles": [{"kind": kind, **vars(trouble)}]})


@pytest.mark.parametrize("document", [{}, {"troubles": []}, {"troubles": [{"kind": "x"}]}])
def test_what_is_no_scenario_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(BadScenario, match="this is no scenario"):
        Scenario.from_json(document)
