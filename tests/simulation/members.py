"""Members of a consumer group on the virtual clock: they join, die, wake as zombies and commit.

    joined ──► heartbeats, reads and commits as who it is ──► leaves, dies, or is paused
                                                                  └─ wakes: reads and commits as before

The watch notes every change of the holder at the moment of its EXEC. Each commit and each read of a
member is one operation between its question and its answer, and it must have been the holder's at
one moment of that: a read up to a second earlier, as the reader remembers.
"""

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any, Final

from bottomless.model.names import Reference, StreamId
from bottomless_server.core.consumer_group import ConsumerGroup, decode_group, decode_holder
from bottomless_server.manifest.consumers.core.groups import REVOKE_MS
from bottomless_server.reader.fences import KEEP_MS
from bottomless_server.stores.groups import group_key, holder_key, member_key
from simulation.clients import LATER, PlainWriter, Reader, Services
from simulation.expected import Broken, Expected
from simulation.invariants import Watch
from simulation.programs import Ground
from simulation.run import REBUILD_SECONDS, Simulation

GROUP: Final = Reference("billing")
LEASE_MS: Final = 5_000
MEMBER_COUNT: Final = 4
SETTLING_SECONDS: Final = (LEASE_MS + REVOKE_MS) / 1000 + 1.0
"""Within so long somebody that lives holds the stream, once the services are well."""
CALM_SECONDS: Final = 12.0
_SLACK_SECONDS: Final = 0.2
"""The reader's clock counts whole milliseconds, and begins when it asks."""
Holder = tuple[str, int]


class GroupWatch:
    """Looks at the group past all services, after every EXEC."""

    def __init__(self, ground: Ground, stream_id: StreamId, stream: Watch) -> None:
        self._ground = ground
        self._stream = stream
        self._stream_id = stream_id
        self.history: list[tuple[float, Holder | None]] = [(0.0, None)]
        """Who held the stream, from when on."""
        self._given: dict[int, str] = {}
        """Who got each generation."""
        self.moves = 0

    def look(self) -> None:
        """Note the holder of now; what is wrong with the group fails the run."""
        try:
            # It knows which gaps are of takeovers only if it sees each of them.
            self._stream.look()
            self._look()
        except (Broken, AssertionError) as error:
            self._ground.loop.failures.append(error)

    def _look(self) -> None:
        group = self.group()
        peek = self._ground.coordination.peek
        holder = decode_holder(peek(holder_key(self._stream_id, GROUP, 0)))
        if group is not None:
            group.check()
            (one,) = group.partitions or (None,)
            held = None if one is None or one.holder is None else (one.holder, one.generation)
            if held != holder:
                raise Broken(f"the copy says {holder}, the group {held}")
        if holder == self.history[-1][1]:
            return
        self.history.append((self._ground.loop.now, holder))
        self.moves += 1
        if holder is not None and self._given.setdefault(holder[1], holder[0]) != holder[0]:
            raise Broken(f"generation {holder[1]} was another member's")

    def group(self) -> ConsumerGroup | None:
        value = self._ground.coordination.peek(group_key(self._stream_id, GROUP))
        return None if value is None else decode_group(value)

    def held_since(self, claim: Holder, since: float) -> bool:
        """Whether a member held the stream at a moment after this one."""
        ends = [*(at for at, _ in self.history[1:]), float("inf")]
        return any(
            holder == claim and end >= since
            for (_, holder), end in zip(self.history, ends, strict=True)
        )

    @property
    def is_held(self) -> bool:
        """Whether a member holds the stream whose lease runs."""
        holder = self.history[-1][1]
        return (
            holder is not None and self._ground.coordination.peek(member_key(holder[0])) is not None
        )


