"""Puts that fail: of fragments, roots and groups, in every way that a store and a network know."""

import pytest
from support.fault_house import FaultHouse, Load
from support.faults import (
    BROKEN,
    CONFLICT,
    EXISTS,
    FRAGMENT,
    GROUP,
    ROOT,
    SLOW_DOWN,
    UNAVAILABLE,
    Answer,
    Fault,
    Rule,
)

KINDS = (FRAGMENT, ROOT, GROUP)


def on_puts(load: Load, fault: Fault, answer: Answer = BROKEN, times: int = 2) -> list[Rule]:
    """One rule for each kind of object of this stream."""
    return [
        Rule(fault, "PUT", f"/{load.stream_id}/.*{kind}", answer, after=1, times=times)
        for kind in KINDS
    ]


@pytest.mark.parametrize(
    ("fault", "answer"),
    [
        (Fault.LOSE_REPLY, BROKEN),
        (Fault.LOSE_REQUEST, BROKEN),
        (Fault.LATE_REQUEST, BROKEN),
        (Fault.CUT_REQUEST, BROKEN),
        (Fault.STALL, BROKEN),
        (Fault.DRIP, BROKEN),
        *((Fault.REFUSE, answer) for answer in (CONFLICT, EXISTS, BROKEN, SLOW_DOWN, UNAVAILABLE)),
        *(
            (Fault.MISREPORT, answer)
            for answer in (CONFLICT, EXISTS, BROKEN, SLOW_DOWN, UNAVAILABLE)
        ),
    ],
    ids=lambda value: f"{value.status}-{value.code}" if isinstance(value, Answer) else value.name,
)
def test_a_put_that_fails_leaves_every_record_in_one_fragment(
    house: FaultHouse, load: Load, fault: Fault, answer: Answer
) -> None:
    rules = on_puts(load, fault, answer)
    with house.proxy.disturbing(*rules):
        load.append_until_it_happened(lambda: house.proxy.exhausted(*rules))
        load.read()
    found = load.check(f"{fault} {answer}")

    assert len(found.fragments) > 2
    assert found.group_count > 1
