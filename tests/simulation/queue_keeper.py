"""Who keeps house in queues: purges, deletes and makes anew, and sends dead letters back."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from simulation.clients import LATER
from simulation.expected import Broken
from simulation.queue_emptied import Emptying, StormAccount
from simulation.queue_world import DEAD, EMPTIED, MOVED, Answer, QueueWorld

_CONFLICT = 409
_NOT_FOUND = 404


@dataclass
class Keeper:
    """Does one thing after the other, until nothing new is published."""

    world: QueueWorld
    chance: random.Random

    async def run(self) -> None:
        ways: list[Callable[[StormAccount], Awaitable[None]]] = [
            self._purge,
            self._delete,
            self._redrive,
            self._redrive,
            self._delete_a_target,
        ]
        while not self.world.over:
            await asyncio.sleep(self.chance.uniform(0.2, 1.2))
            era = self.world.era
            if era is not None:
                await self.chance.choice(ways)(era)

    async def _purge(self, era: StormAccount) -> None:
        emptying = era.emptied.begin()
        answer = await self.world.ask("POST", f"/v1/queues/{EMPTIED}/purge")
        self._end(era, emptying, answer)

    async def _delete(self, era: StormAccount) -> None:
        emptying = era.emptied.begin()
        answer = await self.world.ask("DELETE", f"/v1/queues/{EMPTIED}")
        self._end(era, emptying, answer, deleted=True)
        await asyncio.sleep(self.chance.choice((0.0, 0.0, 0.4)))
        await self.world.create_all()

    def _end(
        self,
        era: StormAccount,
        emptying: Emptying,
        answer: Answer | None,
        *,
        deleted: bool = False,
    ) -> None:
        done: bool | None = None
        if answer is not None and era is self.world.era and self.world.sure:
            status, told = answer
            if status in LATER:
                done = False if told.get("outcome") == "none" else None
            elif status == _NOT_FOUND:
                # Whatever was there before is gone, and nobody has made it anew yet.
                done = deleted and bool(era.emptied.buried or era.emptied.unsure)
            elif status in (200, 204):
                done = True
                what = "queues deleted" if deleted else "queues purged"
                self.world.services.story.count(what)
            else:
                raise Broken(f"{EMPTIED} was to be emptied, and the answer was {answer}")
        era.emptied.end(emptying, done=done, deleted=deleted)

    async def _redrive(self, era: StormAccount) -> None:
        _, source = MOVED
        body: dict[str, Any] = {"limit": self.chance.choice((1, 5, 1_000))}
        if self.chance.random() < 0.3:
            body["to"] = MOVED[0]
        answer = await self.world.ask("POST", f"/v1/queues/{source}/redrive", body)
        if answer is None or answer[0] in LATER:
            return
        if answer[0] == _NOT_FOUND:
            # So it is after a takeover.
            await self.world.create_all()
        elif answer[0] != 200:
            raise Broken(f"a redrive was answered {answer}")
        elif era is self.world.era:
            self.world.services.story.count("messages redriven", answer[1]["moved"])

    async def _delete_a_target(self, era: StormAccount) -> None:
        """Nobody can delete a queue where dead letters of another one go."""
        answer = await self.world.ask("DELETE", f"/v1/queues/{DEAD}")
        if answer is None or answer[0] in LATER or era is not self.world.era:
            return
        if answer[0] != _CONFLICT and not (answer[0] == _NOT_FOUND and len(self.world.eras) > 1):
            raise Broken(f"the target of dead letters was to be deleted: {answer}")
