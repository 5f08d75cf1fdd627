"""Interrupts: Ctrl-C and SIGTERM, at a moment when it can be said what is done.

A request that is under way is waited for, since otherwise nobody could say whether it is stored; a
second signal does not wait. Reading and waiting are interrupted at once.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from bottomless.cli.failures import tell

SIGNALS = (signal.SIGINT, signal.SIGTERM)
WAITING = "waiting for the request that is under way; again to leave without its answer"


class Interrupted(KeyboardInterrupt):
    """A signal asked this program to end."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.exit_code = 128 + number


class Interrupts:
    """Decides whether a signal ends the work at once, or after the request that is under way."""

    def __init__(self) -> None:
        self._under_way = False
        self._waiting: int | None = None
        self._sentence = WAITING

    @contextmanager
    def shielded(self, sentence: str = WAITING) -> Iterator[None]:
        """Protect a block from the first signal: it runs to its end, and the program ends then.

        `sentence` is what the user is told meanwhile.

        Raises:
            Interrupted: a signal came in the block.
        """
        self._under_way, self._sentence = True, sentence
        try:
            yield
        finally:
            self._under_way = False
        if self._waiting is not None:
            raise Interrupted(self._waiting)

    def note(self, number: int, _frame: FrameType | None) -> None:
        """Handle a signal.

        Raises:
            Interrupted: no request is under way, or it is the second signal.
        """
        if not self._under_way or self._waiting is not None:
            raise Interrupted(number)
        self._waiting = number
        tell(self._sentence)


@contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Handle signals by these rules while the block runs; outside of the main thread do nothing."""
    taken = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield taken
        return
    before = {number: signal.signal(number, taken.note) for number in SIGNALS}
    try:
        yield taken
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
