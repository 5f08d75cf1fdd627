"""Who appends to a super stream: with numbers, in runs that lock each other out, and without.

A producer numbers its requests and sends each as it was until it knows the outcome. Now and then it
gives that up: it cuts the records anew, begins a new run while the old one still sends, or sends the
next request ahead. The value of a number is always the same, so whatever is stored twice shows.
"""

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any, Final

from simulation.clients import LATER, Services
from simulation.expected import Broken
from simulation.super_expected import SuperExpected, key_of

_COUNTS: Final = (1, 2, 3, 6, 12)
_GROWTHS_MAX: Final = 2
_STUCK_MAX: Final = 10
"""Runs that begin one after the other and store nothing."""
Answer = tuple[int, dict[str, Any]] | None


@dataclass
class SuperClient:
    """Sends records to one super stream through any node."""

    services: Services
    stream: SuperExpected
    name: str
    chance: random.Random

    @property
    def path(self) -> str:
        return f"/v1/super-streams/{self.stream.name}"

    async def send(self, values: list[str], headers: dict[str, str]) -> Answer:
        """One request; what it says is stored is held against what is known."""
        node = self.chance.choice(self.services.nodes)
        body = {"records": [{"value": value, "key": key_of(value)} for value in values]}
        self.stream.sent.update(values)
        gaps, blind = self.stream.gaps(), self.services.network.is_blind()
        known = len(self.stream.layouts)
        answer = await self.services.ask(
            node, "POST", f"{self.path}/records", body=body, headers=headers
        )
        if answer is None:
            self.services.story.count("requests of unknown outcome")
            return None
        status, told = answer
        if status in (200, 207):
            blind = blind or self.services.network.is_blind()
            self.stream.take(told, values, gaps, blind=blind)
            if not headers and not blind:
                self.stream.require_layouts(told, values, known)
            self.services.story.count("requests stored" if status == 200 else "stored in part")
        if status == 200:
            self.stream.whole.update(values)
            self.services.story.count("records of super streams acknowledged", len(values))
        elif status not in (207, 409, *LATER):
            raise Broken(f"{self.name} was answered {answer}")
        return answer