@dataclass
class Member(Reader):
    """One program of the group, through its lives."""

    name: str = ""
    group: GroupWatch = field(kw_only=True)
    now: Any = field(kw_only=True)
    """The virtual clock."""
    calm: bool = False
    """It neither leaves nor dies any more."""
    member_id: str | None = None
    generation: int | None = None

    async def run(self) -> None:
        while not self.services.closing:
            await self._live()
            await asyncio.sleep(self.chance.uniform(0.1, 0.6))

    async def _live(self) -> None:
        if self.member_id is None:
            await self._join()
            return
        fate = 1.0 if self.calm else self.chance.random()
        if fate < 0.04:
            await self._leave()
        elif fate < 0.08:
            self._die()
        elif fate < 0.12:
            await self._sleep_and_wake()
        await self._beat()
        await self._work()

    async def _ask(self, method: str, rest: str, body: Any = None) -> tuple[int, Any] | None:
        path = f"/v1/streams/{self.expected.name}/groups/{GROUP}/members{rest}"
        answer = await self.services.ask(self.services.manifest, method, path, body=body)
        return None if answer is None or answer[0] in LATER else answer

    async def _join(self) -> None:
        answer = await self._ask("POST", "", {"member": self.name, "lease_ms": LEASE_MS})
        if answer is None:
            return
        if answer[0] != 201:
            raise Broken(f"a join was answered {answer}")
        self.member_id, self.generation = answer[1]["member_id"], None
        self.services.story.count("members joined")
        await self._hear(answer[1])

    async def _leave(self) -> None:
        answer = await self._ask("DELETE", f"/{self.member_id}")
        if answer is not None and answer[0] not in (204, 404):
            raise Broken(f"a leave was answered {answer}")
        self._die()

    def _die(self) -> None:
        self.member_id = self.generation = None
        self.services.story.count("members gone")

    async def _sleep_and_wake(self) -> None:
        """Long enough for another one to follow; what it does then it does as who it was."""
        await asyncio.sleep(self.chance.uniform(2, 2.5 * LEASE_MS / 1000))
        self.services.story.count("zombies")
        await self._work()

    async def _beat(self) -> None:
        if self.member_id is None:
            return
        holding = {} if self.generation is None else {"0": self.generation}
        body: dict[str, Any] = {"holding": holding, "released": {}}
        wait_ms = self.chance.choice((0, 300, 1_000))
        rest = f"/{self.member_id}/heartbeat"
        path = f"/v1/streams/{self.expected.name}/groups/{GROUP}/members{rest}"
        answer = await self.services.ask(
            self.services.manifest, "POST", path, query=f"wait_ms={wait_ms}", body=body
        )
        if answer is None or answer[0] in LATER:
            return
        status, told = answer
        if status == 404 and told["code"] == "member-expired":
            self.member_id = self.generation = None
            self.services.story.count("members expired")
        elif status != 200:
            raise Broken(f"a heartbeat was answered {answer}")
        else:
            await self._hear(told)

    async def _hear(self, told: dict[str, Any]) -> None:
        assigned = told["assignments"]
        if not assigned:
            self.generation = None
            return
        (one,) = assigned
        if one["generation"] == self.generation:
            return
        self.generation = one["generation"]
        if one["source"] == "none":
            # It stores where it starts before it reads anything.
            self.position = self.expected.floor
            await self._commit()
        elif one["next_offset"] is not None:
            self.position = max(one["next_offset"], self.expected.floor)

    async def _work(self) -> None:
        if self.member_id is None or self.generation is None:
            return
        await self._read((self.member_id, self.generation))
        if self.chance.random() < 0.7:
            await self._commit()

    async def _read(self, claim: Holder) -> None:
        headers = {"Group-Member": claim[0], "Group-Generation": str(claim[1])}
        path, asked_at = f"/v1/streams/{self.expected.name}/records", self.now()
        query = f"offset={self.position}&limit=20&on_out_of_range=error"
        answer = await self.services.ask(
            self.services.reader, "GET", path, query=query, headers=headers
        )
        if answer is None or answer[0] in LATER:
            return
        status, told = answer
        if status == 409 and told["code"] == "not-active":
            self.services.story.count("reads fenced")
        elif status == 410:
            self._skip(told)
        elif status == 200:
            if not self.group.held_since(claim, asked_at - KEEP_MS / 1000 - _SLACK_SECONDS):
                raise Broken(f"{claim} read at {asked_at}, and held nothing: {self.group.history}")
            self._take(told, self.position)
            self.services.story.count("reads of members")
        elif status != 416:
            raise Broken(f"a read of a member was answered {answer}")

    async def _commit(self) -> None:
        if self.member_id is None or self.generation is None:
            return
        claim, asked_at = (self.member_id, self.generation), self.now()
        path = f"/v1/streams/{self.expected.name}/consumers/{GROUP}/offset"
        body = {
            "next_offset": self.position,
            "member_id": claim[0],
            "generation": claim[1],
            "allow_regression": True,
        }
        answer = await self.services.ask(self.services.manifest, "PUT", path, body=body)
        if answer is None or answer[0] in LATER:
            return
        status, told = answer
        if status == 200:
            if not self.group.held_since(claim, asked_at):
                raise Broken(f"a commit of {claim} passed at {asked_at}: {self.group.history}")
            self.services.story.count("commits of members")
        elif status == 409 and told["code"] == "consumer-fenced":
            self.services.story.count("commits fenced")
        elif status != 422 or told["code"] != "offset-beyond-end" or not self.expected.takeovers:
            raise Broken(f"a commit of a member was answered {answer}")


