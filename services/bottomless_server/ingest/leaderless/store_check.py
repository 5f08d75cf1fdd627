"""What a writer finds out of coordination before it commits to it: the generation, and whether it is
an older copy of itself.

Nothing is written here.
"""

import asyncio
from typing import Final

from bottomless.errors import Code, Unavailable
from bottomless.formats.keys import WAL_PREFIX
from bottomless_server.core.regressed import coordination_lost
from bottomless_server.ingest.leaderless.context import WriterContext
from bottomless_server.stores.generation import held_generation, stored_generation
from bottomless_server.stores.streams import GENERATION_KEY
from bottomless_server.stores.wal_check import check_wal

CONNECTION_COUNT: Final = 5
"""Calls of one writer at once: a commit, the renewal of a lease, two looks, and one for notes of
others. So many connections are there before a run of the store is compared, since each new one would have it compared again."""


class StoreCheck:
    """The run of the coordination store that was compared with the bucket last."""

    def __init__(self, context: WriterContext) -> None:
        self._context = context
        self._checked: tuple[int, int] | None = None
        """The run, and the generation."""
        self.agreed: int | None = None
        """The generation on which bucket and coordination agreed when it was looked last."""

    async def generation(self) -> int:
        """The generation on which bucket and coordination agree.

        Raises:
            Unavailable: `coordination-regressed`, or not now.
        """
        stored = await stored_generation(self._context.drive)
        held = await held_generation(self._context.coordination)
        if stored is None:
            sentence = "the store has no generation yet: manifest has not begun"
            raise Unavailable(sentence, code=Code.COORDINATION_UNAVAILABLE)
        if held != stored:
            self.agreed = None
            raise coordination_lost()
        self.agreed = stored
        return stored

    async def run(self, generation: int) -> int:
        """The run of the store that answers now, once it was compared with the bucket.

        A commit of which no object speaks yet is not found, so writers that live have the time to
        put their notes first.

        Raises:
            Unavailable: `coordination-regressed`, or not now.
        """
        context, bounds = self._context, self._context.bounds
        if self._checked == (context.coordination.connected_count, generation):
            return self._checked[0]
        asked = [context.coordination.get(GENERATION_KEY) for _ in range(CONNECTION_COUNT)]
        await asyncio.gather(*asked)
        if await self._has_objects():
            await asyncio.sleep(bounds.note_ms / 1000 + bounds.check_seconds)
        run = await check_wal(context.drive, context.coordination, generation)
        self._checked = (run, generation)
        return run

    async def _has_objects(self) -> bool:
        """Whether anybody ever put something: else there is nothing to wait for."""
        async for _ in self._context.drive.list(WAL_PREFIX):
            return True
        return False
