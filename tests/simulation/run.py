"""One run: the services, their clients and their troubles on one clock, all from one seed."""

import asyncio
import hashlib
import os
import random
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import structlog

from bottomless_server.ingest.log.core import round_shares
from bottomless_server.manifest.app import ManifestService
from bottomless_server.node.core import ownership
from bottomless_server.protocol.compaction import COMPACT
from simulation import neighbour
from simulation.clients import (
    ANSWER_SECONDS,
    Operator,
    PlainWriter,
    Reader,
    Services,
    StrictProducer,
    Trimmer,
    Writer,
)
from simulation.clockwork import BEGIN_MS, Clockwork, running
from simulation.consumers import Consumer
from simulation.expected import Broken, Expected
from simulation.followers import Follower
from simulation.invariants import Watch, noting_fences
from simulation.loop import PROCESS, VirtualLoop
from simulation.losses import Losses, deaths_at_points
from simulation.network import NoAnswer, NoConnection, Request
from simulation.numbered import HighwaterProducer, KeyedWriter
from simulation.programs import (
    Ground,
    Program,
    ingest_program,
    lay_ground,
    manifest_program,
    reader_program,
    uploader_program,
)
from simulation.promised_files import noting_staged_files
from simulation.replica_watch import ReplicaWatch
from simulation.rest import leave_tails
from simulation.staged_writer import StagedWriter
from simulation.story import Story
from simulation.tails import TailWatch, WalWatch, wal_keys
from simulation.trouble import LEADERLESS_TROUBLES, Trouble
from simulation.waiting_deletes import objects_named, objects_waiting

STORM_SECONDS: Final = 25.0
QUIET_SECONDS: Final = 120.0
"""After the troubles everything has to be well again within so long."""
FAR_SECONDS: Final = 60.0
"""Above every grace, deadline and lease of a run: what is due later was condemned by a clock that
was days ahead."""
LOOK_SECONDS: Final = 0.05
LOCAL_WRITERS: Final = (StrictProducer, StrictProducer, PlainWriter, StagedWriter)
LEADERLESS_WRITERS: Final = (
    StrictProducer,
    PlainWriter,
    StagedWriter,
    HighwaterProducer,
    KeyedWriter,
)
RESERVE_COUNT: Final = 40
REBUILD_SECONDS: Final = 240.0


class _Runs(Protocol):
    def run(self) -> Coroutine[Any, Any, None]: ...


_MakeWriter = Callable[[Services, Expected, str, random.Random], _Runs]


class Outcome(NamedTuple):
    seed: int
    digest: str
    failure: str | None
    """What did not hold."""
    lines: list[str]
    counts: Counter[str]


