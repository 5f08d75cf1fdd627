"""What an operator answers for: a home that is lost, and coordination that is empty.

A home is lost with what its uploader has put and nobody has registered; the operator takes its
streams over, manifest dies at some step of that, and the home comes back before, meanwhile or
after. Coordination is lost at any moment, mostly soon after that, and rebuilt as
docs/runbooks.md says, with deaths in the middle of that too.
"""

import asyncio
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from support.object_keys import fragment_key

from bottomless.formats.keys import FragmentPlace
from bottomless.model.names import NodeId, StreamId
from bottomless.model.stream import NOBODY, is_unknown_epoch
from bottomless_server.ingest.service import IngestService
from bottomless_server.manifest.operations.far_operations import FAR_MS
from bottomless_server.runtime.base import fault_points
from bottomless_server.runtime.base.fault_points import FaultAction
from bottomless_server.stores.operations import OPERATIONS_KEY, decode_operation, operation_key
from bottomless_server.stores.streams import GENERATION_KEY
from simulation import neighbour
from simulation.clients import LATER, Operator, Services
from simulation.clockwork import BEGIN_MS
from simulation.drives import place_name
from simulation.expected import Broken, Expected
from simulation.invariants import Watch
from simulation.loop import PROCESS
from simulation.programs import Ground, Program

LOSSES_MAX: Final = 2
"""Losses of coordination in one run."""
_TAIL_SECONDS: Final = 3.0
_UPLOAD_SECONDS: Final = 1.5
_LEASE_SECONDS: Final = 5.0
"""After so long the lease of a home that is dead is gone."""
_STEPS_OF_TAKEOVER: Final = (
    "manifest.takeover.after-fence",
    "manifest.publish.before-exec",
    "manifest.publish.before-exec",
    "manifest.publish.after-exec",
    "manifest.takeover.after-gap",
)
_STEPS_OF_REBUILD: Final = (
    "manifest.rebuild.after-stream",
    "manifest.rebuild.before-generation",
    "manifest.rebuild.after-generation",
)


@contextmanager
def deaths_at_points() -> Iterator[None]:
    """Let a fault point end the simulated process that passes it, and not this one."""
    real = vars(fault_points)["os"]
    vars(fault_points)["os"] = _System
    try:
        yield
    finally:
        fault_points.disarm_all()
        vars(fault_points)["os"] = real


class _System:
    @staticmethod
    def _exit(_: int) -> None:
        process = PROCESS.get()
        assert process is not None
        process.kill()


