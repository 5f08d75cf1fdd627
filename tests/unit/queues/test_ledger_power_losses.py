"""Every file call of the real SQLite, recorded: what a kill or a loss of power after any of them leaves.

The process does rounds and writes an answer after each. Some of its syncs and writes fail, in COMMITs
and in checkpoints: then it opens the ledger anew, and answers with what the number of the round
says (decision 88). Whatever is left after any call, an answer that was given is true for ever.
"""

import os
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from support.ledger_program import ANSWERS, Answer, Expected, answers_of, open_real, shown
from support.recorded_calls import Call, Replay, compiler, put_down, record

from bottomless_server.queues.ledger.base import LedgerFailed

pytestmark = pytest.mark.skipif(compiler() is None, reason="the recorder is C, and there is no gcc")

LOSSES: Final = int(os.environ.get("BOTTOMLESS_TEST_POWER_LOSSES", "40"))
ROUNDS: Final = 40 if LOSSES < 1_000 else 200
PROGRAM: Final = (
    "import sys; from pathlib import Path; from support.ledger_program import run_among_faults;"
    f"run_among_faults(Path(sys.argv[1]), {ROUNDS})"
)
LOOK_COUNT: Final = 100
SEED_COUNT_MAX: Final = 20
NEAR: Final = 20
FAULTS: Final = {
    "nothing fails": "",
    "syncs fail": "sync " + ",".join(str(number) for number in range(11, 2_000, 13)),
    "two syncs fail in a row": "sync "
    + ",".join(f"{number},{number + 1}" for number in range(14, 2_000, 13)),
    "the disk is full at times": "write " + ",".join(str(n) for n in range(150, 90_000, 311)),
}


class Left(NamedTuple):
    """What a kill or a loss of power has left, and what had been answered before."""

    answers: list[Answer]
    files: dict[str, bytes]


@pytest.mark.parametrize("faults", FAULTS)
def test_what_was_answered_is_true_after_any_loss_of_power(tmp_path: Path, faults: str) -> None:
    calls = record(tmp_path / "recorded", PROGRAM, FAULTS[faults])
    assert {call.failed for call in calls} == ({False} if not FAULTS[faults] else {False, True})
    if faults == "syncs fail":
        assert any(not answer.stored for answer in answers_of(written(calls)))
    expected = Expected()
    count = max(LOSSES // len(FAULTS), 2)
    for left in leftovers(calls, count, random.Random(7)):
        look(tmp_path / "left", left, expected)


def look(directory: Path, left: Left, expected: Expected) -> None:
    put_down(directory, left.files, without=[ANSWERS])
    ledger = open_real(directory)
    row = ledger.store()
    stored = max((each.attempt for each in left.answers if each.stored), default=0)
    last = max((each.attempt for each in left.answers), default=0)
    assert row.clock in (stored, last + 1), (row, left.answers[-3:])
    assert ledger.check() == []
    assert shown(ledger) == expected.at(row.round)
    ledger.close()
    shutil.rmtree(directory)


def denies(call: Call) -> bool:
    """Whether a call says that a round is not stored."""
    return call.name == ANSWERS and any(not answer.stored for answer in answers_of(call.data))


def written(calls: list[Call]) -> bytes:
    return b"".join(call.data for call in calls if call.name == ANSWERS and call.kind == "W")


def leftovers(calls: list[Call], count: int, chance: random.Random) -> Iterator[Left]:
    """What kills and losses of power after some of the calls have left, taken in turn.

    Where calls fail, three of four are among those that come next, or next after the answer that
    nothing is stored: what an error has left in the files is soon written over.
    """
    failed = [number for number, call in enumerate(calls) if call.failed or denies(call)]
    after = {near for number in failed for near in range(number, number + NEAR)}
    near = chance.choices(sorted(after & set(range(len(calls)))) or [0], k=count * 3 // 4)
    points = Counter(near if failed else [])
    points.update(chance.choices(range(len(calls)), k=count - points.total()))
    replay = Replay(chance)
    answered = b""
    for number, call in enumerate(calls):
        replay.do(call)
        if call.name == ANSWERS and call.kind == "W":
            answered += call.data
        for _ in range(points[number]):
            kill = chance.random() < 0.3
            files = replay.left_by_a_kill() if kill else replay.left_by_a_loss_of_power()
            yield Left(answers_of(answered), dict(files))


GUARDS: Final = {
    "the name of a ledger log is durable before the log is believed": ("syncs fail", 3),
    "the log of the ledger is written once more before it is believed": (
        "two syncs fail in a row",
        2,
    ),
}
"""What fails, and the seed that notices it soonest."""


def without(guard: str) -> str:
    """The program without a guard."""
    modules = "from support.guards import replace; import bottomless_server.queues.ledger.database;"
    return f'{modules} replace("{guard}", print); {PROGRAM}'


@pytest.mark.parametrize("guard", GUARDS)
def test_without_a_guard_an_answer_is_found_that_was_not_true(tmp_path: Path, guard: str) -> None:
    faults, soonest = GUARDS[guard]
    calls = record(tmp_path / "recorded", without(guard), FAULTS[faults])
    expected = Expected()
    for seed in range(soonest, soonest + SEED_COUNT_MAX):
        for left in leftovers(calls, LOOK_COUNT, random.Random(seed)):
            try:
                look(tmp_path / "left", left, expected)
            except (AssertionError, LedgerFailed):
                return
    pytest.fail("nothing was noticed")