@dataclass
class Simulation:
    seed: int
    loop: VirtualLoop
    story: Story
    ground: Ground
    storm_seconds: float
    quiet_seconds: float
    troubles: str = "all"
    leaderless: bool = False
    """Whether there are streams without an owner beside the local ones."""
    replicas: int = 1
    """On so many nodes the local ones lie."""
    programs: list[Program] = field(init=False)
    services: Services = field(init=False)
    losses: Losses = field(init=False)
    trouble: Trouble = field(init=False)
    watches: dict[str, Watch] = field(default_factory=dict)
    streams: list[Expected] = field(default_factory=list)
    configure: Callable[[dict[str, Any], random.Random], None] = lambda *_: None
    """Adds to the configuration of a stream."""
    also: list[Callable[[Expected], _Runs]] = field(default_factory=list)
    """Clients of each stream beside those of all runs."""
    last: list[Callable[[], Coroutine[Any, Any, None]]] = field(default_factory=list)
    """What is to be looked at in the end, one after the other."""

    def __post_init__(self) -> None:
        ground = self.ground
        how = self.chance("leaderless")
        # Short ones make nodes meet at a stream, long ones make many appends share an object.
        linger_ms = how.choice((50, 250))
        self.nodes = [
            ingest_program(
                ground,
                f"ingest-{letter}",
                how.choice(("async", "sync")) if self.leaderless else None,
                linger_ms,
            )
            for letter in "ab"
        ]
        self.manifest = manifest_program(ground)
        self.reader = reader_program(ground, leaderless=self.leaderless)
        uploader = uploader_program(ground, leaderless=self.leaderless)
        self.programs = [self.manifest, *self.nodes, uploader, self.reader]
        if self.leaderless and how.random() < 0.5:
            second = uploader_program(ground, "uploader-b", leaderless=True, only=True)
            self.programs.append(second)
        self.wal = WalWatch(ground.coordination, ground.drive)
        self.services = Services(ground.network, self.story, self.nodes, self.manifest, self.reader)
        ground.network.is_blind = lambda: ground.is_blind
        operator = Operator(self.services, self.watches, self.streams, self.chance("operator"))
        chance = self.chance("losses")
        self.losses = Losses(
            ground, self.services, self.programs, self.watches, self.streams, operator, chance
        )
        self.trouble = Trouble(
            ground,
            self.programs,
            self.chance("trouble"),
            operator.take_over,
            self.losses,
            self.troubles,
        )

    def chance(self, what: str) -> random.Random:
        """A source of its own for each purpose, so that one more draw here changes nothing there."""
        return random.Random(f"{self.seed} {what}")

    async def run(self) -> None:
        for program in self.programs:
            program.start()
        keeping = asyncio.create_task(self.trouble.keep_running())
        await self.until(lambda: all(one.started for one in self.programs), "a start")
        # Three, of which one or two have no owner.
        local = self.chance("profiles").choice((1, 2)) if self.leaderless else 2
        leaderless = 3 - local if self.leaderless else 0
        if self.troubles == "leaderless":
            local, leaderless = 0, 2
        for number in range(local):
            await self.create(f"stream-{number}", self.chance(f"config {number}"))
        for number in range(leaderless):
            name = f"leaderless-{number}"
            await self.create(name, self.chance(f"config {name}"), leaderless=True)
        neighbour.damage(self.ground.coordination)
        self.ground.coordination.on_write = self._look_soon
        watching = asyncio.create_task(self._keep_looking())
        clients = [asyncio.create_task(work) for work in self._clients()]
        for task in (keeping, watching, *clients):
            task.add_done_callback(self.note_end)
        troubling = asyncio.create_task(self.trouble.run())
        troubling.add_done_callback(self.note_end)
        deleting = asyncio.create_task(self._delete_one())
        deleting.add_done_callback(self.note_end)
        await asyncio.sleep(self.storm_seconds)
        self.trouble.end()
        self.services.closing = True
        await self._see_operator_done()
        condemned = set(neighbour.others_waiting(self.ground.coordination))
        await asyncio.wait({troubling, deleting}, timeout=self.quiet_seconds)
        await self.all_done(clients)
        await leave_tails(self.trouble, self._last_writers())
        await self._see_all_uploaded()
        await self.read_all()
        await self._look_past_the_neighbour()
        await self._see_all_deleted(condemned)
        for look in self.last:
            await look()
        if self.leaderless:
            await self._see_all_reclaimed()
        watching.cancel()
        keeping.cancel()

    def _clients(self) -> list[Any]:
        works: list[Any] = []
        for stream in self.streams:
            watch, name = self.watches[stream.name], stream.name
            for kind in self._writers(stream):
                who = f"{name}-w{len(works)}"
                works.append(kind(self.services, stream, who, self.chance(who)).run())
            works += [
                Reader(self.services, stream, watch, self.chance(f"{name}-r{number}")).run()
                for number in range(1 if stream.leaderless else 2)
            ]
            works += [
                Follower(self.services, stream, watch, self.chance(f"{name}-f{number}")).run()
                for number in range(1 if stream.leaderless else 2)
            ]
            works.append(
                Consumer(self.services, stream, watch, self.chance(f"{name} consumer")).run()
            )
            works.append(Trimmer(self.services, stream, watch, self.chance(f"{name} trim")).run())
            works += [make(stream).run() for make in self.also]
        return works

    def _writers(self, stream: Expected) -> Sequence[_MakeWriter]:
        return LEADERLESS_WRITERS if stream.leaderless else LOCAL_WRITERS

    async def _compact_now(self) -> None:
        """In half of the runs somebody asks for a round; else it is time that brings one."""
        for program in self.programs if self.chance("compact").random() < 0.5 else ():
            if program.name.startswith("uploader"):
                with suppress(NoConnection, NoAnswer):
                    sent = Request("POST", COMPACT)
                    await self.ground.network.ask("client", program.url, sent, ANSWER_SECONDS)

    def _last_writers(self) -> list[Writer]:
        return [
            Writer(self.services, stream, f"{stream.name}-last", self.chance(f"{stream.name} last"))
            for stream in self.streams
            if not stream.deleted
        ]

    async def create(self, name: str, chance: random.Random, *, leaderless: bool = False) -> None:
        config: dict[str, Any] = {
            "fragment": {"target_bytes": 65_536, "max_age_ms": chance.choice((100, 500, 2000))}
        }
        if chance.random() < 0.3:
            config["retention"] = {"max_bytes": chance.choice((50_000, 200_000))}
        else:
            # Longer than any run: nothing ever goes for its age.
            config["retention"] = {"max_age": "20h"}
        if self.replicas > 1:
            config["replication"] = {"replicas": self.replicas}
        if leaderless:
            config["profile"] = "leaderless"
            config["fragment"]["max_age_ms"] = 10_000
        self.configure(config, chance)
        answer = await self.services.ask(self.manifest, "PUT", f"/v1/streams/{name}", body=config)
        assert answer is not None
        assert answer[0] == 201, answer
        expected = Expected(name, answer[1]["stream_id"], leaderless)
        expected.trimmed_below = None if "max_bytes" in config["retention"] else 0
        self.streams.append(expected)
        ground = self.ground
        if leaderless:
            self.watches[name] = TailWatch(expected, ground, self.nodes)
        elif self.replicas > 1:
            self.watches[name] = ReplicaWatch(expected, ground, self.nodes)
        else:
            self.watches[name] = Watch(expected, ground.coordination, ground.stored, self.nodes)
        self.story.tell("client", f"created {name}: {config}")

    async def _delete_one(self) -> None:
        """In some runs one stream is deleted in the middle of everything."""
        chance = self.chance("delete")
        if chance.random() > 0.3:
            return
        await asyncio.sleep(chance.uniform(5, self.storm_seconds))
        stream = chance.choice(self.streams)
        stream.deleted = True
        self.story.tell("client", f"deletes {stream.name}")
        while True:
            answer = await self.services.ask(self.manifest, "DELETE", f"/v1/streams/{stream.name}")
            if answer is not None and answer[0] in (202, 404):
                break
            await asyncio.sleep(0.3)
        self.story.count("streams deleted")
        prefix_of = f"{stream.stream_id}"
        stored, coordination = self.ground.stored, self.ground.coordination
        ahead = self.story.counts["clocks set ahead"] > 0
        seconds = FAR_SECONDS if ahead else self.storm_seconds + self.quiet_seconds
        try:
            await self.until(
                lambda: (
                    self.watches[stream.name].record() is None
                    and not any(prefix_of in key for key in stored.object_keys)
                    and coordination is not None
                ),
                f"{stream.name} to be gone",
                seconds,
            )
        except Broken:
            # A clock that was days ahead has put it off: looked at once a minute.
            if not self.story.counts["clocks set ahead"]:
                raise

    async def all_done(self, clients: "list[asyncio.Task[None]]") -> None:
        _, waiting = await asyncio.wait(clients, timeout=self.quiet_seconds)
        if waiting:
            who = sorted(getattr(task.get_coro(), "__qualname__", "?") for task in waiting)
            raise Broken(f"{len(waiting)} clients never finished after the troubles: {who}")
        await self._see_all_uploaded()

    async def _see_operator_done(self) -> None:
        try:
            # A rebuild reads WAL objects one by one, and each read takes long here.
            seconds = REBUILD_SECONDS if self.leaderless else 60.0
            await self.until(lambda: not self.losses.busy, "an operator to be done", seconds)
        except Broken:
            # A known fault (docs/guarantees.md): what a clock that was days ahead has put off is
            # looked at once a minute, and after that it still has to be carried out.
            if not self.losses.has_far_operation:
                raise
            self.story.count("operators kept waiting by a clock that was ahead")
            await self.until(
                lambda: not self.losses.busy, "an operator to be done at last", REBUILD_SECONDS
            )

    async def _see_all_uploaded(self) -> None:
        def uploaded() -> bool:
            return all(
                stream.deleted
                or (record := self.watches[stream.name].record()) is None
                or record.published_next >= stream.acknowledged_next
                for stream in self.streams
            )

        if self.leaderless:
            await self._compact_now()
        try:
            await self.until(uploaded, "everything acknowledged to be in the object store")
        except Broken as error:
            ends = {
                one.name: (record and record.published_next, one.acknowledged_next)
                for one in self.streams
                for record in (self.watches[one.name].record(),)
            }
            raise Broken(f"{error}: {ends}") from error
        self.story.tell("client", "all is in the object store")

    async def read_all(self) -> None:
        """Everything that was acknowledged and not trimmed is read back, once, in its place."""
        for stream in self.streams:
            if stream.deleted:
                continue
            manifest = self.watches[stream.name].look()
            assert manifest is not None
            reader = Reader(self.services, stream, self.watches[stream.name], self.chance("last"))
            reader.position = manifest.floor
            began = self.loop.now
            before = set(stream.seen)
            stream.seen = {o: v for o, v in stream.seen.items() if o < manifest.floor}
            while not await reader.page(limit=1000):
                if self.loop.now - began > self.quiet_seconds:
                    raise Broken(f"{stream.name} cannot be read after the troubles")
                await asyncio.sleep(0.05)
            floor = self.watches[stream.name].manifest.floor
            kept = {offset for offset in stream.acknowledged if offset >= floor}
            lost = sorted(kept - stream.seen.keys())
            if lost:
                raise Broken(f"{stream.name} lost {len(lost)} records, the first at {lost[0]}")
            vanished = sorted(
                o for o in before - stream.seen.keys() if o >= floor and not stream.is_lost(o)
            )
            if vanished:
                raise Broken(f"{stream.name}: {vanished[:3]} were read once, and are gone")
            self._check_order(stream)
            stream.require_promised(floor)
            self.story.tell("client", f"read {stream.name}, {reader.record_count} records")

    async def _look_past_the_neighbour(self) -> None:
        """A stream that nobody can read ends no list of the others."""
        answer = None
        while answer is None or answer[0] != 200:
            answer = await self.services.ask(self.manifest, "GET", "/v1/streams")
            await asyncio.sleep(0.1)
        listed = {item["name"] for item in answer[1]["items"]}
        missing = {one.name for one in self.streams if not one.deleted} - listed
        if missing or [one["name"] for one in answer[1]["unreadable"]] != [neighbour.NAME]:
            raise Broken(f"the list lacks {missing}, or does not name what it cannot read")

    async def _see_all_deleted(self, condemned: set[bytes]) -> None:
        """What waits to be deleted is, as soon as its time has come, past a damaged stream too.

        It was looked at before for one moment at the end, when little was due: nothing in it, so
        nothing was seen. Now everything that any trouble left in the queue has to leave it, and its
        objects the bucket. Where a clock was days ahead, what was condemned by it waits as long.
        """
        coordination, drive = self.ground.coordination, self.ground.drive
        far = self.storm_seconds + self.quiet_seconds + FAR_SECONDS

        def near() -> list[bytes]:
            end = BEGIN_MS + int((self.loop.now + FAR_SECONDS) * 1000)
            others = neighbour.others_waiting(coordination)
            return [member for member, due_at in others.items() if due_at < end]

        def drained() -> bool:
            service = self.manifest.service
            assert isinstance(service, ManifestService)
            return not near() and service._context.time.doubt is None

        await self.until(drained, "what is to be deleted to be gone", far)
        left = neighbour.others_waiting(coordination)
        if left and not self.story.counts["clocks set ahead"]:
            raise Broken(f"deleted in days, and no clock was ahead: {sorted(left)[:3]}")
        reachable = {key for watch in self.watches.values() for key in watch.reachable()}
        # A group that is queued in parts, or with the larger one that it came to lie in, goes with
        # the last of them, which may wait for minutes where a clock was ahead: seeds 38 and 15.
        waiting = await objects_waiting(drive, left)
        gone = objects_named(condemned) - waiting
        kept = sorted(key for key in gone - reachable if drive.has(key))
        if kept:
            raise Broken(f"settled in the queue, and not deleted: {kept[:3]}")
        self.story.count("deletions past a damaged stream", len(gone - reachable))

    async def _see_all_reclaimed(self) -> None:
        """When no writer is left, no WAL object is, and nothing that speaks of one."""
        for node in self.nodes:
            node.wanted = False
            await node.stop()
        try:
            await self.until(lambda: not self.wal.unreclaimed(), "WAL objects to be gone")
        except Broken as error:
            raise Broken(f"{error}: {self.wal.unreclaimed()[:4]}") from error
        self.story.count("WAL objects left to garbage collection", len(wal_keys(self.ground.drive)))

    def _check_order(self, stream: Expected) -> None:
        """Records of one producer stand in the order of their numbers."""
        last: dict[str, int] = {}
        for offset in sorted(stream.acknowledged):
            value = stream.acknowledged[offset]
            who, number, _ = value.split(" ", 2)
            # Where an operator gave up what was known of it, a repeat is new.
            again = stream.is_stored_anew(value, offset)
            if last.get(who, -1) >= int(number) and not again:
                raise Broken(f"{stream.name}: {who} {number} at {offset} comes after {last[who]}")
            last[who] = int(number)

    def _look_soon(self) -> None:
        try:
            for watch in self.watches.values():
                watch.look()
            self.wal.look()
        except Broken as error:
            self.loop.failures.append(error)

    async def _keep_looking(self) -> None:
        while True:
            for watch in self.watches.values():
                watch.look()
            await asyncio.sleep(LOOK_SECONDS)

    def note_end(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.loop.failures.append(error)

    async def until(self, fact: Callable[[], bool], what: str, seconds: float = 60) -> None:
        deadline = self.loop.now + seconds
        while not fact():
            if self.loop.now > deadline:
                raise Broken(f"waited {seconds} s in vain for {what}")
            await asyncio.sleep(0.05)


Course = Callable[[Simulation], Coroutine[Any, Any, object]]
"""What happens in a run."""


def replay_line(seed: int, storm_seconds: float, troubles: str, option: str = "") -> str:
    """The command that shows a seed again, with all options without which it is another story;
    `option` is the one of its course."""
    storm = "" if storm_seconds == STORM_SECONDS else f" --storm-seconds {storm_seconds:g}"
    chosen = "" if troubles == "all" else f" --troubles {troubles}"
    return f"replay: ./dev sim {seed}{storm}{chosen}{option and f' {option}'}"


def simulate(
    seed: int,
    *,
    storm_seconds: float = STORM_SECONDS,
    quiet_seconds: float = QUIET_SECONDS,
    troubles: str = "all",
    echo: Callable[[str], object] | None = None,
    course: Course = Simulation.run,
) -> Outcome:
    """Run one seed to its end, or to what did not hold; `course` is what happens in it."""
    loop = VirtualLoop(random.Random(f"{seed} loop"))
    story = Story(lambda: loop.now, echo)
    clockwork = Clockwork(lambda: loop.now, random.Random(f"{seed} system"))
    failure: str | None = None
    with ExitStack() as stack:
        directory = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="simulation-", dir=_memory()))
        )
        stack.enter_context(running(clockwork, seed))
        stack.enter_context(noting_fences())
        stack.enter_context(noting_staged_files())
        stack.enter_context(deaths_at_points())
        stack.enter_context(small_blocks())
        stack.enter_context(single_rounds_synced_as_many())
        structlog.configure(
            processors=[lambda _, level, event: _tell_log(story, str(directory), level, event)],
            logger_factory=structlog.ReturnLoggerFactory(),
        )
        ground = lay_ground(loop, story, directory, random.Random(f"{seed} weather"))
        leaderless = course is Simulation.run and troubles in LEADERLESS_TROUBLES
        simulation = Simulation(
            seed, loop, story, ground, storm_seconds, quiet_seconds, troubles, leaderless
        )
        try:
            loop.run_until_complete(course(simulation))
        except Exception as error:  # noqa: BLE001 whatever it is, it is what the run found
            failure = f"{type(error).__name__}: {error}"
        if failure is None and loop.bugs:
            failure = f"a callback raised: {loop.bugs[0]}"
        if failure is not None:
            story.tell("FAILED", failure)
        for program in simulation.programs:
            program.kill()
        # What the lines do not show: names of objects, and how much was drawn to the end.
        names = hashlib.sha256("\n".join(ground.stored.object_keys).encode()).hexdigest()
        drawn = clockwork.chance.getrandbits(32)
        story.tell("run", f"ends after step {loop.step_count}, {names[:8]} {drawn:08x}")
    story.count("steps", loop.step_count)
    story.count("lost requests or replies", ground.weather.lost_count)
    story.count("seconds", int(loop.now))
    return Outcome(seed, story.digest(), failure, story.lines, story.counts)


