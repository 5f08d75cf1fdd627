"""Everything is killed, paused, cut off, filled up and lied to under load; nothing is lost,
doubled, skipped or invented. H18, and H20 among it.

The same runs for long by `./dev chaos --kills N --seed S`. What a run is made of: `events.py`;
what is looked at while it goes on: `ledger.py`; and in the end: `checker.py`.
"""

import os
import re
from pathlib import Path
from typing import Final

import pytest
from support.removed_guards import ANSWER_FIRST, NO_DIRTY_MARK, NO_MEMORY_OF_PRODUCERS, without
from support.s3 import S3Server

from chaos.deployment import INGESTS
from chaos.events import Event, calm, node_cut_off, second_uploader
from chaos.run import FURTHER_KILLS, LOCAL, REPLICATED, Plan, Report, run_chaos

KILLS: Final = int(os.environ.get("BOTTOMLESS_TEST_CHAOS_KILLS", "3"))
SEED: Final = int(os.environ.get("BOTTOMLESS_TEST_SEED", "20261121"))


def dangerous(report: Report) -> bool:
    """Whether the ways that are rare were met: the run goes on until they are."""
    return (
        report.acknowledged > KILLS * 20
        and report.replayed > 0
        and len(report.story.events) >= KILLS // 4
        and all(whole.counts["stored"] > 0 for whole in report.shared.supers)
        and all(group.passed_count > 0 for group in report.shared.groups)
    )


@pytest.mark.timeout(900 + KILLS * FURTHER_KILLS * 12)
def test_nothing_is_lost_doubled_or_skipped_while_everything_is_killed(
    tmp_path: Path, seaweed: S3Server
) -> None:
    """H18: `kill -9` of every service at random under strict producers and checking readers."""
    report = run_chaos(tmp_path / "run", seaweed, Plan(KILLS, SEED, wanted=dangerous))
    print(report)
    assert not report.faults
    assert report.story.kills.total() >= KILLS
    assert len(report.story.events) >= KILLS // 4, "too few kinds of trouble"
    assert report.acknowledged > KILLS * 20, "too few appends: the dangerous path did not run"
    assert report.replayed > 0, "no repeat met a record of its own"
    assert sum(one.fragment_count for one in report.checked) > KILLS, "too few fragments"
    [whole] = report.shared.supers
    assert whole.counts["stored"] > 0, "nothing was stored in the super stream"
    assert whole.layouts == [1, 2], "the super stream did not grow"
    for group in report.shared.groups:
        assert group.passed_count > 0, f"no commit of {group.name} passed"
        assert group.counts["fenced"] > 0, f"no zombie of {group.name} committed"


@pytest.mark.timeout(900)
def test_two_uploaders_of_one_stream_leave_no_gap_and_no_overlap(
    tmp_path: Path, seaweed: S3Server
) -> None:
    """H20: one sleeps, another one takes its place, and it wakes up with uploads under way."""
    plan = Plan(3, SEED, troubles=(second_uploader,), victims=("uploader",), strikes=(0,))
    report = run_chaos(tmp_path / "run", seaweed, plan)
    print(report)
    assert not report.faults
    assert report.fenced > 0, "no session of the past was refused: the dangerous path did not run"
    assert sum(one.fragment_count for one in report.checked) > 20


@pytest.mark.timeout(900)
def test_no_replica_loses_or_doubles_anything_while_nodes_die_and_disks_are_lost(
    tmp_path: Path, seaweed: S3Server
) -> None:
    """Three nodes hold each stream; a disk is lost for good, and the files of all nodes are alike at last."""
    plan = Plan(
        4,
        SEED,
        troubles=(calm,),
        victims=INGESTS,
        strikes=(2,),
        streams=REPLICATED,
        members=0,
        third_node=True,
        lost_disks=2,
        losses=1,
    )
    report = run_chaos(tmp_path / "run", seaweed, plan)
    print(report)
    assert not report.faults
    assert report.story.kills.total() >= 4
    assert report.story.events["disk lost for good"] >= 1
    assert report.compared_bytes > 0


@pytest.mark.parametrize(
    ("guard", "trouble", "victims", "found"),
    [
        pytest.param(NO_MEMORY_OF_PRODUCERS, calm, (), "doubled", id="memory of producers"),
        pytest.param(
            NO_DIRTY_MARK,
            node_cut_off,
            (),
            "acknowledged|producer-unknown|offset-out-of-range",
            id="dirty mark",
        ),
        pytest.param(
            ANSWER_FIRST,
            calm,
            INGESTS,
            # Or what was lost is the first record of a producer, which then is not known.
            "acknowledged|is missing|producer-unknown",
            id="durable before answered",
        ),
    ],
)
@pytest.mark.timeout(900)
def test_without_a_guard_it_is_noticed(
    tmp_path: Path,
    seaweed: S3Server,
    guard: str,
    trouble: Event,
    victims: tuple[str, ...],
    found: str,
) -> None:
    plan = Plan(
        kills=100,
        seed=SEED,
        seconds_max=90,
        troubles=(trouble,),
        victims=victims,
        settings=without(tmp_path / "guard", guard),
        streams=LOCAL,
        members=0,
    )
    report = run_chaos(tmp_path / "run", seaweed, plan)
    print(report)
    assert any(re.search(found, fault) for fault in report.faults)
