"""What befalls queues beside what befalls everything: ledgers that fail, and homes that stay away."""

import asyncio
from collections.abc import Callable

from simulation.queue_programs import LedgerDisk
from simulation.trouble import Trouble


class QueueTrouble(Trouble):
    """The troubles of a run with queues; `kinds` means the same as in others where it can.

    Beside them: `ledgers` that fail; `power` of machines with a disk.
    """

    def _befall(self) -> list[Callable[[], None]]:
        homes = [self._lose_node, self._sleep, self._jam, self._step_valkey]
        if self.kinds in ("clocks", "jams"):
            return homes
        if self.kinds == "ledgers":
            return [self._break_ledger, self._break_ledger, self._kill_soon]
        if self.kinds == "power":
            return [self._lose_power, self._kill_at_file_call, self._break_disk]
        if self.kinds == "losses":
            return [self._lose_node, self._lose_node, self.losses.lose_coordination]
        crashes = [
            self._kill,
            self._kill_soon,
            self._kill_soon,
            self._kill_at_file_call,
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
            self._break_ledger,
            self._break_ledger,
        ]
        if self.kinds == "crashes":
            return crashes
        return [*crashes, *homes, *[self._lose_node] * 3, self.losses.lose_coordination]

    def end(self) -> None:
        """Nothing fails any more."""
        for disk in self._ledger_disks():
            disk.faults.heal()
        super().end()

    def _break_ledger(self) -> None:
        """Rounds fail at their begin or in their COMMIT, which may be there all the same."""
        disk = self.chance.choice(self._ledger_disks())
        faults = disk.faults
        faults.commits = self.chance.choice((0, 1, 1, 2))
        faults.lands = self.chance.random() < 0.5
        faults.reopens = self.chance.choice((0, 0, 1, 3))
        faults.begins = self.chance.choice((0, 0, 1))
        self.ground.story.tell("trouble", f"breaks a ledger: {faults}")
        self.ground.story.count("broken ledgers")

    def _ledger_disks(self) -> list[LedgerDisk]:
        return [one.disk for one in self.programs if isinstance(one.disk, LedgerDisk)]

    def _lose_node(self) -> None:
        """The home of queues does not come back before somebody takes them over."""
        if self.over:
            return
        task = asyncio.get_running_loop().create_task(self.take_over(0))
        self._operating.add(task)
        task.add_done_callback(self._operating.discard)