@dataclass
class SuperProducer(SuperClient):
    """Numbers its requests."""

    life: int = 0
    """A new one begins under another name, where an operator gave up what was known of it."""
    epoch: int = 0
    number: int = 0
    """Of the first record that is not known to be stored."""
    ahead: int | None = None
    """The end of the request after this one, if that was sent."""
    values: list[str] = field(default_factory=list)
    may_be_fenced: bool = False
    """Whether something that raises the epoch may still be on its way."""
    stuck: int = 0
    """Requests that were refused for good since the last one that was not."""
    _runs: list[tuple[int, int]] = field(default_factory=list)
    """Epoch of each run that was begun, and the number with which it was told to go on."""
    _cuts: set[tuple[int, int]] = field(default_factory=set)
    """First and end of each request that was sent in this life."""
    _zombies: set["asyncio.Task[None]"] = field(default_factory=set)

    async def run(self) -> None:
        while not self.stream.over:
            await self._store_one()
            await asyncio.sleep(self.chance.uniform(0, 0.3))
        if self._zombies:
            await asyncio.gather(*self._zombies)

    @property
    def producer_id(self) -> str:
        return f"{self.name}-{self.life}"

    def _values(self, first: int, end: int) -> list[str]:
        while len(self.values) < end:
            padding = "x" * int(3000 * self.chance.random() ** 4)
            self.values.append(f"{self.producer_id} {len(self.values)} {padding}")
        return self.values[first:end]

    async def _store_one(self) -> None:
        """Send one request until it is known to be whole, or is given up."""
        end = self.number + self.chance.choice(_COUNTS)
        if self.ahead is not None:
            # It may have left parts, so it comes as it was.
            end, self.ahead = self.ahead, None
        elif self.chance.random() < 0.05:
            # A new run that did not ask for an epoch; nobody comes to this one by counting.
            self.epoch, self.may_be_fenced = self.epoch + 100, True
        elif self.chance.random() < 0.05:
            await self._begin_run(end)
            return
        while True:
            answer = await self._send(self.number, end, self.epoch)
            if answer is not None and answer[0] == 200:
                self.number, self.stuck = end, 0
                return
            if answer is not None and (conflicts := _conflicts(answer)):
                if self.stream.may_have_forgotten:
                    self._begin_life()
                    return
                self._require_explained(conflicts, self.number, end)
                await self._begin_run(end)
                return
            self.services.story.count("requests repeated")
            await asyncio.sleep(self.chance.uniform(0.01, 0.5))
            fate = 1.0 if self.stream.over else self.chance.random()
            if fate < 0.1 and self.ahead is None:
                await self._send_ahead(end)
            elif fate < 0.2:
                end, self.ahead = self.number + self.chance.choice(_COUNTS), None
                self.services.story.count("requests cut anew")
            elif fate < 0.3:
                await self._begin_run(end)
                return

    async def _send(self, first: int, end: int, epoch: int) -> Answer:
        headers = {"producer-id": self.producer_id, "producer-seq": str(first)}
        if epoch:
            headers["producer-epoch"] = str(epoch)
        self._cuts.add((first, end))
        return await self.send(self._values(first, end), headers)

    def _require_explained(self, conflicts: set[str], first: int, end: int) -> None:
        """What refuses a request for good is another cut of its records, or a newer run."""
        others = self._cuts - {(first, end)}
        explained = set()
        if any(one_first < end and first < one_end for one_first, one_end in others):
            explained.add("producer-sequence-overlap")
        if self.may_be_fenced:
            explained.add("producer-fenced")
        if not conflicts <= explained:
            raise Broken(f"{self.producer_id} from {first} to {end} was refused: {conflicts}")
        self.stuck += 1
        if self.stuck > _STUCK_MAX:
            raise Broken(f"{self.producer_id} never comes further than {first}: {conflicts}")
        self.services.story.count("requests refused for good")

    async def _send_ahead(self, end: int) -> None:
        """The next request, before this one is known to be whole: refused, unless it is."""
        self.ahead = end + self.chance.choice(_COUNTS)
        answer = await self._send(end, self.ahead, self.epoch)
        self.services.story.count("requests sent ahead")
        if answer is not None and answer[0] == 207 and (conflicts := _conflicts(answer)):
            self._require_explained(conflicts, end, self.ahead)

    def _begin_life(self) -> None:
        self.life += 1
        self.epoch = self.number = 0
        self.ahead, self.may_be_fenced, self.stuck = None, False, 0
        self.values, self._cuts, self._runs = [], set(), []
        self.services.story.count("producers begun anew")

    async def _begin_run(self, end: int) -> None:
        """A new run, which goes on after the last number that it is told, beside the old one."""
        old = asyncio.create_task(self._send_on(self.number, end, self.epoch))
        self._zombies.add(old)
        answer: Answer = None
        while answer is None or answer[0] != 200:
            node = self.chance.choice(self.services.nodes)
            path = f"{self.path}/producers/{self.producer_id}/epoch"
            answer = await self.services.ask(node, "POST", path)
            if answer is None or answer[0] in LATER:
                self.may_be_fenced = True
                await asyncio.sleep(self.chance.uniform(0.01, 0.5))
            elif answer[0] != 200:
                raise Broken(f"{self.producer_id}: to raise its epoch was answered {answer}")
        told = answer[1]
        end = 0 if told["last_seq"] is None else told["last_seq"] + 1
        if end < self.number and not self.stream.may_have_forgotten:
            raise Broken(f"{self.producer_id}: {self.number} are stored, and it is told {end}")
        if end > len(self.values):
            raise Broken(f"{self.producer_id}: nobody sent {end}")
        self.epoch, self.number, self.ahead = told["epoch"], end, None
        self._runs.append((self.epoch, end))
        self.services.story.count("runs begun")

    async def _send_on(self, first: int, end: int, epoch: int) -> None:
        """What the old run does that does not know yet of the new one."""
        producer_id = self.producer_id
        for _ in range(self.chance.choice((1, 2, 3))):
            await asyncio.sleep(self.chance.uniform(0, 1.0))
            if self.producer_id != producer_id:
                return
            answer = await self._send(first, end, epoch)
            self.services.story.count("requests of an old run")
            if answer is not None and self.producer_id == producer_id:
                self._require_told(answer, end, epoch)
            if answer is not None and answer[0] == 200:
                return

    def _require_told(self, answer: tuple[int, dict[str, Any]], end: int, epoch: int) -> None:
        """Whoever began a run since was told of what the old one has stored."""
        if not any(part["status"] == 200 for part in answer[1].get("results", ())):
            return
        told = [number for newer, number in self._runs if newer > epoch]
        if told and min(told) < end and not self.stream.may_have_forgotten:
            raise Broken(f"{self.producer_id}: {end} are stored, and a newer run was told {told}")


