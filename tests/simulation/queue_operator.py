"""Who has another node take queues over, and what that may not do: take them from a home that lives."""

import asyncio
import random
from dataclasses import dataclass

from bottomless.model.names import NodeId
from simulation.clients import LATER
from simulation.expected import Broken
from simulation.programs import Program
from simulation.queue_programs import service_of
from simulation.queue_world import TENANT, QueueWorld

_LEASE_SECONDS = 5.0
_ATTEMPT_COUNT = 12


@dataclass
class QueueOperator:
    """Asks for takeovers, one at a time."""

    world: QueueWorld
    chance: random.Random
    busy: bool = False

    async def take_over(self, seconds: float) -> None:
        """Look so long for a home without a lease, and take its queues over; 0: make one."""
        if self.busy:
            return
        self.busy = True
        try:
            await self._refused_without_loss()
            await self._ask_while_alive()
            if seconds:
                await self._wait(seconds)
                await self._ask_others()
            else:
                await self._lose_home()
        except Broken as error:
            self.world.ground.loop.failures.append(error)
        finally:
            self.busy = False

    async def _lose_home(self) -> None:
        """Keep the home down until others have its queues; it comes back all the same, some time."""
        home = self._program_of(self.world.home and self.world.home.node_id)
        if home is None:
            return
        self.world.ground.story.tell("operator", f"keeps {home.name} down, a home of queues")
        home.wanted = False
        home.kill()
        try:
            await self._wait(_LEASE_SECONDS)
            early = self.chance.random() < 0.2
            home.wanted = early
            await self._ask_others()
            await asyncio.sleep(self.chance.choice((0.0, 0.0, 2.0)))
        finally:
            home.wanted = True

    async def _wait(self, seconds: float) -> None:
        end = self.world.ground.loop.now + seconds
        while self.world.home_without_lease() is None and self.world.ground.loop.now < end:
            await asyncio.sleep(0.05)

    async def _ask_others(self) -> None:
        """Ask another node, until it has them or their home is back."""
        for _ in range(_ATTEMPT_COUNT):
            home = self.world.home_without_lease()
            if home is None:
                return
            others = [one for one in self.world.nodes if self._node_id(one) not in (None, home)]
            if others and await self._ask(self.chance.choice(others), home):
                return
            await asyncio.sleep(0.2)

    async def _ask(self, node: Program, home: NodeId) -> bool:
        body = {"tenant": TENANT, "accept_loss": True, "expect_home": home}
        path = "/v1/admin/queues/takeover"
        answer = await self.world.ask("POST", path, body, node=node)
        if answer is None or answer[0] in LATER:
            return False
        if answer[0] == 200:
            self.world.services.story.count("takeovers of queues")
            return True
        if answer[0] != 409:
            raise Broken(f"a takeover of queues was answered {answer}")
        return False

    async def _refused_without_loss(self) -> None:
        """Nobody gets queues who does not say that what is there may be lost."""
        home = self.world.home
        if home is None or self.chance.random() < 0.5:
            return
        body = {"tenant": TENANT, "accept_loss": False, "expect_home": home.node_id}
        answer = await self.world.ask("POST", "/v1/admin/queues/takeover", body)
        if answer is not None and answer[0] not in LATER and answer[0] != 422:
            raise Broken(f"a takeover without a loss was answered {answer}")

    async def _ask_while_alive(self) -> None:
        """Ask for queues whose home has its lease, as far as anybody can see."""
        home = self.world.home
        others = [
            one
            for one in self.world.nodes
            if home and self._node_id(one) not in (None, home.node_id)
        ]
        if home is None or not others or self.world.home_without_lease() is not None:
            return
        body = {"tenant": TENANT, "accept_loss": True, "expect_home": home.node_id}
        # Whether it is taken from a home that lives, the world sees at the moment of the EXEC.
        await self.world.ask("POST", "/v1/admin/queues/takeover", body, node=others[0])

    def _program_of(self, node_id: NodeId | None) -> Program | None:
        found = [one for one in self.world.nodes if self._node_id(one) == node_id is not None]
        return found[0] if found else None

    def _node_id(self, program: Program) -> NodeId | None:
        service = service_of(program)
        return None if service is None else service.directory.node_id