@dataclass
class Losses:
    ground: Ground
    services: Services
    programs: list[Program]
    watches: Mapping[str, Watch]
    streams: list[Expected]
    operator: Operator
    chance: random.Random
    over: bool = False
    """Nothing more is lost; what is lost is brought back."""
    lost_count: int = 0
    _working: set["asyncio.Task[None]"] = field(default_factory=set)
    _is_losing: bool = False
    _caring: "asyncio.Task[None] | None" = None

    @property
    def coordination_is_lost(self) -> bool:
        return self.ground.coordination.peek(GENERATION_KEY) is None

    @property
    def busy(self) -> bool:
        """Whether an operator is at work."""
        return bool(self._working)

    @property
    def has_far_operation(self) -> bool:
        """Whether an operation is not finished, and queued for so late that a clock which was days
        ahead has done it: docs/runbooks.md says that it is looked at within a minute."""
        coordination = self.ground.coordination
        far = BEGIN_MS + self.ground.loop.now * 1000 + FAR_MS
        queue = coordination.peek_queue(OPERATIONS_KEY)
        late = [one for one, due_at in queue.items() if due_at > far]
        values = [coordination.peek(operation_key(one.decode())) for one in late]
        return any(value is not None and not decode_operation(value).finished for value in values)

    def end(self) -> None:
        self.over = True
        fault_points.disarm_all()
        for program in self.programs:
            program.wanted = True

    def lose_home(self) -> None:
        if not self._is_losing and not self.over:
            self._begin(self._lose_home())

    def lose_coordination(self) -> None:
        """Valkey is empty: all keys are gone, with all leases."""
        if self.over or self.coordination_is_lost or self.lost_count >= LOSSES_MAX:
            return
        self.lost_count += 1
        # Until a node asks it, it believes in the lease that it had.
        self.ground.blind()
        for watch in self.watches.values():
            # Looked at before: what is published now is known in the bucket.
            watch.note_loss()
        self.ground.coordination.lose()
        for stream in self.streams:
            stream.lose_coordination(self.watches[stream.name].manifest.floor)
        self._tell("loses all of coordination")
        self.ground.story.count("losses of coordination")
        self._begin(self._rebuild())

    def _begin(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._working.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._working.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.ground.loop.failures.append(error)

    async def _lose_home(self) -> None:
        """One takeover, of whatever comes of it, and often a loss of coordination after it."""
        self._is_losing = True
        try:
            end = self.ground.loop.now + _TAIL_SECONDS
            while self._home_with_tail() is None and self.ground.loop.now < end:
                await asyncio.sleep(0.1)
            if self.chance.random() < 0.7 and not self.over:
                await self._strand_an_upload()
            found = self._home_with_tail()
            if found is None or self.over:
                return
            await self._lose_one(*found)
        finally:
            self._is_losing = False
            self._uploader.wanted = True
        if self.chance.random() < 0.7:
            await asyncio.sleep(self.chance.choice((0.0, 0.2, 1.5)) * self.chance.random())
            self.lose_coordination()

    async def _strand_an_upload(self) -> None:
        """What was put last is durable, and nobody hears of it."""
        self._uploader.wanted = False
        fault_points.arm("uploader.put.after-object", FaultAction.EXIT)
        end = self.ground.loop.now + _UPLOAD_SECONDS
        while self._uploader.alive and self.ground.loop.now < end:
            await asyncio.sleep(0.01)

    @property
    def _uploader(self) -> Program:
        return next(program for program in self.programs if program.name == "uploader")

    async def _lose_one(self, stream: Expected, program: Program) -> None:
        program.wanted = False
        program.kill()
        self._tell(f"keeps {program.name} down, the home of {stream.name}")
        try:
            await self._wait_for_lease(stream)
            self._arm(_STEPS_OF_TAKEOVER)
            comes_back = self.chance.choice(("before", "meanwhile", "after", "late"))
            program.wanted = comes_back == "before"
            if program.wanted and not program.alive:
                program.start()
            await self._take_over(stream, comes_back, program)
        finally:
            program.wanted = True

    def _home_with_tail(self) -> tuple[Expected, Program] | None:
        """A stream that may have a tail, and the program of its home, if that is there.

        One of which something is put and not published comes first.
        """
        shuffled = self.chance.sample(self.streams, len(self.streams))
        for stream in sorted(shuffled, key=self._has_stranded, reverse=True):
            record = self.watches[stream.name].record()
            if record is None or stream.deleted or not record.dirty:
                continue
            for program in self.services.nodes:
                if program.url == record.owner_url and program.wanted:
                    return stream, program
        return None

    def _has_stranded(self, stream: Expected) -> bool:
        record = self.watches[stream.name].record()
        intents = () if record is None or stream.deleted else record.intents
        stored, stream_id = self.ground.stored, StreamId(stream.stream_id)
        keys = [fragment_key(stream_id, one.first_offset, one.uid) for one in intents]
        places = [FragmentPlace(one.drive, key) for one, key in zip(intents, keys, strict=True)]
        return any(stored.has(place_name(place)) for place in places)

    async def _wait_for_lease(self, stream: Expected) -> None:
        end = self.ground.loop.now + _LEASE_SECONDS
        while self.ground.loop.now < end:
            if self.watches[stream.name].home_without_lease() is not None:
                return
            await asyncio.sleep(0.05)

    async def _take_over(self, stream: Expected, comes_back: str, program: Program) -> None:
        """Ask until it is taken up, or cannot be."""
        for _ in range(10):
            home = self.watches[stream.name].home_without_lease()
            if home is None or stream.deleted:
                break
            if comes_back == "meanwhile":
                program.wanted = True
            if await self.operator.ask(stream, home):
                break
            await asyncio.sleep(0.2)
        if comes_back != "late":
            program.wanted = True
        await asyncio.sleep(self.chance.uniform(0.05, 1.0))

    def _arm(self, points: tuple[str, ...]) -> None:
        if self.chance.random() < 0.8:
            point, count = self.chance.choice(points), self.chance.choice((1, 1, 2))
            fault_points.arm(point, FaultAction.EXIT, count)
            self._tell(f"lets manifest die at {point}, time {count}")

    async def _rebuild(self) -> None:
        """What docs/runbooks.md tells an operator to do."""
        await asyncio.sleep(self.chance.uniform(0.1, 1.5))
        if self.chance.random() < 0.5:
            self._arm(_STEPS_OF_REBUILD)
        operation: str | None = None
        while True:
            if operation is None:
                operation = await self._ask_for_rebuild()
                if operation is None and not self.coordination_is_lost:
                    break
            else:
                answer = await self.services.ask(
                    self.services.manifest, "GET", f"/v1/operations/{operation}"
                )
                if answer is not None and (answer[0] == 404 or _is_asked_anew(answer)):
                    operation = None
                elif answer is not None and answer[0] == 200 and self._is_over(answer[1]):
                    break
            await asyncio.sleep(0.1)
        self._tell("has coordination rebuilt")
        self.ground.story.count("rebuilds")
        # Whoever wrote what this release cannot read writes it again.
        neighbour.damage(self.ground.coordination)
        if self._caring is None:
            self._caring = asyncio.create_task(self._care())
            self._caring.add_done_callback(self._ended)

    async def _care(self) -> None:
        """After a rebuild, take over what its home cannot go on with, or what has none."""
        while True:
            for stream in self.streams:
                if not stream.deleted and not self.coordination_is_lost:
                    await self._care_for(stream)
            await asyncio.sleep(0.5)

    async def _care_for(self, stream: Expected) -> None:
        record = self.watches[stream.name].record()
        if record is None or not is_unknown_epoch(record.epoch):
            return
        if record.home == NOBODY:
            await self.operator.ask(stream, NOBODY)
            return
        path = f"/v1/streams/{stream.name}/records"
        said_at = self.services.storage_failed.get(path, -1.0)
        if record.home is None or self.ground.loop.now - said_at > 1:
            return
        for program in self.services.nodes:
            if _node_id(program) == record.home:
                self._tell(f"gives {program.name} up, which lacks what {stream.name} had")
                self.ground.story.count("homes given up after a rebuild")
                program.wanted = False
                program.kill()
                await self._wait_for_lease(stream)
                while (home := self.watches[stream.name].home_without_lease()) is not None:
                    if await self.operator.ask(stream, home):
                        break
                    await asyncio.sleep(0.2)
                program.wanted = True

    async def _ask_for_rebuild(self) -> str | None:
        answer = await self.services.ask(self.services.manifest, "POST", "/v1/admin/rebuild")
        if answer is None or answer[0] in LATER or answer[0] == 409:
            return None
        if answer[0] != 202:
            raise Broken(f"a rebuild was answered {answer}")
        return str(answer[1]["operation_id"])

    def _is_over(self, told: dict[str, Any]) -> bool:
        if told["state"] not in ("succeeded", "failed"):
            return False
        result = told["result"] or {"unreadable_streams": 1}
        names = ("unreadable_streams", "unreadable_keys", "unknown")
        if told["state"] == "failed" or any(result[name] for name in names):
            raise Broken(f"a rebuild ended so: {told}")
        return True

    def _tell(self, what: str) -> None:
        self.ground.story.tell("losses", what)


def _is_asked_anew(answer: tuple[int, Any]) -> bool:
    """Whether a rebuild ended between the bucket's generation and coordination's, as its runbook says."""
    failed = answer[0] == 200 and answer[1]["state"] == "failed"
    return failed and answer[1]["error"]["code"] == "coordination-regressed"


def _node_id(program: Program) -> NodeId | None:
    """Whose directory it is, as far as this life of it knows."""
    service = program.service
    if not isinstance(service, IngestService) or not service.started:
        return None
    return service.streams._owner.node_id
