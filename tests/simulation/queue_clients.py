"""Who uses queues: publishers that repeat what they do not know, and workers that get tired of it or die.

Every answer is held against the lists of the ledger that gave it (queue_expected.py).
"""

import asyncio
import random
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Final

from support.queue_account import QueueAccount, QueueExpected

from simulation.clients import LATER
from simulation.expected import Broken
from simulation.queue_world import OPEN, QueueWorld

_COUNTS: Final = (1, 1, 2, 5)
_NOT_FOUND: Final = 404
_WAITS_MS: Final = (0, 0, 300, 1_500)
_VISIBILITIES_MS: Final = (None, None, 200, 1_000, 4_000)


@dataclass
class Publisher:
    """Publishes values that nobody else does."""

    world: QueueWorld
    name: str
    chance: random.Random
    way: str
    """`key`, `dedup` or `plain`: how repeats are told from new messages."""
    fans_out: bool = False
    queues: tuple[str, ...] = OPEN
    """It publishes in one of them, or in all where it fans out."""
    number: int = 0

    async def run(self) -> None:
        while not self.world.over:
            await self._publish()
            await asyncio.sleep(self.chance.uniform(0, 0.5))

    def _messages(self) -> list[dict[str, Any]]:
        made = []
        for _ in range(self.chance.choice(_COUNTS)):
            padding = "x" * int(9_000 * self.chance.random() ** 4)
            value = f"{self.name} {self.number} {padding}"
            message: dict[str, Any] = {"value": value, "headers": {"name": value[:20]}}
            if self.chance.random() < 0.2:
                message["priority"] = self.chance.randint(1, 9)
            if self.chance.random() < 0.1:
                message["delay_ms"] = self.chance.choice((100, 1_000))
            if self.chance.random() < 0.15:
                message["ttl_ms"] = self.chance.choice((500, 3_000))
            if self.way == "dedup":
                message["dedup_id"] = f"{self.name}-{self.number}"
            self.number += 1
            self.world.sent[value] = message
            made.append(message)
        return made

    async def _publish(self) -> None:
        messages = self._messages()
        values = [one["value"] for one in messages]
        queues = list(self.queues) if self.fans_out else [self.chance.choice(self.queues)]
        headers = {"idempotency-key": f"{self.name}-{self.number}"} if self.way == "key" else {}
        body: dict[str, Any] = {"messages": messages}
        path = f"/v1/queues/{queues[0]}/messages"
        if self.fans_out:
            path, body["queues"] = "/v1/publish", queues
        era = self.world.era
        if era is None:
            await asyncio.sleep(0.1)
            return
        of = [era.queues[name] for name in queues]
        for one in of:
            one.asked.update(values)
        all_none = True
        while True:
            answer = await self.world.ask("POST", path, body, headers)
            if era is not self.world.era or not self.world.sure:
                # Whoever was asked, it is not known which ledger has it.
                self.world.loose.update(values)
                return
            status, told = answer or (0, {})
            if status == 200:
                self._stored(of, told, values)
                return
            all_none &= status in LATER and told.get("outcome") == "none"
            if status == _NOT_FOUND:
                await self._found_none(era, of, told)
            elif answer is not None and status not in LATER:
                raise Broken(f"a publish of {self.name} was answered {answer}")
            if self.way == "plain" or (self.world.over and all_none):
                if all_none and answer is not None:
                    for one in of:
                        one.refuse(values)
                return
            self.world.services.story.count("publishes repeated")
            await asyncio.sleep(self.chance.uniform(0.02, 0.5))

    async def _found_none(self, era: QueueAccount, of: Sequence[QueueExpected], told: Any) -> None:
        """No such queue: so it is for a while after a takeover, until somebody has made it."""
        known = [
            one.name
            for one in of
            if one.queue_id and told.get("queue", one.name) == one.name and not one.may_be_missing
        ]
        if self.world.era is era and known:
            raise Broken(f"{known} are gone, and nobody has deleted them: {told}")
        await self.world.create_all()

    def _stored(
        self, of: Sequence[QueueExpected], told: Mapping[str, Any], values: list[str]
    ) -> None:
        answers = told["queues"] if self.fans_out else [told]
        for one, answered in zip(of, answers, strict=True):
            one.store(answered, values)
        self.world.services.story.count("messages stored", len(values) * len(of))


