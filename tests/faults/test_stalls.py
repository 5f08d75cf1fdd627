"""Uploads that stand still at the front while those behind them are done: M7, M8."""

import httpx
from support.fault_deployment import FaultDeployment, Load
from support.faults import Answer, Fault, Rule
from support.waiting import until

FORBIDDEN = Answer(403, "AccessDenied")


def of_the_first(load: Load, fault: Fault, answer: Answer = FORBIDDEN) -> Rule:
    return Rule(fault, "PUT", rf"/{load.stream_id}/data/0{{20}}\.[^/]*\.fragment(\?|$)", answer)


def behind_the_first(deployment: FaultDeployment, load: Load) -> int:
    """Fragments that are in the store and in no manifest."""
    found = deployment.stored_stream(load.stream_id).look()
    return sum(key.endswith(".fragment") for key in found.unreachable)


def hold_the_first_up(deployment: FaultDeployment, load: Load, rule: Rule) -> None:
    """Load until the first fragment is held up, and three behind it are in the store."""
    load.append_until_it_happened(lambda: deployment.proxy.count(rule) > 0)
    load.append_until_it_happened(lambda: behind_the_first(deployment, load) >= 3)


def published_next(deployment: FaultDeployment, load: Load) -> int:
    answer = httpx.get(f"{deployment.server.url}{load.path}/offsets").json()
    return int(answer["object_store_next_offset"])


def failures(deployment: FaultDeployment, load: Load) -> dict[str, dict[str, object]]:
    report = httpx.get(f"{deployment.server.url}/readyz", params={"verbose": "1"}).json()
    found: dict[str, dict[str, dict[str, object]]] = report["services"]["uploader"]["failures"]
    return found.get(load.stream_id, {})


def test_what_was_uploaded_behind_a_hole_is_published_with_the_hole_in_one_edit(
    deployment: FaultDeployment, load: Load
) -> None:
    """M7."""
    rule = of_the_first(load, Fault.LOSE_REQUEST)
    with deployment.proxy.disturbing(rule):
        hold_the_first_up(deployment, load, rule)

        assert published_next(deployment, load) == 0
        assert load.listed() == []
        # What is in the hole was not freed: only the local disk has it.
        assert load.read().problems == []
    found = load.check("the first of several uploads did not arrive")

    assert len(found.fragments) >= 4
    # Beside the one without entries, which a stream has before its first fragment.
    root_count = len(found.record.past_roots)
    assert root_count <= len(found.fragments) - 3, "the first root had the hole and all behind it"


def test_a_refused_upload_stops_its_stream_in_sight_and_goes_on_without_a_gap(
    deployment: FaultDeployment, load: Load
) -> None:
    """M8."""
    rule = of_the_first(load, Fault.REFUSE)
    with deployment.proxy.disturbing(rule):
        hold_the_first_up(deployment, load, rule)

        (what,) = [one for one in failures(deployment, load) if one.startswith("put ")]
        assert what.startswith("put " + "0" * 20), "it names the offset that is held up"
        assert failures(deployment, load)[what]["permanent"] is True
        assert published_next(deployment, load) == 0
        assert load.listed() == []
        load.append()
    found = load.check("the first of several uploads was refused")

    assert found.fragments[0].first_offset == 0
    until(lambda: not failures(deployment, load), what="the report clean again")
