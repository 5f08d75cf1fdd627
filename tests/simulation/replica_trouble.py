"""What befalls nodes that hold streams together: a disk is gone for good, or one does not reach the others."""

from dataclasses import dataclass
from random import Random
from typing import Final

from bottomless_server.ingest.service import IngestService
from simulation.losses import LOSSES_MAX, Losses
from simulation.programs import Ground, Program
from simulation.replica_watch import ReplicaWatch

DISKS_MAX: Final = 3
"""Lost in one run."""
_WAIT_SECONDS: Final = (0.1, 0.9)
"""An owner waits for a second before it evicts who says nothing."""
_AWAY_SECONDS: Final = (3.5, 6.0)
_CUT_SECONDS: Final = (4.0, 8.0)


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


@dataclass
class CutOffs:
    """Cuts one node off from the others, and kills the owner while it waits for that one.

    What the owner sent last is on two disks then, and the next owner may be on either side.
    """

    ground: Ground
    losses: Losses
    chance: Random
    _over_at: float = 0.0

    def cut(self) -> None:
        """Cut a node off, and kill an owner soon; nothing while the last ones are still apart."""
        loop, nodes = self.ground.loop, self.losses.services.nodes
        owner = self._an_owner()
        if owner is None or self.losses.over or loop.now < self._over_at:
            return
        seconds = self.chance.uniform(*_CUT_SECONDS)
        self._over_at = loop.now + seconds
        cut = self.chance.choice([one for one in nodes if one is not owner])
        pairs = {frozenset((cut.name, one.name)) for one in nodes if one is not cut}
        self.ground.network.apart |= pairs
        loop.call_later(seconds, self.ground.network.apart.difference_update, pairs)
        self.ground.story.tell("trouble", f"cuts {cut.name} off for {seconds:.1f} s")
        self.ground.story.count("nodes cut off from the others")
        loop.call_later(self.chance.uniform(*_WAIT_SECONDS), self._kill, owner)

    def _an_owner(self) -> Program | None:
        records = [one.record() for one in self.losses.watches.values()]
        urls = {one.owner_url for one in records if one is not None and len(one.in_sync) > 1}
        found = [one for one in self.losses.services.nodes if one.alive and one.url in urls]
        return self.chance.choice(found) if found else None

    def _kill(self, owner: Program) -> None:
        """It stays away for longer than its lease, so that another one goes on."""
        if self.losses.over:
            return
        self.ground.story.tell("trouble", f"kills who waits for that one: {owner.name}")
        owner.wanted = False
        owner.kill()

        def wanted_again() -> None:
            owner.wanted = True

        self.ground.loop.call_later(self.chance.uniform(*_AWAY_SECONDS), wanted_again)
