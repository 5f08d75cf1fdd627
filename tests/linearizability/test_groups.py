"""Commits of the members of a consumer group, and of those who were members, seem to happen one after
the other, each while it is its member's turn: also where answers are lost.

The seed comes from BOTTOMLESS_TEST_SEED and the count of rounds from BOTTOMLESS_TEST_ROUNDS: in all but
the first one the server is killed, too. Some five seconds in all.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from support.faults import Fault, Rule
from support.removed_guards import NO_GENERATION
from support.waiting import until

from linearizability.checker import check_group
from linearizability.history import UNKNOWN, Committed, Event, Fenced, Held
from linearizability.members import record_group
from linearizability.recording import Recording
from linearizability.test_linearizability import ROUNDS, SEED, running_deployment

OPERATIONS: Final = 24
"""Of each member in a round."""
_COMMITS: Final = r"/offset$"
LOST: Final = (
    Rule(Fault.LOSE_REPLY, "PUT", _COMMITS, after=3, times=1),
    Rule(Fault.LOSE_REQUEST, "PUT", _COMMITS, after=3, times=1),
    Rule(Fault.LATE_REQUEST, "PUT", _COMMITS, after=6, times=1),
)


def _has(recording: Recording, enough: int) -> bool:
    return recording.size >= enough


def _kinds(events: Sequence[Event]) -> set[type]:
    return {type(event.result) for event in events}


@pytest.mark.timeout(120 + 60 * ROUNDS)
def test_commits_of_members_and_of_who_was_one_are_linearizable(tmp_path: Path) -> None:
    print(f"BOTTOMLESS_TEST_SEED={SEED} BOTTOMLESS_TEST_ROUNDS={ROUNDS}")
    with running_deployment(tmp_path / "run", SEED) as running:
        (server,) = running.servers

        def die_and_come_back(recording: Recording) -> None:
            until(partial(_has, recording, OPERATIONS), 240, "the members to be at work")
            server.kill()
            server.start()

        for number in range(ROUNDS):
            recording = running.recording(f"group-{number}", SEED + number)
            meanwhile = partial(die_and_come_back, recording) if number else None
            with running.proxy.disturbing(*LOST):
                record_group(recording, OPERATIONS, meanwhile)
            assert _kinds(recording.events) >= {Held, Committed, Fenced, type(UNKNOWN)}
            verdict = check_group(recording.events)
            assert verdict.order is not None, f"seed {SEED}, round {number}: {verdict}"


def test_without_the_generation_in_the_commits_exec_they_are_not(tmp_path: Path) -> None:
    with running_deployment(tmp_path / "run", SEED, NO_GENERATION) as running:
        recording = running.recording("unguarded", SEED)
        record_group(recording, OPERATIONS // 2)
        verdict = check_group(recording.events)
        assert verdict.order is None
        assert verdict.stuck_at
