"""What befalls drives beside drive 0, and whoever moves something between them."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from support.mounts import Mount

from bottomless_server.runtime.base import fault_points
from bottomless_server.runtime.base.fault_points import FaultAction
from simulation.drives import away_name
from simulation.programs import Ground

_STEPS: Final = (
    "uploader.move.after-claim",
    "uploader.move.after-copies",
    "uploader.move.after-finish",
    "uploader.put.after-object",
    "manifest.tiers.after-enter",
    "manifest.publish.after-groups",
    "manifest.publish.before-exec",
    "manifest.publish.after-exec",
    "manifest.deleter.after-condemn",
    "manifest.deleter.after-delete",
    "manifest.deleter.before-settle",
)
"""Whoever passes one of these dies there."""


@dataclass
class DriveTrouble:
    """Chosen by chance, as all that befalls."""

    ground: Ground
    chance: Random

    def befall(self) -> list[Callable[[], None]]:
        """What may befall, each as often as it is named."""
        return [self._go_away, self._unmount, self._kill_at_step, self._kill_at_step]

    def _mount(self) -> tuple[int, Mount]:
        others = self.ground.others
        assert others is not None
        return self.chance.choice(list(others.mounts.items()))

    def _go_away(self) -> None:
        number, _ = self._mount()
        name, seconds = away_name(number), self.chance.choice((0.5, 3.0, 8.0))
        self.ground.weather.away.add(name)
        self._tell(f"takes {name} away for {seconds:.1f} s", "drives away")
        self.ground.loop.call_later(seconds, self.ground.weather.away.discard, name)

    def _unmount(self) -> None:
        number, mount = self._mount()
        if mount.is_gone:
            return
        seconds = self.chance.choice((0.2, 2.0, 6.0))
        mount.is_gone = True
        self._tell(f"unmounts drive {number} for {seconds:.1f} s", "mounts gone")

        def mount_again() -> None:
            mount.is_gone = False

        self.ground.loop.call_later(seconds, mount_again)

    def _kill_at_step(self) -> None:
        point, count = self.chance.choice(_STEPS), self.chance.choice((1, 1, 2))
        fault_points.arm(point, FaultAction.EXIT, count)
        self._tell(f"kills who passes {point}, time {count}", "steps of moves at which one dies")

    def _tell(self, what: str, counted: str) -> None:
        self.ground.story.tell("trouble", what)
        self.ground.story.count(counted)
