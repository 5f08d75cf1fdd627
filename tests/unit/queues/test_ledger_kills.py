"""A process that is killed at any moment, in a COMMIT or in a checkpoint or between: the real SQLite."""

import os
import signal
from pathlib import Path
from typing import Final

from support.ledger_program import Expected, open_real, run_forever, shown

KILLS: Final = int(os.environ.get("BOTTOMLESS_TEST_KILLS", "15"))


def test_each_answered_round_is_there_whole_after_any_kill(tmp_path: Path) -> None:
    expected = Expected()
    answered = 0
    for kill in range(KILLS):
        # Rounds go on while the signal is on its way: it meets them wherever they are.
        answered = max(answered, rounds_until_killed(tmp_path, 1 + kill % 7))
        ledger = open_real(tmp_path)
        there = ledger.store().round
        assert answered <= there <= answered + 1
        assert ledger.check() == []
        assert shown(ledger) == expected.at(there)
        ledger.close()
        answered = there
    assert answered >= KILLS


def rounds_until_killed(directory: Path, count: int) -> int:
    """Have a process do at least so many rounds; returns the last one that it answered."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            run_forever(directory, theirs)
        finally:
            os._exit(1)
    os.close(theirs)
    with os.fdopen(ours, "rb") as answers:
        for _ in range(count):
            number = answers.read(8)
            assert len(number) == 8, "the process ended by itself"
        os.kill(child, signal.SIGKILL)
        rest = answers.read()
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    rest = rest[: len(rest) // 8 * 8]
    return int.from_bytes(rest[-8:] or number, "big")
