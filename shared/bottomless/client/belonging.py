"""Belonging: a client stays with the event loop and the process in which it was first used.

Its connections do. Elsewhere a request could still be written, so that it may be done, but its answer
would come to nobody; after a fork to whoever asked the next question in the other process.
"""

import asyncio
import os

from bottomless.guards import guard


class Belonging:
    """Where a client was first used."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0

    @guard("the process and the event loop of a client")
    def require(self) -> None:
        """Refuse to go on elsewhere.

        Raises:
            RuntimeError: this is another process, or another event loop.
        """
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop, self._process = loop, os.getpid()
        if os.getpid() != self._process:
            raise another_process()
        if loop is not self._loop:
            raise RuntimeError(
                "an AsyncClient belongs to the event loop on which it was first used: make another"
            )


def another_process() -> RuntimeError:
    """Make the error for a call in the child of a fork. It is not raised here."""
    return RuntimeError("a client belongs to the process that made it: make another after a fork")
