"""What a writer finds out of coordination before it commits to it: the generation, and whether it is
an older copy of itself.

What one run of the store has answered it does not go back on, so a new connection to the same run costs
a look at the bucket. Another run may be an older copy that was put back a moment ago, of which the bucket
has no proof yet: then it is waited for what other writers know (stores/other_writers.py), at most until
the notes of before that run must have come.

Nothing is written here.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from bottomless.errors import Code, StoreError, Unavailable
from bottomless.formats.keys import WAL_PREFIX
from bottomless.guards import guard
from bottomless_server.coordination.base import StoreRun
from bottomless_server.core.regressed import coordination_lost
from bottomless_server.ingest.leaderless.context import WriterContext
from bottomless_server.leaderless.attempts import NOTHING_COMPARED, AttemptNumbers, owes_beside
from bottomless_server.stores.generation import held_generation, stored_generation
from bottomless_server.stores.other_writers import Own, Unheard, in_doubt, show_life
from bottomless_server.stores.streams import GENERATION_KEY
from bottomless_server.stores.wal_check import check_wal

CONNECTION_COUNT: Final = 5
"""Calls of one writer at once: a commit, the renewal of a lease, two looks, and one for notes of
others. So many connections are there before a run of the store is compared, since each new one would have it compared again."""
_LOOK_SECONDS: Final = 0.3
"""How often it is looked whether the others were heard of."""


class Checked(NamedTuple):
    """What was compared with the bucket."""

    connected: int
    """The connection to the store, by its count."""
    run_id: str
    """The run of the store that it is to."""
    whole: bool = True
    """Whether it is good for more than a repeat of what may have been seen: others may have to repeat
    something too."""


NOTHING_CHECKED: Final = Checked(NOTHING_COMPARED, "")
"""What was compared before anything was: it is of no connection that there is."""


class _Met:
    """A run of the store, as this process came to know it."""

    def __init__(self, run_id: str, until: int) -> None:
        self.run_id = run_id
        self.until = until
        """When all notes of before that run must have come, by the time that passes."""
        self.unheard = Unheard()


async def nothing_to_show() -> None:
    """What shows the life of a process that has no instance."""


class StoreCheck:
    """The run of the coordination store that was compared with the bucket last."""

    def __init__(self, context: WriterContext, own: Callable[[], Own]) -> None:
        """`own` tells the instances of this process, as they are now."""
        self._context = context
        self._own = own
        self._checked: tuple[int, int] | None = None
        """The connection of the store that was compared last, and the generation."""
        self.compared: str | None = None
        """The run of the store that was compared last; None before any was."""
        self.waits = False
        """Whether another writer is in doubt, and was not heard of yet."""
        self._met: _Met | None = None
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

    def living(self) -> Sequence[AttemptNumbers]:
        """The numbers of all instances as which this process writes now."""
        return self._own().living

    async def show_life(self, numbers: AttemptNumbers) -> None:
        """Show others that an instance of this process has lost nothing, and that no other one has.

        Raises:
            Unavailable: `coordination-regressed`, or not now.
        """
        beside = [one for one in self.living() if one.generation == numbers.generation]
        await show_life(self._context.coordination, numbers, beside)

    async def run(
        self,
        generation: int,
        show_life: Callable[[], Awaitable[None]] = nothing_to_show,
        numbers: AttemptNumbers | None = None,
    ) -> Checked:
        """The connection of the store over which it answers now, once it was compared with the bucket;
        for `AttemptNumbers.compared`. `show_life` tells others that this process still writes, and
        `numbers` are those of the instance that asks, if it has begun.

        Raises:
            Unavailable: `coordination-regressed`, or not now.
        """
        checked = await self._compared(generation, show_life, numbers)
        if numbers is None or not numbers.owes_lost:
            await self._wait_beside(numbers)
            return checked
        return checked._replace(whole=checked.whole and not owes_beside(numbers, self.living()))

    @guard("a repeat by another instance of the process, before anything new")
    async def _wait_beside(self, numbers: AttemptNumbers | None) -> None:
        """Wait until no other instance of this process may have to repeat something, but no longer
        than for those of others."""
        while self._met is not None and self._context.now() < self._met.until:
            if not any(one.may_owe for one in self.living() if one is not numbers):
                return
            await asyncio.sleep(_LOOK_SECONDS)

    async def _compared(
        self,
        generation: int,
        show_life: Callable[[], Awaitable[None]],
        numbers: AttemptNumbers | None,
    ) -> Checked:
        coordination, whole = self._context.coordination, True
        if self.compared and self._checked == (coordination.connected_count, generation):
            return Checked(self._checked[0], self.compared)
        asked = [coordination.get(GENERATION_KEY) for _ in range(CONNECTION_COUNT)]
        await asyncio.gather(*asked)
        # Before the run is asked for: of what is connected to later nothing is known.
        connected = coordination.connected_count
        run = await coordination.run()
        if run.run_id != self.compared and await self._has_objects():
            whole = await self._hear_others(run, generation, show_life, numbers)
        await check_wal(self._context.drive, coordination, generation)
        if whole:
            self._checked, self.compared = (connected, generation), run.run_id
        return Checked(connected, run.run_id, whole)

    async def _hear_others(
        self,
        run: StoreRun,
        generation: int,
        show_life: Callable[[], Awaitable[None]],
        numbers: AttemptNumbers | None,
    ) -> bool:
        """Wait until every writer that lives has put its notes, or has shown that nothing of what it
        committed is missing. Who may have to repeat something does not wait for those that may as well;
        whether there is none of them.

        Raises:
            Unavailable: `coordination-regressed`.
        """
        context, bounds = self._context, self._context.bounds
        met = self._meet(run)
        await asyncio.sleep(bounds.note_ms / 1000 + bounds.check_seconds)
        while context.now() < met.until:
            try:
                if not self._own().losing:
                    await show_life()
                stores = context.drive, context.coordination
                found = await in_doubt(*stores, generation, context.url, self._own())
            except StoreError as error:
                # What was heard so far still holds, and the time goes on.
                if error.code is Code.COORDINATION_REGRESSED:
                    raise
            else:
                self.waits = met.unheard.note(found)
                if not self.waits:
                    return True
                owes = numbers is not None and numbers.owes_lost
                if owes and not met.unheard.note(found, owes=True):
                    return False
            await asyncio.sleep(_LOOK_SECONDS)
        return True

    def _meet(self, run: StoreRun) -> _Met:
        if self._met is None or self._met.run_id != run.run_id:
            bounds = self._context.bounds
            # Of the first run that a process meets nobody but the store knows how long it is there.
            up_ms = run.up_ms if self._met is None else 0
            left = bounds.note_ms + int(bounds.put_seconds * 1000) - up_ms
            self._met = _Met(run.run_id, self._context.now() + left)
        return self._met

    async def _has_objects(self) -> bool:
        """Whether anybody ever put something: else there is nothing to wait for."""
        async for _ in self._context.drive.list(WAL_PREFIX):
            return True
        return False
