"""Every fault at once, each seldom: what nobody thought of comes by chance.

The seed comes from BOTTOMLESS_TEST_SEED and the seconds from BOTTOMLESS_TEST_SECONDS, so that
the same test runs long by hand. A seed gives the same choices; in what order requests ask
for one is up to the processes.
"""

import os
import random
import time
from pathlib import Path

import pytest
from support.fault_deployment import FaultDeployment, fault_deployment
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
    Fault,
    Rule,
)
from support.s3 import S3Server

SEED = int(os.environ.get("BOTTOMLESS_TEST_SEED", "20261122"))
SECONDS = float(os.environ.get("BOTTOMLESS_TEST_SECONDS", "8"))
ANSWERS = (CONFLICT, EXISTS, BROKEN, SLOW_DOWN, UNAVAILABLE, MISSING)
WAITING = (Fault.STALL, Fault.LATE_REQUEST)


def rules(stream_id: str, chance: random.Random) -> list[Rule]:
    """All kinds of fault at all kinds of object, in an order and with chances of this seed."""
    path = f"/{stream_id}/.*({FRAGMENT}|{ROOT}|{GROUP})"
    made = [
        Rule(
            fault,
            path=path,
            answer=chance.choice(ANSWERS),
            chance=chance.uniform(0.0005, 0.002)
            if fault in WAITING
            else chance.uniform(0.002, 0.01),
            pause_seconds=0.02,
        )
        for fault in Fault
        if fault is not Fault.NONE
        for _ in range(2 if fault in (Fault.REFUSE, Fault.MISREPORT) else 1)
    ]
    chance.shuffle(made)
    return made


def happened(deployment: FaultDeployment) -> set[Fault]:
    return {deed.rule.fault for deed in deployment.proxy.story}


@pytest.mark.timeout(120 + 2 * SECONDS)
def test_all_faults_together_lose_double_and_change_nothing(
    tmp_path: Path, seaweed: S3Server
) -> None:
    print(f"seed {SEED}, {SECONDS} s")
    chance = random.Random(SEED)
    with fault_deployment(tmp_path, seaweed, seed=SEED) as deployment:
        ends_at = time.monotonic() + SECONDS
        while time.monotonic() < ends_at or len(happened(deployment)) <= len(Fault) / 2:
            with deployment.load() as load:
                deployment.proxy.arm(*rules(load.stream_id, chance))
                part_ends_at = min(max(ends_at, time.monotonic() + 2), time.monotonic() + 15)
                while time.monotonic() < part_ends_at:
                    begin = len(deployment.proxy.story)
                    load.append_until_it_happened(lambda at=begin: len(deployment.proxy.story) > at)
                    load.read()
                deployment.proxy.calm()
                found = load.check(f"a mix of seed {SEED}", strays=True)
                print(
                    f"{len(found.fragments)} fragments, {len(found.values)} records, "
                    f"{len(found.strangers)} strays"
                )
        deployment.check_cleaned()
    names = sorted(fault.name for fault in happened(deployment))
    print(f"{len(deployment.proxy.story)} faults: {names}")
    assert len(names) > len(Fault) / 2, "too few faults: the dangerous paths did not run"
