"""Ledger and message files together: every file call of a store, recorded below SQLite and Python, and what a
kill or a loss of power after any of them leaves of both.

The process does rounds of publishes, receives and acknowledgements, and compactions, rewrites and
removals step by step between them; it stops and starts. Some of its syncs and writes fail. What is
left is started: every answer that was given is true, the files alone show every message that is
needed, and then it lives on from there, and the power goes again.
"""

import os
import random
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from support.recorded_calls import Replay, compiler, put_down, record
from support.store_program import ANSWERS, MESSAGES, look

from bottomless.errors import Corrupt

pytestmark = pytest.mark.skipif(compiler() is None, reason="the recorder is C, and there is no gcc")

LOSSES: Final = int(os.environ.get("BOTTOMLESS_TEST_POWER_LOSSES", "40"))
ROUNDS: Final = 50 if LOSSES < 1_000 else 150
NEAR: Final = 15
SECTOR_SIZE: Final = 512
PROGRAM: Final = (
    "import sys; from pathlib import Path; from support.store_program import run;"
    f"run(Path(sys.argv[1]), {ROUNDS}, int(sys.argv[2]))"
)


def numbers(first: int, step: int, *, row: int = 1) -> str:
    return ",".join(str(n + k) for n in range(first, 20_000, step) for k in range(row))


FAULTS: Final = {
    "nothing fails": "",
    "syncs fail": f"sync {numbers(14, 13)}",
    "two syncs fail in a row": f"sync {numbers(20, 17, row=2)}",
    "the disk is full at times": f"write {numbers(150, 97)}",
    "writes come short, and some fail then": f"short {numbers(40, 89)} write {numbers(130, 178)}",
}


class Left(NamedTuple):
    """What a kill or a loss of power has left, and what the program had written before."""

    files: Mapping[str, bytes]
    written: bytes


class Life:
    """One run of the program, on what was left of the one before."""

    def __init__(
        self, directory: Path, number: int, before: Left, faults: str, guard: str = ""
    ) -> None:
        first = 1_000 * ROUNDS * (number + 1)
        self._before = before
        program = PROGRAM.replace("int(sys.argv[2])", str(first))
        if guard:
            modules = "from support.guards import replace; import support.store_program;"
            program = f'{modules} replace("{guard}", lambda *_: None); {program}'
        self.calls = record(directory, program, faults, [MESSAGES], before.files)

    def leftovers(self, count: int, chance: random.Random) -> Iterator[Left]:
        """What kills and losses of power have left, after calls of which many come after failed ones."""
        replay = Replay(chance, [MESSAGES], self._before.files, sector_size=SECTOR_SIZE)
        written = self._before.written
        points = self._points(count, chance)
        for number, call in enumerate(self.calls):
            replay.do(call)
            if call.name == ANSWERS and call.kind == "W":
                written += call.data
            for _ in range(points[number]):
                kill = chance.random() < 0.3
                files = replay.left_by_a_kill() if kill else replay.left_by_a_loss_of_power()
                there = {name: data for name, data in files.items() if name != ANSWERS}
                yield Left(there, written)

    def _points(self, count: int, chance: random.Random) -> Counter[int]:
        every = range(len(self.calls))
        failed = [number for number, call in enumerate(self.calls) if call.failed]
        near = chance.choices(failed, k=count // 2) if failed else []
        points = Counter(
            min(number + chance.randrange(NEAR), len(self.calls) - 1) for number in near
        )
        points.update(chance.choices(every, k=count - points.total()))
        return points


def check(directory: Path, left: Left) -> None:
    put_down(directory, left.files, folders=[MESSAGES])
    look(directory, left.written)
    shutil.rmtree(directory)


NOTHING: Final = Left({}, b"")
LIVES: Final = 2


@pytest.mark.parametrize("faults", FAULTS if LOSSES >= 1_000 else list(FAULTS)[:2])
def test_what_was_answered_is_true_of_ledger_and_files_after_any_loss_of_power(
    tmp_path: Path, faults: str
) -> None:
    chance = random.Random(faults)
    count = max(LOSSES // len(FAULTS) // LIVES, 2)
    before = NOTHING
    for number in range(LIVES):
        life = Life(tmp_path / f"{number}", number, before, FAULTS[faults])
        left = list(life.leftovers(count, chance))
        for each in left:
            check(tmp_path / "left", each)
        before = chance.choice(left)


GUARDS: Final = [
    "the bytes of a round are durable before its rows",
    "sync of a new file's directory",
]


@pytest.mark.parametrize("guard", GUARDS)
def test_without_a_guard_an_answer_is_found_that_is_not_true(tmp_path: Path, guard: str) -> None:
    life = Life(tmp_path / "0", 0, NOTHING, "", guard)
    for seed in range(20):
        for left in life.leftovers(50, random.Random(seed)):
            try:
                check(tmp_path / "left", left)
            except (AssertionError, Corrupt, OSError):
                return
    pytest.fail("nothing was noticed")
