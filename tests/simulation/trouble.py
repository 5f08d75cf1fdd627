"""What befalls the programs and their machines: chosen by chance, told in the story.

Whoever was killed is started again some time later; at the end everything is calm and runs.
"""

import asyncio
import errno
import os
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from simulation.expected import Broken
from simulation.loop import Killed, Process
from simulation.losses import Losses
from simulation.programs import Ground, Program
from simulation.promised_files import missing_files

SKEW_MS_MAX: Final = 25_000
"""Of a wall clock to either side: a larger jump ahead needs an operator, by design."""
DAY_MS: Final = 86_400_000
STORM_SECONDS_MAX: Final = 600.0
BUSY_SECONDS: Final = 7.0
"""By then streams are there, and have records."""
CLOCK_MS_MAX: Final = 4_000
"""From that of coordination, in the end: a node with another one takes nothing for a stream without
an owner, by design."""
_CHANGES: Final = (
    "pwritev",
    "fdatasync",
    "syncfs",
    "fsync_dir",
    "create",
    "rename",
    "unlink",
    "truncate",
)


_DATA: Final = (".segment", ".sqs")
"""Files in which records and messages are."""
LEADERLESS_TROUBLES: Final = ("all", "leaderless")
"""Troubles under which there are streams without an owner, too."""