async def a_group_in_a_storm(simulation: Simulation) -> None:
    """Let one group live through all troubles, and look whether it comes to rest after them.

    Raises:
        Broken: two members held one generation, or a fenced commit passed, or nobody holds the
            stream though somebody lives.
    """
    for program in simulation.programs:
        program.start()
    keeping = asyncio.create_task(simulation.trouble.keep_running())
    await simulation.until(lambda: all(one.started for one in simulation.programs), "a start")
    await simulation.create("shared", simulation.chance("config"))
    services, ground, (stream,) = simulation.services, simulation.ground, simulation.streams
    watch = simulation.watches["shared"]
    group = GroupWatch(ground, StreamId(stream.stream_id), watch)
    ground.coordination.on_write = group.look
    members = _members(services, stream, watch, group, simulation)
    writer = PlainWriter(services, stream, "shared-w", simulation.chance("shared-w"))
    tasks = [asyncio.create_task(one.run()) for one in members]
    tasks.append(asyncio.create_task(writer.run()))
    troubling = asyncio.create_task(simulation.trouble.run())
    for task in (keeping, troubling, *tasks):
        task.add_done_callback(simulation.note_end)
    await asyncio.sleep(simulation.storm_seconds)
    simulation.trouble.end()
    for member in members:
        member.calm = True
    await simulation.until(lambda: not simulation.losses.busy, "an operator", REBUILD_SECONDS)
    await asyncio.wait({troubling}, timeout=simulation.quiet_seconds)
    await simulation.until(lambda: group.is_held, "a holder", SETTLING_SECONDS)
    await _see_it_stays_held(simulation, group)
    services.closing = True
    await simulation.all_done(tasks)
    services.story.count("changes of the holder", group.moves)
    keeping.cancel()


def _members(
    services: Services, stream: Expected, watch: Watch, group: GroupWatch, simulation: Simulation
) -> list[Member]:
    def chance(name: str) -> random.Random:
        return simulation.chance(name)

    names = [f"pod-{number}" for number in range(MEMBER_COUNT)]
    return [
        Member(
            services,
            stream,
            watch,
            chance(name),
            name=name,
            group=group,
            now=lambda: simulation.loop.now,
        )
        for name in names
    ]


async def _see_it_stays_held(simulation: Simulation, group: GroupWatch) -> None:
    """Nobody leaves any more, so nobody is to be without: not for longer than a change takes."""
    without_since: float | None = None
    until = simulation.loop.now + CALM_SECONDS
    while simulation.loop.now < until:
        if group.is_held:
            without_since = None
        else:
            without_since = simulation.loop.now if without_since is None else without_since
            if simulation.loop.now - without_since > SETTLING_SECONDS:
                raise Broken("nobody holds the stream, and somebody lives")
        await asyncio.sleep(0.05)
