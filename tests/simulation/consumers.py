"""A consumer with a name: it reads, stores how far it is, and comes back to what it stored."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from simulation.clients import LATER, Reader
from simulation.expected import Broken


@dataclass
class Consumer(Reader):
    """Now and then it forgets where it was, as after a restart, and asks.

    Pages are held against what is there by `Reader`, so a record is left out only if it is told a
    place that it never came to. What it stored is lost with coordination at most, and not where
    it was said to be in the object store.
    """

    tried: set[int] = field(default_factory=lambda: {0})
    """Every offset that it asked to be stored."""
    confirmed: int = 0
    confirmed_before_loss: int = 0
    """Of coordination: how many there had been when that was confirmed."""
    safe: int = 0
    """Of which an answer said that the object store has it."""

    async def run(self) -> None:
        while not self.services.closing and not self.expected.deleted:
            if self.chance.random() < 0.15:
                await self._come_back()
            await self.page(limit=self.chance.choice((3, 20, 100)))
            if self.chance.random() < 0.6:
                await self._commit()
            await asyncio.sleep(self.chance.uniform(0, 0.4))

    @property
    def _path(self) -> str:
        return f"/v1/streams/{self.expected.name}/consumers/billing/offset"

    async def _commit(self) -> None:
        losses, next_offset = self.expected.losses, self.position
        self.tried.add(next_offset)
        answer = await self.services.ask(
            self.services.manifest, "PUT", self._path, body={"next_offset": next_offset}
        )
        if answer is None or answer[0] in LATER or self.expected.deleted:
            return
        status, told = answer
        if status == 200:
            self._confirm(told, losses)
            self.services.story.count("offsets of consumers stored")
        elif status == 409 and told["code"] == "offset-regression":
            self._check(told["next_offset"], losses)
        elif status != 422 or told["code"] != "offset-beyond-end" or not self.expected.takeovers:
            raise Broken(f"{self.expected.name}: a commit of {next_offset} was answered {answer}")

    async def _come_back(self) -> None:
        losses = self.expected.losses
        answer = await self.services.ask(self.services.manifest, "GET", self._path)
        if answer is None or answer[0] in LATER or self.expected.deleted:
            return
        status, told = answer
        if status == 404 and told["code"] == "offset-not-found":
            self._check(0, losses)
            self.position = 0
        elif status == 200:
            self._check(told["next_offset"], losses)
            self._confirm(told, losses)
            self.position = told["next_offset"]
            self.services.story.count("consumers came back")
        else:
            raise Broken(f"{self.expected.name}: its consumer was answered {answer}")

    def _confirm(self, told: dict[str, Any], losses: int) -> None:
        if losses == self.expected.losses:
            self.confirmed, self.confirmed_before_loss = told["next_offset"], losses
        if told["durability"] == "snapshot":
            self.safe = max(self.safe, told["next_offset"])

    def _check(self, stored: int, losses: int) -> None:
        """What is stored was asked for, and is not less than what has to be there."""
        least = self.safe
        if losses == self.expected.losses == self.confirmed_before_loss:
            least = max(least, self.confirmed)
        if stored not in self.tried or stored < least:
            raise Broken(f"{self.expected.name}: its consumer stands at {stored}, not at {least}")
