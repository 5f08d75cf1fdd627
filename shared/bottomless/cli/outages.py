"""Outages, as a command that goes on over them tells of them."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from bottomless.cli.failures import tell
from bottomless.errors import Code, StoreError, Unavailable


class Outage:
    """Says once that the server is away, and once that it is back."""

    def __init__(self) -> None:
        self._on = False

    def note(self, error: StoreError) -> None:
        """Note that something failed and is done again."""
        # An answer that the server ended in good order is none.
        if error.retry_after_seconds == 0 or self._on:
            return
        self._on = True
        tell(f"{error.message} ({error.code}); waiting for it")

    def over(self) -> None:
        """Note that something has come."""
        if self._on:
            self._on = False
            tell("connected again")


LONG_SECONDS: Final = 2.0
"""After so long a wait is told."""


class LongWait:
    """Says once that something takes long, since when and why, and once that it goes on."""

    def __init__(self) -> None:
        self._error: StoreError | None = None
        self._lock = threading.Lock()

    def note(self, error: StoreError) -> None:
        """Note why it is done again; from any thread."""
        self._error = error

    @contextmanager
    def told(self, what: str) -> Iterator[None]:
        """Tell of the block if it takes long; `what` it waits for, in words."""
        self._error = None
        wait = _Wait(what, time.monotonic(), time.strftime("%H:%M:%S"))
        timer = threading.Timer(LONG_SECONDS, self._say, (wait,))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            with self._lock:
                wait.over = True
        if wait.told:
            tell(f"goes on after {time.monotonic() - wait.began:.0f} s")

    def _say(self, wait: "_Wait") -> None:
        with self._lock:
            if not wait.over:
                wait.told = True
                tell(long_wait(wait.what, wait.since, self._error))


@dataclass(slots=True)
class _Wait:
    what: str
    began: float
    since: str
    """The time of day at which it began."""
    told: bool = False
    over: bool = False


def long_wait(what: str, since: str, error: StoreError | None) -> str:
    """Say what is waited for since when, and the last failure if there was one."""
    why = "" if error is None else f": {error.message} ({error.code}); sent again"
    return f"waiting for {what} since {since}{why}"


RETRY_SECONDS: Final = 60.0
"""How long one append is tried, and how long an owner is waited for before the first one."""

_OWNER_COMES: Final = frozenset({Code.NOT_OWNER, Code.NOT_ENOUGH_REPLICAS})
"""The server answers, and the stream has no owner now that could: one comes by itself."""

_LOOK_SECONDS: Final = 0.5
"""How soon an owner is asked for again, where the answer does not say."""


def told_by_an_owner(waits: LongWait, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what `ask` returns, which is called again while the stream has no owner that could answer.

    Raises:
        StoreError: no owner came within `RETRY_SECONDS`, or `ask` failed for another reason.
    """
    until = time.monotonic() + RETRY_SECONDS
    with waits.told("an owner of the stream"):
        while True:
            try:
                return ask()
            except Unavailable as error:
                pause = error.retry_after_seconds or _LOOK_SECONDS
                if error.code not in _OWNER_COMES or time.monotonic() + pause > until:
                    raise
                waits.note(error)
            time.sleep(pause)
