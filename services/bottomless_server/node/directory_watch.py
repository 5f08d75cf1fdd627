"""The watch over the data directory of a node that is served: one whose directory is gone ends at once.

A process that goes on writes to files that have no name any more. It would sync them, and say that
records are durable which nobody finds again. So it is fenced first, and ends without a drain: nothing
is acknowledged after the decision. What was acknowledged before it is on the other nodes in sync,
and on this one it is lost, as with any lost disk. Its lease is given up between the two, if coordination
answers within a moment, so that another node goes on at once; else it runs out
(docs/decisions/0211-a-node-without-its-directory-ends.md).

Looked at is the lock, which is never replaced while a node lives: who takes away that file alone
lets a second process use the directory.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Final, Protocol, runtime_checkable

import structlog

from bottomless.guards import guard
from bottomless_server.node.core.lost_directory import DirectoryLooks, Seen
from bottomless_server.node.data_directory import DataDirectory
from bottomless_server.node.lease import NodeLease
from bottomless_server.runtime.base.end import end_tasks
from bottomless_server.runtime.base.endless import endless

log = structlog.get_logger(__name__)

LOOK_SECONDS: Final = 1.0
AGAIN_SECONDS: Final = 0.2
"""Until the look after one that did not find the directory."""
GIVE_UP_SECONDS: Final = 0.5
"""How long coordination may take to hear that the lease is given up."""
EXIT_DIRECTORY_LOST: Final = 4
"""The exit code of a process whose data directory is gone."""


@runtime_checkable
class KeepsDirectory(Protocol):
    """A service with a directory whose loss ends it, and the lease under which it answers."""

    directory: DataDirectory
    lease: NodeLease


class DirectoryWatch:
    """Looks at one directory, once it was opened and for as long as it is open."""

    def __init__(
        self, directory: DataDirectory, lease: NodeLease, end: Callable[[int], object]
    ) -> None:
        """`end` ends this process at once with an exit code, as `os._exit` does."""
        self._directory = directory
        self._lease = lease
        self._end = end
        self._looks = DirectoryLooks()

    async def look(self) -> float:
        """Look once; returns after how many seconds to look again.

        The look is made in a thread: where a mount hangs it waits, nothing is decided, and all else
        goes on.
        """
        if not self._directory.is_open:
            return LOOK_SECONDS
        if self._is_lost(await asyncio.to_thread(self._directory.look)):
            await self._end_without_it()
        return AGAIN_SECONDS if self._looks.is_doubted else LOOK_SECONDS

    @guard("the end of a node without its directory")
    def _is_lost(self, seen: Seen) -> bool:
        """Take up a look, and say whether the directory is lost by now.

        One that was closed meanwhile belongs to nobody, or to another process.
        """
        return self._looks.is_lost(seen) and self._directory.is_open

    async def _end_without_it(self) -> None:
        self._lease.fence()
        log.critical(
            "the data directory of this node is gone, so this process ends at once; look at the disk "
            "and its mount, then start the node again: with an empty directory it is another node",
            directory=str(self._directory.path),
            exit_code=EXIT_DIRECTORY_LOST,
        )
        try:
            async with asyncio.timeout(GIVE_UP_SECONDS):
                await self._lease.stop()
        except TimeoutError:
            log.warning("coordination does not answer, so the lease runs out")
        finally:
            self._end(EXIT_DIRECTORY_LOST)


@asynccontextmanager
async def watched_directories(
    services: Iterable[object], end: Callable[[int], object] = os._exit
) -> AsyncIterator[None]:
    """Put around a process that serves: it ends with `EXIT_DIRECTORY_LOST` when one of its services
    has lost its directory."""
    watching = [
        asyncio.create_task(
            endless("data-directory", DirectoryWatch(one.directory, one.lease, end).look),
            name="data directory",
        )
        for one in services
        if isinstance(one, KeepsDirectory)
    ]
    try:
        yield
    finally:
        await end_tasks(*watching)
