"""Reads the mark of freed names again and again, where no lease of a node is renewed with it.

What a name means is believed as long as the mark stands (names.py), and a node without a disk has no
lease at whose renewals it would be read.
"""

import asyncio
from collections.abc import Callable

import structlog

from bottomless.errors import StoreError
from bottomless_server.coordination.base import Coordination
from bottomless_server.node.core.belief import Moment
from bottomless_server.node.lease import Clocks
from bottomless_server.runtime.base.end import end_tasks
from bottomless_server.runtime.base.endless import endless
from bottomless_server.stores.freed_names import NamesShown, shown_names

log = structlog.get_logger(__name__)


class NameWatch:
    """Tells what coordination shows of names, from `start` to `stop`."""

    def __init__(
        self,
        coordination: Coordination,
        clocks: Clocks,
        heard: Callable[[NamesShown, int, Moment], None],
        *,
        every_ms: int,
    ) -> None:
        """`heard` is told what `NodeLease` would tell it."""
        self._coordination = coordination
        self._clocks = clocks
        self._heard = heard
        self._every_seconds = every_ms / 1000
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Look at once, and go on looking."""
        watching = endless("ingest-names", self.look, pause_seconds_max=self._every_seconds)
        self._task = asyncio.create_task(watching, name="ingest-names")

    async def stop(self) -> None:
        if self._task is not None:
            await end_tasks(self._task)

    async def look(self) -> float:
        """Look once; the pause until the next look. What is not heard is believed for a while only."""
        begun = self._clocks.beginning()
        try:
            async with asyncio.timeout(self._every_seconds):
                shown = await shown_names(self._coordination)
        except (StoreError, TimeoutError) as error:
            log.warning("freed names were not asked for", error=str(error))
        else:
            self._heard(shown, self._coordination.connected_count, begun)
        return self._every_seconds