@dataclass
class Trouble:
    ground: Ground
    programs: list[Program]
    chance: random.Random
    take_over: Callable[[float], Coroutine[Any, Any, None]]
    """Let an operator take over, for so many seconds, what has no owner that is alive."""
    losses: Losses
    kinds: str = "all"
    """What befalls: `all`; `clocks`, which are wrong or stand still; `jams`, where none is;
    `crashes`, all but these; `ahead`, a wall clock that is days ahead for a moment; `losses`, of
    homes, with takeovers that die at any step, and of coordination; `leaderless`, what streams
    without an owner have to fear."""
    over: bool = False
    also: list[Callable[[], None]] = field(default_factory=list)
    """What befalls beside everything, and beside crashes."""
    only: dict[str, list[Callable[[], None]]] = field(default_factory=dict)
    """What befalls by kinds that a course has for itself."""
    _operating: set["asyncio.Task[None]"] = field(default_factory=set)

    async def run(self) -> None:
        befall = self._befall()
        while True:
            await asyncio.sleep(self.chance.uniform(0.1, 1.5))
            if self.over:
                # Not once more: bad weather would last. Found by seed 14, `--storm-seconds 8`.
                return
            if self.kinds in ("all", "crashes") and self.chance.random() < 0.08:
                await self._stop(self._any())
                continue
            self.chance.choice(befall)()

    def _befall(self) -> list[Callable[[], None]]:
        if self.kinds in self.only:
            return [
                self._kill,
                self._kill_soon,
                self._lose_power,
                self._part,
                *self.only[self.kinds],
            ]
        if self.kinds == "jams":
            return [self._jam]
        if self.kinds == "ahead":
            return [self._set_ahead]
        losses = [self.losses.lose_home, self.losses.lose_coordination]
        if self.kinds == "losses":
            return [self.losses.lose_home] * 4 + [self._kill_soon]
        clocks = [self._sleep, self._sleep, self._jam, self._step_valkey]
        if self.kinds == "clocks":
            return clocks
        if self.kinds == "leaderless":
            return [
                self._kill,
                self._kill_soon,
                self._pause,
                self._pause,
                self._sleep,
                self._part,
                self._worsen,
                self._go_away,
                self._lose_nodes,
                self._lose_nodes,
            ]
        crashes = [
            self._kill,
            self._kill,
            self._kill_soon,
            self._kill_soon,
            self._kill_at_file_call,
            self._lose_power,
            self._lose_power,
            self._pause,
            self._part,
            self._worsen,
            self._go_away,
            self._step_clock,
            self._break_disk,
            self._break_disk_and_die,
        ]
        crashes += self.also
        return crashes if self.kinds == "crashes" else [*crashes, *clocks, self._set_ahead, *losses]

    async def keep_running(self) -> None:
        """Start again who died, some time later."""
        waiting: dict[str, float] = {}
        while True:
            now = self.ground.loop.now
            for program in self.programs:
                if program.alive or not program.wanted:
                    waiting.pop(program.name, None)
                elif program.name not in waiting:
                    longest = 0.3 if self.over else self.chance.choice((0.2, 1.0, 5.0))
                    waiting[program.name] = now + self.chance.uniform(0.02, longest)
                elif waiting[program.name] <= now:
                    program.start()
            await asyncio.sleep(0.02)

    def end(self) -> None:
        self.over = True
        if self.kinds in LEADERLESS_TROUBLES:
            self._set_clocks()
        self.losses.end()
        self.ground.weather.clear_up()
        self.ground.network.apart.clear()
        for program in self.programs:
            if program.process is not None:
                self._wake(program.process)
                program.process.resume()
                program.process.steps_left = None
            if program.disk is not None:
                program.disk.before = _nothing
        self.ground.story.tell("trouble", "is over")

    def _set_clocks(self) -> None:
        """Let the clocks of nodes and uploaders agree with that of coordination, more or less."""
        right = self.ground.valkey_clock.skew_ms
        for program in self.programs:
            if program.name.startswith(("ingest", "uploader")):
                skew = program.clock.skew_ms
                near = min(max(skew, right - CLOCK_MS_MAX), right + CLOCK_MS_MAX)
                program.clock.skew_ms = near

    def _any(self) -> Program:
        return self.chance.choice(self.programs)

    def _with_disk(self) -> Program:
        return self.chance.choice([one for one in self.programs if one.disk is not None])

    def _kill(self) -> None:
        program = self._any()
        if program.alive:
            self._tell("kills", program)
            program.kill()

    def _kill_soon(self) -> None:
        """At any await: in the middle of whatever is going on."""
        program = self._any()
        if program.process is not None and program.alive:
            program.process.steps_left = steps = int(400 * self.chance.random() ** 2)
            self._tell(f"kills after {steps} steps", program)

    def _kill_at_file_call(self) -> None:
        program = self._with_disk()
        if program.alive:
            left, power = self.chance.randint(1, 30), self.chance.random() < 0.5
            self._kill_at_change(program, left, power=power)
            self._tell(f"kills at change {left} of a file", program)

    def _kill_at_change(self, program: Program, left: int, *, power: bool) -> None:
        disk = program.disk
        assert disk is not None

        def before(call: str, path: Path) -> None:
            nonlocal left
            left -= call in _CHANGES
            if left <= 0:
                disk.before = _nothing
                # Whoever makes the call, which may be the next life: seed 2016.
                process = program.process
                assert process is not None
                self.ground.story.tell(program.name, f"dies before {call} of {path.suffix}")
                process.kill()
                if power:
                    self._cut_power(program)
                raise Killed

        disk.before = before

    def _lose_power(self) -> None:
        self._lose_power_of(self._with_disk())

    def _lose_power_of(self, program: Program) -> None:
        if self.over:
            return
        program.kill()
        self._cut_power(program)

    def _cut_power(self, program: Program) -> None:
        assert program.disk is not None
        before = program.disk.forgotten_count
        program.disk.lose_power(self.chance)
        lost = program.disk.forgotten_count - before
        self.ground.story.tell(program.name, f"loses its power, and {lost} unsynced changes")
        self.ground.story.count("power losses")
        self.ground.story.count("unsynced changes lost", lost)
        if missing := missing_files(program.disk, program.data_dir):
            told = f"{program.name} lost staged files with its power: {missing[:3]}"
            self.ground.loop.failures.append(Broken(told))

    def _pause(self) -> None:
        program = self._any()
        process = program.process
        if process is None or not process.alive or process.paused:
            return
        seconds = self.chance.choice((0.5, 2.0, 6.0))
        process.pause()
        self.ground.hinder(program.name, seconds)
        self._tell(f"pauses for {seconds} s", program)
        self.ground.loop.call_later(seconds, process.resume)

    def _sleep(self) -> None:
        """The machine of an ingest node stops for a while, as a paused virtual machine does."""
        program = self._with_disk()
        process = program.process
        if process is None or not process.alive or process.paused:
            return
        seconds = self.chance.choice((0.5, 4.5, 6.0))
        unseen = self.chance.random() < 0.3
        process.sleep(unseen=unseen)
        self.ground.hinder(program.name, seconds)
        self._tell(f"sleeps for {seconds} s, {'un' * unseen}seen", program)
        self.ground.loop.call_later(seconds, self._wake, process)
        self._maybe_take_over(seconds)

    def _wake(self, process: Process) -> None:
        if process.clock.asleep_since is not None and process.alive:
            if process.clock.unseen:
                self.ground.blind()
            process.wake()
            self.ground.story.tell(process.name, "wakes up")

    def _lose_nodes(self) -> None:
        """Coordination is lost with a node that has just acknowledged something, and now and then with
        the other one. Not at once: there has to be something to lose."""
        if self.ground.loop.now >= BUSY_SECONDS:
            self.losses.services.heard = self._lose_who_answered

    def _lose_who_answered(self, node: Program) -> None:
        nodes = self.losses.services.nodes
        self.losses.services.heard = None
        if self.over:
            return
        for program in nodes if self.chance.random() < 0.3 else (node,):
            self._tell("kills with coordination", program)
            program.kill()
        self.losses.lose_coordination()

    def _jam(self) -> None:
        """One renewal of a node's lease is answered late, and the next one arrives late."""
        program = self._with_disk()
        replies = self.ground.loop.now + self.chance.uniform(0.8, 1.7)
        requests = replies + self.chance.uniform(2.4, 3.4)
        self.ground.weather.jams[program.name] = replies, requests
        seconds = requests - self.ground.loop.now
        self._tell(f"jams renewals for {seconds:.1f} s", program)
        self._maybe_take_over(seconds + 1)

    def _step_valkey(self) -> None:
        step_ms = self.chance.choice((-4_000, 1_000, 5_000))
        self.ground.valkey_clock.skew_ms += step_ms
        if step_ms > 0:
            self.ground.blind()
        self.ground.story.tell("trouble", f"steps the clock of Valkey by {step_ms:+} ms")
        self.ground.story.count("steps of Valkey's clock")
        self._maybe_take_over(1)

    def _maybe_take_over(self, seconds: float) -> None:
        if self.chance.random() < 0.6:
            task = asyncio.get_running_loop().create_task(self.take_over(seconds))
            self._operating.add(task)
            task.add_done_callback(self._operating.discard)

    def _part(self) -> None:
        names = [program.name for program in self.programs] + ["client"]
        one, other = self.chance.sample(names, 2)
        pair = frozenset((one, other))
        seconds = self.chance.uniform(0.3, 6)
        self.ground.network.apart.add(pair)
        self.ground.story.tell("trouble", f"parts {one} and {other} for {seconds:.1f} s")
        self.ground.story.count("partitions")
        self.ground.loop.call_later(seconds, self.ground.network.apart.discard, pair)

    def _worsen(self) -> None:
        weather = self.ground.weather
        weather.loss = self.chance.choice((0.0, 0.01, 0.05, 0.2))
        weather.slow = self.chance.choice((0.0, 0.02, 0.1))
        # Nobody tells for how long.
        self.ground.hinder("drive", STORM_SECONDS_MAX if weather.loss or weather.slow else 0)
        self.ground.story.tell("trouble", f"loses {weather.loss}, slows {weather.slow}")

    def _go_away(self) -> None:
        kind = self.chance.choice(("drive", "coordination"))
        seconds = self.chance.uniform(0.2, 4)
        self.ground.weather.away.add(kind)
        self.ground.hinder(kind, seconds)
        self.ground.story.tell("trouble", f"takes the {kind} away for {seconds:.1f} s")
        self.ground.story.count("outages")
        self.ground.loop.call_later(seconds, self.ground.weather.away.discard, kind)

    def _step_clock(self) -> None:
        program = self._any()
        program.clock.skew_ms = self.chance.randint(-SKEW_MS_MAX, SKEW_MS_MAX)
        self.ground.hinder(program.name)
        self._tell(f"sets the clock to {program.clock.skew_ms:+} ms", program)

    def _set_ahead(self) -> None:
        """The clock that says how old something is, is days ahead, and right again seconds later."""
        (program,) = [one for one in self.programs if one.name == "manifest"]
        before = program.clock.skew_ms
        if abs(before) > SKEW_MS_MAX:
            return
        program.clock.skew_ms = self.chance.choice((1, 10, 400)) * DAY_MS
        seconds = self.chance.uniform(1, 4)
        self.ground.hinder(program.name, seconds)
        self._tell(f"sets the clock ahead for {seconds:.1f} s", program)
        self.ground.story.count("clocks set ahead")

        def set_right() -> None:
            program.clock.skew_ms = before

        self.ground.loop.call_later(seconds, set_right)

    def _break_disk(self) -> None:
        program = self._with_disk()
        disk = program.disk
        assert disk is not None
        left, times = self.chance.randint(1, 20), self.chance.randint(1, 3)
        number = self.chance.choice((errno.EIO, errno.ENOSPC))
        broken = {self.chance.choice(("pwritev", "fdatasync", "fsync_dir", "create"))}
        if "fdatasync" in broken:
            broken.add("syncfs")
        # What the system shows of a file whose sync failed need not be on the disk.
        if self.chance.random() < 0.3:
            broken |= {"fdatasync", "truncate"}

        def before(call: str, path: Path) -> None:
            nonlocal left, times
            left -= call in _CHANGES
            if left <= 0 and call in broken and (call == "syncfs" or _is_of_data(path)):
                times -= 1
                if times <= 0:
                    disk.before = _nothing
                self.ground.story.tell(program.name, f"{call} fails: {os.strerror(number)}")
                self.ground.story.count("failed file calls")
                raise OSError(number, os.strerror(number))

        disk.before = before
        self._tell(f"breaks {' and '.join(sorted(broken))} {times} times", program)

    def _break_disk_and_die(self) -> None:
        """A sync fails, whoever asked for it dies before anything can be cut, and some time after
        the next start the power goes: what the system showed in between was not on the disk."""
        program = self._with_disk()
        disk = program.disk
        assert disk is not None

        def before(call: str, path: Path) -> None:
            if call == "syncfs" or (call == "fdatasync" and path.suffix in _DATA):
                self._kill_at_change(program, 1, power=False)
                self.ground.loop.call_later(self.chance.uniform(1, 5), self._lose_power_of, program)
                self.ground.story.tell(program.name, f"{call} fails")
                self.ground.story.count("failed file calls")
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        disk.before = before
        self._tell("breaks fdatasync and the process", program)

    async def _stop(self, program: Program) -> None:
        if program.alive:
            self._tell("stops", program)
            await program.stop()

    def _tell(self, what: str, program: Program) -> None:
        self.ground.story.tell("trouble", f"{what}: {program.name}")
        self.ground.story.count(what.split(maxsplit=1)[0])


def _is_of_data(path: Path) -> bool:
    return any(suffix in path.name for suffix in _DATA) or path.parent.name == "registry"


def _nothing(_: str, __: Path) -> None:
    pass
