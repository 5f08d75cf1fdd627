"""Writers of leaderless streams with numbers that have gaps, and with keys.

Local streams have neither here: their tracking is one table in the memory of one node, which strict
producers and staged commits show. Of a leaderless stream each name is a value of its own, which nodes
change beside each other.
"""

import asyncio
from typing import Any

from simulation.clients import LATER, Writer
from simulation.expected import Broken


class HighwaterProducer(Writer):
    """Numbers each record, and sends again what it was not told the outcome of, now and then with
    what was acknowledged before it."""

    async def run(self) -> None:
        before: list[str] = []
        headers = {"producer-id": self.name}
        while not self.over:
            new = self.values()
            values = [*before, *new] if self.chance.random() < 0.3 else new
            while not self.expected.deleted:
                answer = await self.send(values, headers)
                if answer is not None and answer[0] == 200:
                    break
                if answer is not None and answer[0] not in LATER and answer[0] != 404:
                    raise Broken(f"{self.name} was answered {answer}")
                self.services.story.count("appends repeated")
                await asyncio.sleep(self.chance.uniform(0.01, 0.5))
            before = new
            await asyncio.sleep(self.chance.uniform(0, 0.4))

    def records(self, values: list[str]) -> list[dict[str, Any]]:
        return [{"value": one, "publishing_id": int(one.split(" ")[1])} for one in values]

    def take(
        self, told: dict[str, Any], values: list[str], gaps: set[tuple[int, int]], *, blind: bool
    ) -> None:
        if told["count"] + told["duplicates"] != len(values):
            raise Broken(f"{self.name}: {told} of {len(values)} records")
        # What is left out is the beginning: numbers grow.
        stored = values[told["duplicates"] :]
        if stored:
            self.expected.acknowledge(told["first_offset"], stored, gaps, blind=blind)
        lost = self.name in self.expected.lost_of
        if told["duplicates"] and not lost:
            self.expected.promise(0, None, values[: told["duplicates"]])


class KeyedWriter(Writer):
    """Sends each request under a key of its own, until it is told the outcome."""

    async def run(self) -> None:
        while not self.over:
            values = self.values()
            headers = {"idempotency-key": f"{self.name} {self.number}"}
            while not self.expected.deleted:
                answer = await self.send(values, headers)
                if answer is not None and answer[0] == 200:
                    break
                in_flight = answer is not None and answer[1]["code"] == "idempotency-in-flight"
                if answer is not None and answer[0] not in {*LATER, 404} and not in_flight:
                    raise Broken(f"{self.name} was answered {answer}")
                self.services.story.count("appends repeated")
                await asyncio.sleep(self.chance.uniform(0.01, 0.5))
            await asyncio.sleep(self.chance.uniform(0, 0.4))
