"""Two nodes of queues with their publishers and workers in a storm, and an account of every message after it."""

import asyncio
from typing import Final

from support.queue_account import Left, in_queue, left_as, once

from simulation.clients import LATER
from simulation.expected import Broken
from simulation.queue_clients import Publisher, Worker
from simulation.queue_keeper import Keeper
from simulation.queue_operator import QueueOperator
from simulation.queue_programs import queues_program, simulated_ledgers
from simulation.queue_trouble import QueueTrouble
from simulation.queue_world import (
    ARCHIVE,
    DEAD,
    EMPTIED,
    LETTERS,
    MOVED,
    OPEN,
    PLANS,
    QueueWorld,
)
from simulation.run import REBUILD_SECONDS, Simulation

_PUBLISHERS: Final = (
    ("keyed", "key", False, OPEN),
    ("fan", "key", True, OPEN),
    ("dedup", "dedup", False, OPEN),
    ("plain", "plain", False, OPEN),
    ("scratch", "dedup", False, (EMPTIED,)),
    ("tasks", "key", False, MOVED[:1]),
)
_WORKERS: Final = {"jobs": 2, "mails": 2, DEAD: 1, EMPTIED: 1, MOVED[0]: 1, MOVED[1]: 1}
_STREAM: Final = {"fragment": {"target_bytes": 65_536, "max_age_ms": 500}}


async def queues_in_a_storm(simulation: Simulation) -> None:
    """Let queues live through all troubles, work off what is in them, and look how each message ended.

    Raises:
        Broken: a message is lost, altered, comes back after its acknowledgement, or is a dead letter twice.
    """
    with simulated_ledgers():
        await _Storm(simulation).run()