@dataclass
class Worker:
    """Receives from one queue, and does with each message what somebody might."""

    world: QueueWorld
    queue: str
    name: str
    chance: random.Random
    calm: bool = False
    """It acknowledges whatever it gets."""
    unsure: list[tuple[QueueAccount, Mapping[str, Any]]] = field(default_factory=list)
    """Deliveries whose acknowledgement had no answer."""

    async def run(self) -> None:
        while not self.world.closing:
            await self._once()
            pause = 0.3 if self.calm else self.chance.uniform(0, 0.4)
            await asyncio.sleep(pause)

    async def _once(self) -> None:
        era = self.world.era
        if era is None:
            return
        body: dict[str, Any] = {"limit": self.chance.choice((1, 3, 20))}
        visibility = None if self.calm else self.chance.choice(_VISIBILITIES_MS)
        if visibility is not None:
            body["visibility_ms"] = visibility
        if wait_ms := self.chance.choice(_WAITS_MS):
            body["max_wait_ms"] = wait_ms
        over = frozenset(era.queues[self.queue].over)
        told = await self._ask("receive", body, era)
        if told is None:
            return
        messages = told["messages"]
        for message in messages:
            self._require_not(over, message, "is delivered")
            self._take(era, message)
        if not messages or (not self.calm and self.chance.random() < 0.1):
            # A worker that dies says nothing more of what it has.
            return
        await self._work(era, messages)

    def _require_not(self, over: AbstractSet[str], message: Mapping[str, Any], what: str) -> None:
        """Whoever asks after a message was done with, purged or deleted gets nothing of it."""
        if message["value"] in over and message["value"] not in self.world.loose:
            raise Broken(f"{self.queue}: {message['value'][:40]} was over, and {what}")

    def _take(self, era: QueueAccount, message: Mapping[str, Any]) -> None:
        story = self.world.services.story
        if message["value"] in self.world.loose and message["value"] in self.world.sent:
            era.queues[self.queue].asked.add(message["value"])
            era.queues[self.queue].stored.pop(message["value"], None)
        era.queues[self.queue].deliver(message)
        story.count("messages delivered")
        story.count("messages delivered again", message["deliveries"] > 1)

    async def _ask(
        self, what: str, body: dict[str, Any], era: QueueAccount
    ) -> dict[str, Any] | None:
        """What was answered for sure by the ledger of this era."""
        path = f"/v1/queues/{self.queue}/{what}"
        answer = await self.world.ask("POST", path, body)
        if answer is None or answer[0] in LATER or answer[0] == _NOT_FOUND:
            return None
        if answer[0] != 200:
            raise Broken(f"{what} of {self.name} was answered {answer}")
        if era is not self.world.era or not self.world.sure:
            return None
        told: dict[str, Any] = answer[1]
        return told

    async def _work(self, era: QueueAccount, messages: list[dict[str, Any]]) -> None:
        if self.calm:
            await self._ack(era, messages)
            return
        await asyncio.sleep(self.chance.choice((0.0, 0.1, 0.5, 2.5)) * self.chance.random())
        if self.chance.random() < 0.2:
            await self._ask("extend", _naming(messages, visibility_ms=1_000), era)
            await asyncio.sleep(self.chance.uniform(0, 0.8))
        fates: dict[str, list[dict[str, Any]]] = {"ack": [], "nack": [], "reject": [], "": []}
        for message in messages:
            fates[self.chance.choices(list(fates), (6, 2, self._rejects, 1))[0]].append(message)
        await self._ack(era, fates["ack"])
        if fates["nack"]:
            delay_ms = self.chance.choice((0, 0, 500))
            await self._ask("nack", _naming(fates["nack"], delay_ms=delay_ms), era)
        if fates["reject"]:
            for message in fates["reject"]:
                era.queues[self.queue].ask_to_reject(message)
            await self._ask("nack", _naming(fates["reject"], dead_letter=True), era)

    @property
    def _rejects(self) -> int:
        """How often: never where it would be gone without a word."""
        plan = next(one for one in self.world.eras.values()).queues[self.queue].plan
        return 1 if plan.dead_queue or plan.dead_stream else 0

    async def _ack(self, era: QueueAccount, messages: Sequence[Mapping[str, Any]]) -> None:
        if not messages:
            return
        expected = era.queues[self.queue]
        over = frozenset(expected.over)
        for message in messages:
            expected.ask_for_ack(message)
        for _ in range(3):
            told = await self._ask("ack", _naming(messages), era)
            if told is not None:
                break
            await asyncio.sleep(self.chance.uniform(0, 0.4))
        else:
            return
        late = {*told["gone"], *told["stale"]}
        good = [one for one in messages if one["receipt"] not in late]
        if told["acked"] != len(good):
            raise Broken(f"{self.queue}: {len(messages)} receipts were answered {told}")
        for message in good:
            self._require_not(over, message, "is acknowledged")
            expected.acked(message)
        self.world.services.story.count("messages acknowledged", len(good))
        self.world.services.story.count("receipts stale", len(told["stale"]))


def _naming(messages: Sequence[Mapping[str, Any]], **more: Any) -> dict[str, Any]:
    return {"receipts": [one["receipt"] for one in messages], **more}
