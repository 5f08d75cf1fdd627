"""The watch over the data directories of a process that serves: where one is gone the process ends at once.

A process that goes on writes to files that have no name any more. It would sync them, and say that
records are durable which nobody finds again. So all its nodes are fenced first, and it ends without a
drain: nothing is acknowledged after the decision. What was acknowledged before it is on the other nodes
in sync, and on this one it is lost, as with any lost disk. The leases are given up between the two, as
far as coordination answers within a moment, so that other nodes go on at once; else they run out
(docs/decisions/0211-a-node-without-its-directory-ends.md). Rounds of appends do not wait for the watch:
each looks at the directory itself (docs/decisions/0215-a-round-looks-at-its-directory.md).

Looked at is the lock, which is never replaced while a node lives: who takes away that file alone
lets a second process use the directory.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, Protocol, runtime_checkable

import structlog

from bottomless.guards import guard
from bottomless_server.node.data_directory import DataDirectory
from bottomless_server.node.lease import NodeLease
from bottomless_server.runtime.base.end import end_tasks
from bottomless_server.runtime.base.endless import endless

log = structlog.get_logger(__name__)

LOOK_SECONDS: Final = 1.0
GIVE_UP_SECONDS: Final = 0.5
"""How long coordination may take to hear that leases are given up."""
EXIT_DIRECTORY_LOST: Final = 4
"""The exit code of a process whose data directory is gone."""


@runtime_checkable
class KeepsDirectory(Protocol):
    """A service with a directory whose loss ends the process, and the lease under which it answers."""

    directory: DataDirectory
    lease: NodeLease


class DirectoryWatch:
    """Looks at the directories of one process, each once it was opened and for as long as it is open."""

    def __init__(self, kept: Sequence[KeepsDirectory], end: Callable[[int], object]) -> None:
        """`end` ends this process at once with an exit code, as `os._exit` does."""
        self._kept = kept
        self._end = end
        self._is_ending = False

    async def look(self, one: KeepsDirectory) -> float:
        """Look at a directory; returns after how many seconds to look again.

        The look is made in a thread: where a mount hangs it waits, nothing is decided, and all else
        goes on.
        """
        if one.directory.is_open and await asyncio.to_thread(is_lost, one.directory):
            await self._end_without(one.directory)
        return LOOK_SECONDS

    async def _end_without(self, directory: DataDirectory) -> None:
        # All directories may go with one disk: whoever sees it first ends the process.
        if self._is_ending:
            return
        self._is_ending = True
        for one in self._kept:
            one.lease.fence()
        log.critical(
            "the data directory of this node is gone, so this process ends at once; look at the disk "
            "and its mount, then start the node again: with an empty directory it is another node",
            directory=str(directory.path),
            exit_code=EXIT_DIRECTORY_LOST,
        )
        try:
            giving = [
                asyncio.create_task(one.lease.give_up(), name="lease given up")
                for one in self._kept
                if one.directory.is_open
            ]
            # Not a timeout around them: that would wait for what does not hear that it is cancelled.
            _, late = await asyncio.wait(giving, timeout=GIVE_UP_SECONDS) if giving else ((), ())
            for task in late:
                task.cancel()
            if late:
                log.warning("coordination does not answer, so leases run out", count=len(late))
        finally:
            self._end(EXIT_DIRECTORY_LOST)


@guard("the end of a node without its directory")
def is_lost(directory: DataDirectory) -> bool:
    """Whether a directory is gone; in a thread."""
    return directory.is_lost()


@asynccontextmanager
async def watched_directories(
    services: Iterable[object], end: Callable[[int], object] = os._exit
) -> AsyncIterator[None]:
    """Put around a process that serves: it ends with `EXIT_DIRECTORY_LOST` when one of its services
    has lost its directory."""
    kept = [one for one in services if isinstance(one, KeepsDirectory)]
    watch = DirectoryWatch(kept, end)
    watching = [
        asyncio.create_task(
            endless("data-directory", partial(watch.look, one)), name="data directory"
        )
        for one in kept
    ]
    try:
        yield
    finally:
        await end_tasks(*watching)
