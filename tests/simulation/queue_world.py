"""The queues of one tenant and their homes: which ledger was told what, and who asks whom.

The watch looks at the record of the home after every EXEC. From the moment in which it names another node
on, whatever is asked is that node's to answer, and no answer may be of the ledger before.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from support.queue_account import QueuePlan, Wrong

from bottomless.formats.queue_home import decode_home
from bottomless.model.names import NodeId
from bottomless.model.queue_home import QueueHome
from bottomless_server.stores.queue_homes import queue_home_key, queue_node_key
from simulation.clients import LATER, Services
from simulation.expected import Broken
from simulation.programs import Ground, Program
from simulation.queue_emptied import EmptiedExpected, StormAccount

TENANT: Final = "default"
LETTERS: Final = "letters"
ARCHIVE: Final = "archive"
DEAD: Final = "dead"
EMPTIED: Final = "scratch"
"""A queue that is purged, deleted and made anew, and drops what is too much."""
MOVED: Final = ("tasks", "failed")
"""A queue, and that of its dead letters, from which they are redriven."""
PLANS: Final = (
    QueuePlan("jobs", 3, dead_queue=DEAD),
    QueuePlan("mails", 2, dead_stream=LETTERS, archive=ARCHIVE, visibility_ms=1_500),
    QueuePlan(DEAD),
    QueuePlan(EMPTIED, 4, dead_stream=LETTERS, max_messages=8),
    QueuePlan(MOVED[0], 1, dead_queue=MOVED[1], visibility_ms=1_000),
    QueuePlan(MOVED[1]),
)
OPEN: Final = ("jobs", "mails")
"""The queues in which most publishers publish."""
Answer = tuple[int, Any]


@dataclass
class QueueWorld:
    """All queues of a run, and what is known of their homes."""

    ground: Ground
    services: Services
    nodes: list[Program]
    chance: random.Random
    sent: dict[str, dict[str, Any]] = field(default_factory=dict)
    eras: dict[NodeId, StormAccount] = field(default_factory=dict)
    """By the node whose ledger it is."""
    home: QueueHome | None = None
    over: bool = False
    """Nothing new is published."""
    closing: bool = False
    loose: set[str] = field(default_factory=set)
    """Values of which a request was under way when their home went to another node."""

    def look(self) -> None:
        """Take up which node is the home now."""
        value = self.ground.coordination.peek(queue_home_key(TENANT))
        if value is None:
            # Lost, and to be rebuilt as it was.
            return
        before, self.home = self.home, decode_home(value)
        if before is not None and self.home.term < before.term:
            self.ground.loop.failures.append(Broken(f"{before} is {self.home} now"))
        if self.home.node_id not in self.eras:
            self.eras[self.home.node_id] = StormAccount(PLANS, self.sent, EMPTIED, MOVED)
        if before is not None and before.node_id != self.home.node_id:
            if self.ground.coordination.peek(queue_node_key(before.node_id)) is not None:
                taken = Broken(f"queues were taken from a home that lives: {before}")
                self.ground.loop.failures.append(taken)
            self.ground.story.tell("queues", f"have another home, term {self.home.term}")
            self.services.story.count("homes of queues taken over")

    def record(self) -> QueueHome | None:
        """What coordination says of the home now."""
        value = self.ground.coordination.peek(queue_home_key(TENANT))
        return None if value is None else decode_home(value)

    @property
    def era(self) -> StormAccount | None:
        """What the home of now was told."""
        return None if self.home is None else self.eras[self.home.node_id]

    def home_without_lease(self) -> NodeId | None:
        """The node of the home, if its lease is gone."""
        if self.home is None:
            return None
        node_id = self.home.node_id
        return node_id if self.ground.coordination.peek(queue_node_key(node_id)) is None else None

    @property
    def sure(self) -> bool:
        """Whether an answer is believed: a node that was overtaken may not know it yet."""
        return not self.ground.is_blind

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        node: Program | None = None,
    ) -> Answer | None:
        """What any node answers; None where nobody knows."""
        asked = node or self.chance.choice(self.nodes)
        answer = await self.services.ask(asked, method, path, body=body, headers=headers)
        if answer is not None and answer[0] in LATER:
            self.services.story.count(f"queues answered {answer[1].get('code')}")
        return answer

    async def create(self, plan: QueuePlan) -> bool:
        """Have a queue made, if it is not there; whether it is now."""
        answer = await self.ask("PUT", f"/v1/queues/{plan.name}", plan.config())
        if answer is None or answer[0] in LATER:
            return False
        if answer[0] not in (200, 201):
            raise Broken(f"{plan.name} was not created: {answer}")
        return True

    async def create_all(self) -> bool:
        """Have all queues made, those first that are named by others."""
        return all([await self.create(plan) for plan in reversed(PLANS)])

    async def described(self, name: str) -> dict[str, Any] | None:
        """A description of a queue, if one comes."""
        era = self.era
        expected = None if era is None else era.queues[name]
        buried = frozenset(expected.buried) if isinstance(expected, EmptiedExpected) else ()
        answer = await self.ask("GET", f"/v1/queues/{name}")
        if answer is None or answer[0] in LATER or answer[0] == 404:
            return None
        if answer[0] != 200:
            raise Broken(f"a description was answered {answer}")
        told: dict[str, Any] = answer[1]
        if era is not None and era is self.era and self.sure:
            if told["queue_id"] in buried:
                raise Wrong(f"{name}: {told['queue_id']} was deleted, and is back")
            era.queues[name].note_id(told["queue_id"])
            era.queues[name].describe(told)
        return told