def _conflicts(answer: tuple[int, dict[str, Any]]) -> set[str]:
    """Why the same again would be refused again; nothing if it need not be."""
    status, told = answer
    parts = [one["problem"] for one in told.get("results", ()) if one["status"] == 409]
    return {one["code"] for one in ([told] if status == 409 else parts)}


class PlainSuperWriter(SuperClient):
    """Sends each request once, without numbers."""

    async def run(self) -> None:
        number = 0
        while not self.stream.over:
            count = self.chance.choice(_COUNTS)
            values = [f"{self.name} {number + n} x" for n in range(count)]
            number += count
            answer = await self.send(values, {})
            if answer is not None:
                self._note_refused(answer, values)
            await asyncio.sleep(self.chance.uniform(0, 0.25))

    def _note_refused(self, answer: tuple[int, dict[str, Any]], values: list[str]) -> None:
        status, told = answer
        if status == 409:
            raise Broken(f"{self.name} was answered {answer}")
        if status in LATER and told.get("outcome") == "none":
            self.stream.refuse(values)
        for part in told.get("results", ()):
            if part["status"] != 200 and part["problem"]["outcome"] == "none":
                self.stream.refuse([values[n] for n in part["record_indexes"]])


class Grower(SuperClient):
    """Gives the super stream more partitions, once or twice."""

    async def run(self) -> None:
        for _ in range(_GROWTHS_MAX):
            await asyncio.sleep(self.chance.uniform(0.5, 4))
            if self.stream.over:
                return
            count = len(self.stream.streams) + self.chance.choice((1, 1, 2))
            body = {"partitions": count, "accept_rehash": True}
            await self._ask(body)

    async def _ask(self, body: dict[str, Any]) -> None:
        headers = {"if-match": "*", "content-type": "application/merge-patch+json"}
        while not self.stream.over:
            answer = await self.services.ask(
                self.services.manifest, "PATCH", self.path, body=body, headers=headers
            )
            if answer is not None and answer[0] in (200, 202):
                self.services.story.tell("grower", f"{body['partitions']}: {answer[0]}")
                self.services.story.count("growths")
                return
            if (
                answer is not None
                and answer[0] == 422
                and len(self.stream.streams) > body["partitions"]
            ):
                # It was counted while an earlier growth was under way, which had more partitions in mind.
                self.services.story.count("growths that came too late")
                return
            # A name may not be free yet, of a growth that was lost with coordination.
            lost = any(one.losses for one in self.stream.streams)
            if answer is not None and answer[0] not in LATER and not (answer[0] == 409 and lost):
                raise Broken(f"a growth to {body['partitions']} was answered {answer}")
            await asyncio.sleep(self.chance.uniform(0.1, 0.5))
