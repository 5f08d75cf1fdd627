"""Who stages records and commits them: in parts, under numbers without a gap, and again."""

import asyncio

from bottomless.client.tables import frames_body
from bottomless.model.rows import Rows
from simulation.clients import LATER, Writer
from simulation.expected import Broken


class StagedWriter(Writer):
    """Stages records in pieces and commits them under numbers without a gap, and asks again, in
    other pieces, until it is told that all of them are stored.

    Most of its commits are of several parts. The simulation had no staged commit before, so it
    never saw one cut off by a kill, a drain or a pause, nor its repeat at another node.
    """

    commit_number: int = 0

    async def run(self) -> None:
        while not self.over:
            values, begun = self.values(), self.expected.acknowledged_next
            self.expected.stored_anew.update(values)
            while not self.expected.deleted and not await self._commit(values, begun):
                number = self.commit_number
                if self.asks and await self.is_known(self.name, number - 1, number):
                    self.expected.promise(begun, None, values)
                    break
                self.services.story.count("commits repeated")
                await asyncio.sleep(self.chance.uniform(0.01, 0.5))
            self.commit_number += 1
            await asyncio.sleep(self.chance.uniform(0, 0.5))

    async def _commit(self, values: list[str], begun: int) -> bool:
        """Whether it is over."""
        node = self.chance.choice(self.services.nodes)
        staged = []
        for piece in self._pieces(values):
            body = frames_body(Rows([value.encode() for value in piece], [1] * len(piece)))
            path = f"/v1/streams/{self.expected.name}/staged"
            headers = {"content-type": "application/vnd.bottomless.batches"}
            answer = await self.services.ask(node, "POST", path, body=body, headers=headers)
            if answer is None or answer[0] != 201:
                return False
            staged.append(answer[1]["staged_id"])
        headers = {
            "content-type": "application/vnd.bottomless.staged+json",
            "producer-id": self.name,
            "txn-number": str(self.commit_number),
        }
        answer = await self.services.ask(
            node, "POST", self.path, body={"staged": staged}, headers=headers
        )
        if answer is None:
            return False
        status, told = answer
        if status == 200:
            first_offset, told_of = told["first_offset"], told["count"] + told["duplicates"]
            # Of many parts a repeat does not remember all; then it says so.
            if first_offset is not None and told_of != len(values):
                raise Broken(f"{self.name} {self.commit_number}: {told} of {len(values)} records")
            self.expected.promise(begun, first_offset, values)
            if first_offset is not None:
                self.expected.told.add((first_offset, first_offset + len(values)))
            self.services.story.count("commits acknowledged")
            return True
        lost = status == 404 and told["code"] == "staged-not-found" and told["outcome"] == "none"
        if self.expected.has_forgotten(self.name) and status in (404, 409) and not lost:
            # What was known of it is lost with the disk; it goes on with the next.
            return True
        if status not in LATER and not lost and not (status == 404 and self.expected.deleted):
            raise Broken(f"{self.name}, commit {self.commit_number}, was answered {answer}")
        return False

    def _pieces(self, values: list[str]) -> list[list[str]]:
        size = self.chance.randint(1, 4)
        return [values[first : first + size] for first in range(0, len(values), size)]
