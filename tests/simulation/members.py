"""Members of a consumer group on the virtual clock: they join, die, wake as zombies and commit.

    joined ──► heartbeats, reads and commits as who it is ──► leaves, dies, or is paused
                                                                  └─ wakes: reads and commits as before

The watch notes every change of the holder at the moment of its EXEC. Each commit and each read of a
member is one operation between its question and its answer, and it must have been the holder's at
one moment of that: a read up to a second earlier, as the reader remembers.
"""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from bottomless.model.names import Reference
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


class Shared(NamedTuple):
    """What the members of a group share: a stream, or the partitions of a super stream."""

    scope: str
    """The id by which coordination knows it."""
    path: str
    streams: Sequence[Expected]
    """The partitions, in the order of their numbers; of a stream it is that stream."""
    watches: Mapping[str, Watch]


class GroupWatch:
    """Looks at the group past all services, after every EXEC."""

    def __init__(self, ground: Ground, shared: Shared, before: Callable[[], object]) -> None:
        """`before` looks at what the group shares, and comes first."""
        self._ground = ground
        self._before = before
        self.shared = shared
        self.history: dict[int, list[tuple[float, Holder | None]]] = {}
        """Who held each partition, from when on."""
        self._given: dict[tuple[int, int], str] = {}
        """Who got each generation of a partition."""
        self.moves = 0

    def look(self) -> None:
        """Note the holders of now; what is wrong with the group fails the run."""
        try:
            # It knows which gaps are of takeovers only if it sees each of them.
            self._before()
            self._look()
        except (Broken, AssertionError) as error:
            self._ground.loop.failures.append(error)

    def _look(self) -> None:
        group = self.group()
        if group is not None:
            group.check()
        said = {} if group is None else {one.number: one for one in group.partitions}
        for number in range(max(len(self.shared.streams), len(said))):
            one = said.get(number)
            held = None if one is None or one.holder is None else (one.holder, one.generation)
            self._look_at(number, held, known=group is not None)

    def _look_at(self, number: int, held: Holder | None, *, known: bool) -> None:
        key = holder_key(self.shared.scope, GROUP, number)
        holder = decode_holder(self._ground.coordination.peek(key))
        if known and held != holder:
            raise Broken(f"the copy of {number} says {holder}, the group {held}")
        history = self._of(number)
        if holder == history[-1][1]:
            return
        history.append((self._ground.loop.now, holder))
        self.moves += 1
        if holder is None:
            return
        member_id, generation = holder
        if self._given.setdefault((number, generation), member_id) != member_id:
            raise Broken(f"generation {generation} of {number} was another member's")

    def _of(self, number: int) -> list[tuple[float, Holder | None]]:
        return self.history.setdefault(number, [(0.0, None)])

    def group(self) -> ConsumerGroup | None:
        value = self._ground.coordination.peek(group_key(self.shared.scope, GROUP))
        return None if value is None else decode_group(value)

    def held_since(self, number: int, claim: Holder, since: float) -> bool:
        """Whether a member held a partition at a moment after this one."""
        history = self._of(number)
        ends = [*(at for at, _ in history[1:]), float("inf")]
        return any(
            holder == claim and end >= since for (_, holder), end in zip(history, ends, strict=True)
        )

    @property
    def is_held(self) -> bool:
        """Whether members hold all of it whose leases run."""
        holders = [self._of(number)[-1][1] for number in range(len(self.shared.streams))]
        return all(
            holder is not None and self._ground.coordination.peek(member_key(holder[0])) is not None
            for holder in holders
        )


