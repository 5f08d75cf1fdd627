"""Puts that fail: of fragments, roots and groups, in every way that a store and a network know."""

import pytest
from support.fault_deployment import FaultDeployment, Load
from support.faults import (
    BROKEN,
    CONFLICT,
    EXISTS,
    FRAGMENT,
    GROUP,
    MISSING,
    ROOT,
    SLOW_DOWN,
    UNAVAILABLE,
    Answer,
    Fault,
    Rule,
    named,
)

COUNTS = {FRAGMENT: 1, ROOT: 3, GROUP: 1}
"""Of roots more, so that one is among them whose groups are in the store already."""
WAITING = (Fault.STALL, Fault.LATE_REQUEST)
"""These cost the whole time that a reply is waited for."""


def on_puts(load: Load, fault: Fault, answer: Answer = BROKEN) -> list[Rule]:
    """One rule for each kind of object of this stream."""
    return [
        Rule(
            fault,
            "PUT",
            f"/{load.stream_id}/.*{kind}",
            answer,
            after=1,
            times=1 if fault in WAITING else count,
        )
        for kind, count in COUNTS.items()
    ]


@pytest.mark.parametrize(
    ("fault", "answer"),
    [
        (Fault.LOSE_REPLY, BROKEN),
        (Fault.LOSE_REQUEST, BROKEN),
        (Fault.LATE_REQUEST, BROKEN),
        (Fault.CUT_REQUEST, BROKEN),
        (Fault.FLIP_REQUEST, BROKEN),
        (Fault.STALL, BROKEN),
        (Fault.DRIP, BROKEN),
        *((Fault.REFUSE, answer) for answer in (CONFLICT, EXISTS, BROKEN, SLOW_DOWN, UNAVAILABLE)),
        *(
            (Fault.MISREPORT, answer)
            for answer in (CONFLICT, EXISTS, BROKEN, SLOW_DOWN, UNAVAILABLE)
        ),
    ],
    ids=named,
)
def test_a_put_that_fails_leaves_every_record_in_one_fragment(
    deployment: FaultDeployment, load: Load, fault: Fault, answer: Answer
) -> None:
    rules = on_puts(load, fault, answer)
    with deployment.proxy.disturbing(*rules):
        load.append_until_it_happened(lambda: deployment.proxy.exhausted(*rules))
        load.read()
    found = load.check(f"{fault} {answer}")

    assert len(found.fragments) > 2
    assert found.group_count > 1
    # Under the same uid until it is there: no attempt costs a second object.
    assert not [key for key in found.unreachable if key.endswith(".fragment")]


@pytest.mark.parametrize(
    ("fault", "answer"),
    [
        (Fault.LOSE_REPLY, BROKEN),
        (Fault.STALL, BROKEN),
        (Fault.REFUSE, MISSING),
        (Fault.REFUSE, BROKEN),
        (Fault.REFUSE, SLOW_DOWN),
    ],
    ids=named,
)
def test_an_object_of_ours_that_cannot_be_looked_at_is_put_once(
    deployment: FaultDeployment, load: Load, fault: Fault, answer: Answer
) -> None:
    """Its put was done and reported as failed; the next one hears 412, and HEAD fails."""
    path = f"/{load.stream_id}/.*{FRAGMENT}"
    done = Rule(Fault.MISREPORT, "PUT", path, BROKEN, times=2)
    unseen = Rule(fault, "HEAD", path, answer, times=2)
    with deployment.proxy.disturbing(done, unseen):
        load.append_until_it_happened(lambda: deployment.proxy.exhausted(done, unseen))
    found = load.check(f"{fault} {answer} of HEAD")

    assert not [key for key in found.unreachable if key.endswith(".fragment")]
