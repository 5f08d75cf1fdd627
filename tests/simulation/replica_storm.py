"""Three ingest nodes, each of which holds every stream, in a storm, with all clients of other runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from bottomless_server.ingest.replicas import node_peers
from simulation.loop import PROCESS
from simulation.network import Network, SimulatedPeer
from simulation.programs import ingest_program
from simulation.replica_trouble import CutOffs, LostDisks
from simulation.run import Course, Simulation
from simulation.super_storm import a_super_stream_in_a_storm

REPLICA_COUNT: Final = 3
REPLACE_MS: Final = 4_000
"""After so long without a lease another node takes the part of a member."""


async def replicas_in_a_storm(simulation: Simulation, course: Course = Simulation.run) -> None:
    """Let streams with replicas live through all that befalls nodes, disks and the ways between them.

    Disks may be gone for good, one after the other: the node that comes back in the place of one that
    is takes its part.

    Raises:
        Broken: a record is lost, altered, doubled, or shown before all have it that are in sync.
    """
    simulation.replicas = REPLICA_COUNT
    disks = LostDisks(simulation.ground, simulation.losses, simulation.chance("disks"))
    simulation.trouble.also.append(disks.lose)
    simulation.trouble.only["disks"] = [disks.lose]
    cuts = CutOffs(simulation.ground, simulation.losses, simulation.chance("cuts"))
    simulation.trouble.also.append(cuts.cut)
    simulation.trouble.only["cuts"] = [cuts.cut] * 4
    simulation.ground.stages_objects = True
    simulation.ground.settings["ingest"] = {"ingest_replica_replace_ms": REPLACE_MS}
    third = ingest_program(simulation.ground, "ingest-c")
    simulation.nodes.append(third)
    simulation.programs.append(third)
    with ways_over(simulation.ground.network):
        await course(simulation)


async def a_super_stream_on_replicas_in_a_storm(simulation: Simulation) -> None:
    """Let a super stream live through the same, whose partitions three nodes hold.

    Raises:
        Broken: as of a super stream, and of replicas.
    """
    await replicas_in_a_storm(simulation, a_super_stream_in_a_storm)


@contextmanager
def ways_over(network: Network) -> Iterator[None]:
    """Let nodes reach each other over the simulated network."""

    def peer(url: str, *, name: str, secret: str | None) -> SimulatedPeer:
        assert secret is None
        process = PROCESS.get()
        assert process is not None
        return SimulatedPeer(network, process.name, url, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_peers, "Peer", peer)
        yield
