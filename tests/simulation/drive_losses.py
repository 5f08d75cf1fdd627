"""An operator who says that a drive is lost for good, as docs/tiers.md tells one to.

The drive is gone before that: its mount, or the way to it. Later it comes back, with all that was on it, or
empty, or never. Whatever it is then, it is not used again.
"""

import asyncio
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from bottomless.model.fragment import FragmentInfo
from bottomless.model.tiers import Move
from simulation.clients import LATER
from simulation.drives import drive_name
from simulation.expected import Broken
from simulation.neighbour import STREAM_ID
from simulation.run import Simulation

_SOME_COUNT: Final = 3
_MOMENT_SECONDS: Final = 12.0
"""How long it is waited for a moment at which a drive is missed."""
_SECONDS: Final = 240.0
"""A rebuild may be under way, for which everything waits."""


@dataclass
class DriveLosses:
    """Chosen by chance, as all that befalls."""

    simulation: Simulation
    chance: Random
    _chosen: set[int] = field(default_factory=set)
    """Drives that are lost, or soon."""
    _working: set["asyncio.Task[None]"] = field(default_factory=set)

    def lose(self) -> None:
        """Lose one of the drives for good, and have somebody say so."""
        others = self.simulation.ground.others
        assert others is not None
        left = [one for one in others.mounts if one not in self._chosen]
        if not left or self._working or self.simulation.trouble.over:
            return
        number = self.chance.choice(left)
        self._chosen.add(number)
        task = asyncio.get_running_loop().create_task(self._lose(number))
        self._working.add(task)
        task.add_done_callback(self._ended)

    async def see_done(self) -> None:
        """Wait until all that was lost is known to be; then nothing may be named on these drives.

        Raises:
            Broken: something is, or an operator works for ever.
        """
        simulation, others = self.simulation, self.simulation.ground.others
        assert others is not None
        await simulation.until(lambda: not self._working, "drives to be given up", _SECONDS)
        for number in sorted(others.lost):
            # Once more: what a rebuild believed of the bucket is not known to be lost.
            await self._say_until_done(number)
        for name, watch in simulation.watches.items():
            manifest = watch.look()
            left = [] if manifest is None else manifest.fragments
            named = [info.first_offset for info in left if info.drive in others.lost]
            if named:
                raise Broken(f"{name}: {named[:3]} are named on a drive that is lost")

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._working.discard(task)
        self.simulation.note_end(task)

    async def _lose(self, number: int) -> None:
        others, loop = self.simulation.ground.others, self.simulation.loop
        assert others is not None
        moved = self._copies_on(number)

        def moment(which: int = self.chance.randrange(4)) -> bool:
            moves = self._moves()
            return (
                len(self._fragments_on(number)) >= _SOME_COUNT,
                # What they were made from is there for a while.
                not self._copies_on(number) <= moved,
                any(move.to_drive == number for move in moves),
                any(move.from_drive == number and move.session for move in moves),
            )[which]

        end = loop.now + _MOMENT_SECONDS
        while not moment() and loop.now < end:
            await asyncio.sleep(0.05)
        others.gone.add(number)
        self._tell(f"loses drive {number}")
        self.simulation.story.count("drives lost")
        await self._give_up(number)

    def _fragments_on(self, number: int) -> list[FragmentInfo]:
        watches = self.simulation.watches.values()
        return [info for one in watches for info in one.manifest.fragments if info.drive == number]

    def _copies_on(self, number: int) -> set[int]:
        return {info.copy for info in self._fragments_on(number)} - {0}

    def _moves(self) -> list[Move]:
        records = [one.record() for one in self.simulation.watches.values()]
        return [move for one in records if one is not None for move in one.moves]

    async def _give_up(self, number: int) -> None:
        others = self.simulation.ground.others
        assert others is not None
        # For as long somebody hopes.
        await asyncio.sleep(self.chance.choice((0.0, 0.0, 1.0, 5.0)) * self.chance.random())
        others.lost.add(number)
        comes_back = self.chance.choice(("soon", "late", "empty", "never"))
        if comes_back == "empty":
            mounted = others.mounts[number].mounted
            # Another disk in its place, which has no marker either.
            await mounted.delete(list(mounted.object_keys))
        if comes_back in ("soon", "empty"):
            await self._say(number)
            others.gone.discard(number)
            self._tell(f"has drive {number} back, {comes_back}")
        await self._say_until_done(number)
        if comes_back == "late":
            others.gone.discard(number)
            self._tell(f"has drive {number} back")

    async def _say_until_done(self, number: int) -> None:
        while not await self._is_done(await self._say(number)):
            await asyncio.sleep(0.5)

    async def _say(self, number: int) -> str:
        """Say that a drive is lost, until that is taken up; the operation."""
        name = drive_name(number)
        path, body = f"/v1/admin/drives/{name}/lost", {"confirm": name}
        while True:
            services = self.simulation.services
            answer = await services.ask(services.manifest, "POST", path, body=body)
            if answer is not None and answer[0] == 202:
                self._tell(f"says that drive {number} is lost")
                return str(answer[1]["operation_id"])
            if answer is not None and answer[0] not in LATER:
                raise Broken(f"the loss of a drive was answered {answer}")
            await asyncio.sleep(0.3)

    async def _is_done(self, operation: str) -> bool:
        """Wait for its end; False where it has to be said again."""
        services = self.simulation.services
        end = self.simulation.loop.now + _SECONDS
        while True:
            answer = await services.ask(services.manifest, "GET", f"/v1/operations/{operation}")
            if answer is not None and answer[0] == 404:
                # It was lost with coordination.
                return False
            if answer is not None and answer[0] == 200:
                told: dict[str, Any] = answer[1]
                if told["state"] == "failed":
                    raise Broken(f"the loss of a drive ended so: {told}")
                if told["state"] == "succeeded":
                    return self._is_whole(told["result"])
            if self.simulation.loop.now > end:
                raise Broken(f"a drive is given up for ever: {answer}")
            await asyncio.sleep(0.2)

    def _is_whole(self, result: dict[str, Any]) -> bool:
        story = self.simulation.story
        story.count("fragments lost with drives", result["fragment_count"])
        story.count("fragments that were whole elsewhere", result["kept_fragment_count"])
        story.count("streams left by a loss", len(set(result["left"]) - {str(STREAM_ID)}))
        return set(result["left"]) <= {str(STREAM_ID)}

    def _tell(self, what: str) -> None:
        self.simulation.story.tell("drives", what)