@contextmanager
def small_blocks() -> Iterator[None]:
    """Reserve few offsets at once, so that owners ask for more all the time."""
    before, ownership.RESERVE_COUNT = ownership.RESERVE_COUNT, RESERVE_COUNT  # type: ignore[misc]
    try:
        yield
    finally:
        ownership.RESERVE_COUNT = before  # type: ignore[misc]


@contextmanager
def single_rounds_synced_as_many() -> Iterator[None]:
    """Have a node that may do so sync everything for each round: few streams seldom wait together."""
    before, round_shares.ALL_FROM = round_shares.ALL_FROM, 1  # type: ignore[misc]
    try:
        yield
    finally:
        round_shares.ALL_FROM = before  # type: ignore[misc]


def _memory() -> str | None:
    """Where files need no disk, if there is such a place: SQLite syncs some."""
    shared = Path("/dev/shm")
    return str(shared) if os.access(shared, os.W_OK) else None


def _place_of(error: BaseException) -> str:
    """An error, and the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
    return f"{error!r} in {place}"


def _tell_log(story: Story, directory: str, level: str, event: Any) -> str:
    process = PROCESS.get()
    quiet = event["event"].startswith("stamina")
    if process is not None and not quiet and level in ("warning", "error", "critical", "exception"):
        error = event.get("exc_info")
        shown = {
            name: value
            for name, value in sorted(event.items())
            if name in ("error", "stream_id", "code", "what", "bytes", "path")
        }
        reason = f" {_place_of(error)}" if isinstance(error, BaseException) else ""
        text = f"{level}: {event['event']} {shown}{reason}"
        story.tell(process.name, text.replace(directory, "DIR"))
        if "bug" in event["event"]:
            story.count("bugs")
    raise structlog.DropEvent
