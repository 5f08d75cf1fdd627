"""A disk that is gone for good, of a node that holds streams together with others."""

from dataclasses import dataclass
from random import Random
from typing import Final

from bottomless_server.ingest.service import IngestService
from simulation.losses import LOSSES_MAX, Losses
from simulation.programs import Ground, Program
from simulation.replica_watch import ReplicaWatch

DISKS_MAX: Final = 3
"""Lost in one run."""


@dataclass
class LostDisks:
    """Loses the disk of a node with the node, if others have all that counts."""

    ground: Ground
    losses: Losses
    chance: Random
    lost_count: int = 0

    def lose(self) -> None:
        """Lose the disk of any node; nothing where that may cost something, or enough were lost."""
        program = self.chance.choice(self.losses.services.nodes)
        if self.lost_count >= DISKS_MAX or self.losses.busy or self.losses.coordination_is_lost:
            return
        if self.losses.over or not self._may_go(program):
            return
        self.lost_count += 1
        # A rebuild knows the homes alone, and one of them may be gone now.
        self.losses.lost_count = LOSSES_MAX
        program.kill()
        assert program.disk is not None
        program.disk.lose_all()
        for watch in self._watches():
            watch.note_lost_disk(program)
        self.ground.story.tell("trouble", f"loses the disk: {program.name}")
        self.ground.story.count("disks lost")

    def _may_go(self, program: Program) -> bool:
        """Whether others have all that counts: so says the record of each stream, or that it is clean."""
        service = program.service
        if not isinstance(service, IngestService) or not service.started:
            return False
        node = service.lease.node.node_id
        return all(watch.lies_elsewhere(node) for watch in self._watches())

    def _watches(self) -> list[ReplicaWatch]:
        return [one for one in self.losses.watches.values() if isinstance(one, ReplicaWatch)]