class _Storm:
    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        ground = simulation.ground
        # One node of streams is enough to be in trouble.
        second = simulation.nodes.pop()
        simulation.programs.remove(second)
        self.nodes = [queues_program(ground, f"queues-{letter}") for letter in "ab"]
        simulation.programs += self.nodes
        chance = simulation.chance("queues")
        self.world = QueueWorld(ground, simulation.services, self.nodes, chance)
        self.operator = QueueOperator(self.world, simulation.chance("takeovers"))
        simulation.trouble = QueueTrouble(
            ground,
            simulation.programs,
            simulation.chance("trouble"),
            self.operator.take_over,
            simulation.losses,
            simulation.troubles,
        )
        self.workers = [
            Worker(self.world, queue, name, simulation.chance(name))
            for queue, count in _WORKERS.items()
            for name in (f"{queue}-{number}" for number in range(count))
        ]

    async def run(self) -> None:
        simulation, trouble = self.simulation, self.simulation.trouble
        for program in simulation.programs:
            program.start()
        keeping = asyncio.create_task(trouble.keep_running())
        await simulation.until(lambda: all(one.started for one in simulation.programs), "a start")
        await self._create()
        publishers = [
            Publisher(self.world, name, simulation.chance(name), way, fans, queues)
            for name, way, fans, queues in _PUBLISHERS
        ]
        clients: list[Publisher | Keeper] = [
            *publishers,
            Keeper(self.world, simulation.chance("keeper")),
        ]
        publishing = [asyncio.create_task(one.run()) for one in clients]
        working = [asyncio.create_task(one.run()) for one in self.workers]
        troubling = asyncio.create_task(trouble.run())
        others = [asyncio.create_task(self._look_now_and_then())]
        for task in (keeping, troubling, *publishing, *working, *others):
            task.add_done_callback(simulation.note_end)
        await asyncio.sleep(simulation.storm_seconds)
        trouble.end()
        self.world.over = True
        await simulation.until(lambda: not simulation.losses.busy, "an operator", REBUILD_SECONDS)
        await asyncio.wait({troubling}, timeout=simulation.quiet_seconds)
        await simulation.until(lambda: not self.operator.busy, "a takeover", REBUILD_SECONDS)
        await self._all_end(publishing)
        for worker in self.workers:
            worker.calm = True
        await self._work_off()
        self.world.closing = True
        await self._all_end([*working, *others])
        await self._account()
        keeping.cancel()

    async def _create(self) -> None:
        simulation = self.simulation
        for name in (LETTERS, ARCHIVE):
            path = f"/v1/streams/{name}"
            answer = await simulation.services.ask(simulation.manifest, "PUT", path, body=_STREAM)
            if answer is None or answer[0] != 201:
                raise Broken(f"a stream was not created: {answer}")
        simulation.ground.coordination.on_write = self.world.look
        while not await self.world.create_all():
            await asyncio.sleep(0.1)

    async def _all_end(self, tasks: "list[asyncio.Task[None]]") -> None:
        _, waiting = await asyncio.wait(tasks, timeout=self.simulation.quiet_seconds)
        if waiting:
            raise Broken(f"{len(waiting)} clients never finished after the troubles")

    async def _look_now_and_then(self) -> None:
        chance = self.simulation.chance("looks")
        while not self.world.closing:
            await asyncio.sleep(chance.uniform(0.5, 2))
            await self.world.described(chance.choice(PLANS).name)
            if chance.random() < 0.3:
                await self.world.ask("POST", "/v1/admin/queue-store/compact")

    async def _work_off(self) -> None:
        """Wait until nothing is in any queue, nor on its way."""
        end = self.simulation.loop.now + self.simulation.quiet_seconds
        while True:
            await self.world.create_all()
            told = [await self.world.described(plan.name) for plan in PLANS]
            if all(one is not None and not any(in_queue(one).values()) for one in told):
                return
            if self.simulation.loop.now > end:
                raise Broken(f"never worked off: {[one and in_queue(one) for one in told]}")
            await asyncio.sleep(1.0)

    async def _account(self) -> None:
        """How did each message end?"""
        era = self.world.era
        assert era is not None
        letters, archive = await self._records(LETTERS), await self._records(ARCHIVE)
        for what, records in ((LETTERS, letters), (ARCHIVE, archive)):
            unknown = {*self.world.loose, *era.emptied.perhaps}
            if era.emptied.unsure:
                unknown |= era.emptied.asked
            once(what, (one.value for one in records if one.value not in unknown))
            for one in records:
                if one.value not in self.world.sent:
                    raise Broken(f"{what}: nobody sent {one.value[:40]}")
        era.check_moved(self.world.loose)
        for name in (*OPEN, EMPTIED):
            totals = await self._totals(name)
            era.check_ends(name, totals, letters, archive, self.world.loose)
        self.simulation.story.count("dead letters in a stream", len(letters))
        self.simulation.story.count("messages archived", len(archive))
        self.simulation.story.count("dead letters in a queue", len(era.queues[DEAD].messages))
        await self._count_compactions()

    async def _totals(self, name: str) -> dict[str, int] | None:
        """What a queue has counted; None where a ledger was given up, or somebody was not sure of an
        answer, so that nobody can tell what it should be."""
        if self.world.loose or len(self.world.eras) > 1:
            return None
        told = None
        while told is None:
            told = await self.world.described(name)
        totals: dict[str, int] = told["totals"]
        return totals

    async def _records(self, stream: str) -> list[Left]:
        """All of a stream, when it is well again."""
        simulation, found, offset = self.simulation, list[Left](), 0
        end = simulation.loop.now + simulation.quiet_seconds
        while True:
            query = f"offset={offset}&limit=1000&on_out_of_range=error"
            path = f"/v1/streams/{stream}/records"
            answer = await simulation.services.ask(simulation.reader, "GET", path, query=query)
            if answer is not None and answer[0] == 200:
                found += [left_as(record) for record in answer[1]["records"]]
                offset = answer[1]["next_offset"]
                if answer[1]["up_to_date"]:
                    return found
            elif answer is not None and answer[0] not in LATER:
                raise Broken(f"{stream} at {offset}: {answer}")
            if simulation.loop.now > end:
                raise Broken(f"{stream} cannot be read after the troubles")
            await asyncio.sleep(0.05)

    async def _count_compactions(self) -> None:
        for node in self.nodes:
            answer = await self.world.ask("GET", "/v1/admin/queue-store", node=node)
            if answer is not None and answer[0] == 200:
                done = sum(answer[1]["compactions"].values())
                self.simulation.story.count("compactions of message files", done)
