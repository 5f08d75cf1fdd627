"""Streams whose fragments move between three drives, in a storm, with all clients of other runs.

The policy is evaluated by the manifest's own timer, and moves are made by the uploader's own mover, both
set so that they look every second. Beside them clients move fragments to and fro by hand.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from bottomless.model.drive import DEFAULT_NAME
from bottomless_server.manifest.common import held_moves
from bottomless_server.uploader import moves
from simulation.drive_losses import DriveLosses
from simulation.drives import OtherDrives, drive_name
from simulation.programs import true_ms
from simulation.replica_storm import replicas_in_a_storm
from simulation.run import Simulation
from simulation.tier_clients import TierOperator
from simulation.tier_rest import see_all_named
from simulation.tier_trouble import DriveTrouble

DRIVE_COUNT: Final = 2
"""Beside drive 0."""
TIER_COUNTS: Final = (2, 3)
SETTINGS: Final = {
    "manifest": {"manifest_tier_interval_ms": 1_000, "manifest_promote_keep_ms": 3_000},
    "uploader": {"uploader_move_interval_ms": 700},
}
_CALM_COUNT: Final = 10
_TAKE_OVER_MS: Final = 5_000
_RENEW_SECONDS: Final = 1.2
"""A quarter of that, as in the product."""


async def two_tiers_in_a_storm(simulation: Simulation) -> None:
    """Let fragments move between drives through all that befalls programs and drives.

    Raises:
        Broken: a record is lost, altered or doubled, or something that is named is not on its drive; in the
            end, something lies on a drive that nobody names.
    """
    with tiers(simulation, 2):
        await lay(simulation)


async def three_tiers_in_a_storm(simulation: Simulation) -> None:
    """The same with as many tiers as there are drives."""
    with tiers(simulation, 3):
        await lay(simulation)


async def lay(simulation: Simulation) -> None:
    await register(simulation)
    await simulation.run()


async def replicas_and_two_tiers_in_a_storm(simulation: Simulation) -> None:
    """The same of streams that three nodes hold."""
    with tiers(simulation, 2):
        await register(simulation)
        await replicas_in_a_storm(simulation)


async def register(simulation: Simulation) -> None:
    others = simulation.ground.others
    assert others is not None
    await others.register(simulation.ground.drive)


@contextmanager
def tiers(simulation: Simulation, count: int) -> Iterator[None]:
    """Give the streams of a run policies of so many tiers."""
    ground = simulation.ground
    ground.others = others = OtherDrives(ground.weather, lambda: true_ms(ground.loop), DRIVE_COUNT)
    ground.settings |= SETTINGS
    drives = [DEFAULT_NAME, *map(drive_name, others.mounts)]

    def configure(config: dict[str, Any], chance: random.Random) -> None:
        config["tiers"] = policy(drives, count, chance)

    simulation.configure = configure
    simulation.also.append(
        lambda stream: TierOperator(
            simulation.services,
            stream,
            simulation.watches[stream.name],
            simulation.chance(f"{stream.name} tiers"),
            lambda chance: policy(drives, count, chance),
            drives,
            others.lost,
        )
    )
    losses = DriveLosses(simulation, simulation.chance("lost drives"))
    simulation.last.append(losses.see_done)
    simulation.last.append(lambda: see_all_named(simulation))
    trouble = DriveTrouble(ground, simulation.chance("drives"))
    simulation.trouble.also += trouble.befall()
    simulation.trouble.only["moves"] = trouble.befall()
    simulation.trouble.also.append(losses.lose)
    # Mostly nothing: fragments have to come to a drive before it is missed.
    calm = [lambda: None] * _CALM_COUNT
    simulation.trouble.only["drives"] = [*trouble.befall(), *[losses.lose] * 2, *calm]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(held_moves, "TAKE_OVER_MS", _TAKE_OVER_MS)
        patch.setattr(moves, "TAKE_OVER_SECONDS", _TAKE_OVER_MS / 1000)
        defaults = moves.Moves.__init__.__kwdefaults__
        assert defaults is not None
        patch.setitem(defaults, "renew_seconds", _RENEW_SECONDS)
        yield


def policy(drives: list[str], count: int, chance: random.Random) -> list[dict[str, Any]]:
    """A policy of so many tiers on any of the drives."""
    chosen = chance.sample(drives, count)
    made: list[dict[str, Any]] = []
    for drive in chosen[:-1]:
        limit = chance.choice(
            ({"max_bytes": 3_000}, {"max_bytes": 30_000}, {"max_age": "1s"}, {"max_age": "4s"})
        )
        made.append({"drive": drive, **limit})
    return [*made, {"drive": chosen[-1]}]