@dataclass
class Member:
    """One program of the group, through its lives."""

    services: Services
    chance: random.Random
    name: str
    group: GroupWatch
    now: Callable[[], float]
    """The virtual clock."""
    calm: bool = False
    """It neither leaves nor dies any more."""
    member_id: str | None = None
    generations: dict[int, int] = field(default_factory=dict)
    """Of the partitions that it holds, as far as it knows."""
    revoked: dict[int, int] = field(default_factory=dict)
    """What it was told to release, with the generations."""
    readers: dict[str, Reader] = field(default_factory=dict)
    """One for each stream that it ever read."""

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

    async def _ask(
        self, method: str, rest: str, query: str = "", body: Any = None
    ) -> tuple[int, Any] | None:
        path = f"{self.group.shared.path}/groups/{GROUP}/members{rest}"
        answer = await self.services.ask(
            self.services.manifest, method, path, query=query, body=body
        )
        return None if answer is None or answer[0] in LATER else answer

    async def _join(self) -> None:
        answer = await self._ask("POST", "", body={"member": self.name, "lease_ms": LEASE_MS})
        if answer is None:
            return
        if answer[0] != 201:
            raise Broken(f"a join was answered {answer}")
        self._forget()
        self.member_id = answer[1]["member_id"]
        self.services.story.count("members joined")
        await self._hear(answer[1])

    async def _leave(self) -> None:
        answer = await self._ask("DELETE", f"/{self.member_id}")
        if answer is not None and answer[0] not in (204, 404):
            raise Broken(f"a leave was answered {answer}")
        self._die()

    def _die(self) -> None:
        self._forget()
        self.services.story.count("members gone")

    def _forget(self) -> None:
        self.member_id, self.generations, self.revoked = None, {}, {}

    async def _sleep_and_wake(self) -> None:
        """Long enough for another one to follow; what it does then it does as who it was."""
        await asyncio.sleep(self.chance.uniform(2, 2.5 * LEASE_MS / 1000))
        self.services.story.count("zombies")
        await self._work()

    async def _beat(self) -> None:
        if self.member_id is None:
            return
        released = {}
        # Who does not release in time has it taken from it.
        if self.revoked and self.chance.random() < 0.7:
            released, self.revoked = self.revoked, {}
        body = {"holding": _as_json(self.generations), "released": _as_json(released)}
        wait_ms = self.chance.choice((0, 300, 1_000))
        answer = await self._ask("POST", f"/{self.member_id}/heartbeat", f"wait_ms={wait_ms}", body)
        if answer is None:
            return
        status, told = answer
        if status == 404 and told["code"] == "member-expired":
            self._forget()
            self.services.story.count("members expired")
        elif status != 200:
            raise Broken(f"a heartbeat was answered {answer}")
        else:
            await self._hear(told)

    async def _hear(self, told: dict[str, Any]) -> None:
        assigned = {one["partition"]: one for one in told["assignments"]}
        for number in self.generations.keys() - assigned.keys():
            del self.generations[number]
        self.revoked = {one["partition"]: one["generation"] for one in told["revoked"]}
        for number, one in sorted(assigned.items()):
            if one["generation"] == self.generations.get(number):
                continue
            self.generations[number] = one["generation"]
            reader = self._reader(number)
            if one["source"] == "none":
                # It stores where it starts before it reads anything.
                reader.position = reader.expected.floor
                await self._commit(number)
            elif one["next_offset"] is not None:
                reader.position = max(one["next_offset"], reader.expected.floor)

    def _reader(self, number: int) -> Reader:
        stream = self.group.shared.streams[number]
        if stream.stream_id not in self.readers:
            watch = self.group.shared.watches[stream.name]
            self.readers[stream.stream_id] = Reader(self.services, stream, watch, self.chance)
        return self.readers[stream.stream_id]

    async def _work(self) -> None:
        for number in sorted(self.generations):
            await self._read(number)
            if self.chance.random() < 0.7:
                await self._commit(number)

    def _claim(self, number: int) -> Holder | None:
        if self.member_id is None or number not in self.generations:
            return None
        return self.member_id, self.generations[number]

    async def _read(self, number: int) -> None:
        claim, reader = self._claim(number), self._reader(number)
        if claim is None:
            return
        headers = {"Group-Member": claim[0], "Group-Generation": str(claim[1])}
        path, asked_at = f"/v1/streams/{reader.expected.name}/records", self.now()
        query = f"offset={reader.position}&limit=20&on_out_of_range=error"
        answer = await self.services.ask(
            self.services.reader, "GET", path, query=query, headers=headers
        )
        if answer is None or answer[0] in LATER:
            return
        status, told = answer
        if status == 409 and told["code"] == "not-active":
            self.services.story.count("reads fenced")
        elif status == 410:
            reader.skip(told)
        elif status == 200:
            since = asked_at - KEEP_MS / 1000 - _SLACK_SECONDS
            if not self.group.held_since(number, claim, since):
                raise Broken(f"{claim} read {number} at {asked_at}, and held nothing")
            reader.take(told, reader.position)
            self.services.story.count("reads of members")
        elif status != 416:
            raise Broken(f"a read of a member was answered {answer}")

    async def _commit(self, number: int) -> None:
        claim, reader = self._claim(number), self._reader(number)
        if claim is None:
            return
        asked_at, expected = self.now(), reader.expected
        path = f"/v1/streams/{expected.name}/consumers/{GROUP}/offset"
        body = {
            "next_offset": reader.position,
            "member_id": claim[0],
            "generation": claim[1],
            "allow_regression": True,
        }
        answer = await self.services.ask(self.services.manifest, "PUT", path, body=body)
        if answer is None or answer[0] in LATER:
            return
        status, told = answer
        if status == 200:
            if not self.group.held_since(number, claim, asked_at):
                raise Broken(f"a commit of {claim} to {number} passed at {asked_at}")
            self.services.story.count("commits of members")
        elif status == 409 and told["code"] == "consumer-fenced":
            self.services.story.count("commits fenced")
        elif status != 422 or told["code"] != "offset-beyond-end" or not expected.takeovers:
            raise Broken(f"a commit of a member was answered {answer}")


def _as_json(generations: Mapping[int, int]) -> dict[str, int]:
    return {str(number): generation for number, generation in generations.items()}


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
    shared = Shared(stream.stream_id, "/v1/streams/shared", [stream], simulation.watches)
    group = GroupWatch(ground, shared, watch.look)
    ground.coordination.on_write = group.look
    members = members_of(group, simulation)
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
    await see_it_is_held(simulation, group)
    services.closing = True
    await simulation.all_done(tasks)
    services.story.count("changes of the holder", group.moves)
    keeping.cancel()


def members_of(group: GroupWatch, simulation: Simulation) -> list[Member]:
    """The programs of a group, which nobody has started."""
    names = [f"pod-{number}" for number in range(MEMBER_COUNT)]
    return [
        Member(
            simulation.services,
            simulation.chance(name),
            name,
            group,
            lambda: simulation.loop.now,
        )
        for name in names
    ]


async def see_it_is_held(simulation: Simulation, group: GroupWatch) -> None:
    """Nobody leaves any more, so nothing is to be without a holder: not for longer than a change
    takes.

    Raises:
        Broken: it is, though somebody lives.
    """
    await simulation.until(lambda: group.is_held, "a holder", SETTLING_SECONDS)
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
