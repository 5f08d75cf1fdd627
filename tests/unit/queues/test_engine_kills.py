"""The engine of queues in a process that is killed at any moment: what was answered is true, then and later."""

import asyncio
import os
import signal
from collections import Counter, defaultdict
from pathlib import Path
from typing import Final

from support.queue_program import left, run_until_killed

KILLS: Final = int(os.environ.get("BOTTOMLESS_TEST_KILLS", "2"))
LINES: Final = 400


class Said:
    """What processes said of messages, by the word."""

    def __init__(self) -> None:
        self.names: dict[str, set[str]] = defaultdict(set)
        self.acked: Counter[str] = Counter()

    def hear(self, line: bytes) -> None:
        word, name = line.decode().split()
        self.names[word].add(name)
        self.acked[name] += word == "acked"


def life(directory: Path, number: int, said: Said, line_count: int) -> None:
    """Let a process run until it has said so much, and hear all that it has said when it is dead."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            run_until_killed(directory, number, theirs)
        finally:
            os._exit(1)
    os.close(theirs)
    with os.fdopen(ours, "rb") as lines:
        for _ in range(line_count):
            line = lines.readline()
            assert line, "the process ended by itself"
            said.hear(line)
        os.kill(child, signal.SIGKILL)
        for line in lines:
            if line.endswith(b"\n"):
                said.hear(line)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)


def test_what_was_answered_is_true_after_any_kill(tmp_path: Path) -> None:
    said = Said()
    for number in range(KILLS):
        life(tmp_path, number, said, LINES + 37 * (number % 5))
        found = asyncio.run(left(tmp_path))
        there = Counter(name for names in found.values() for name in names)
        assert set(there) <= said.names["asks"], "nothing is there that nobody has published"
        assert not [name for name, count in there.items() if count > 1], (
            "each is in one queue, once"
        )
        lost = said.names["stored"] - set(there) - said.names["acks"]
        assert not lost, "what was stored and that nobody acknowledged is there"
        assert not said.names["acked"] & set(there), "what was acknowledged is gone"
        assert not [name for name, count in said.acked.items() if count > 1], "it is, once"
    assert len(said.names["acked"]) > 100
