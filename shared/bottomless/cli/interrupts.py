"""Interrupts: Ctrl-C and SIGTERM, at a moment at which it can be said what is done.

A request that is under way is waited for, since otherwise nobody could say whether it is stored;
a second signal does not wait. What is only being read or waited for is left at once.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from bottomless.cli.failures import tell

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """A signal asked this program to end."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.exit_code = 128 + number


class Interrupts:
    """Decides whether a signal ends what is done now, or waits for the end of a request."""

    def __init__(self) -> None:
        self._under_way = False
        self._waiting: int | None = None

    @contextmanager
    def shielded(self) -> Iterator[None]:
        """A block that the first signal lets end in good order, and ends then."""
        self._under_way = True
        try:
            yield
        finally:
            self._under_way = False
        if self._waiting is not None:
            raise Interrupted(self._waiting)

    def note(self, number: int, _frame: FrameType | None) -> None:
        """The handler of signals."""
        if not self._under_way or self._waiting is not None:
            raise Interrupted(number)
        self._waiting = number
        tell("waiting for the request that is under way; again to leave without its answer")


@contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Take signals by these rules for as long as the block lasts, where that can be."""
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
