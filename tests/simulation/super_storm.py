"""A super stream with its producers, while it grows, and a group that shares its partitions."""

import asyncio
from typing import Any, Final

from bottomless_server.runtime.base import fault_points
from bottomless_server.runtime.base.fault_points import FaultAction
from simulation.expected import Broken, Expected
from simulation.invariants import Watch
from simulation.members import GroupWatch, Shared, members_of, see_it_is_held
from simulation.replica_watch import ReplicaWatch
from simulation.run import REBUILD_SECONDS, Simulation
from simulation.super_expected import SuperExpected, SuperWatch
from simulation.super_producers import Grower, PlainSuperWriter, SuperProducer

_NAME: Final = "events"
_PRODUCER_COUNT: Final = 3
_PLAIN_COUNT: Final = 2
_STEPS: Final = (
    "ingest.super.after-begin",
    "ingest.super.after-part",
    "ingest.super.after-part",
    "ingest.super.before-complete",
    "manifest.super-growth.after-exec",
    "manifest.super-growth.after-owners",
    "manifest.super-growth.after-second-exec",
)
"""Whoever passes one of these dies there."""


async def a_super_stream_in_a_storm(simulation: Simulation) -> None:
    """Let a super stream live through all troubles, then read all of it.

    Raises:
        Broken: a record is there twice or not at all, or in the wrong partition or order; or what is
            wrong with the group.
    """
    for program in simulation.programs:
        program.start()
    keeping = asyncio.create_task(simulation.trouble.keep_running())
    await simulation.until(lambda: all(one.started for one in simulation.programs), "a start")
    expected, watch = await _create(simulation)
    services, ground = simulation.services, simulation.ground

    def look() -> None:
        watch.look()
        for stream in expected.streams:
            simulation.watches[stream.name].look()

    path = f"/v1/super-streams/{_NAME}"
    shared = Shared(expected.super_id, path, expected.streams, simulation.watches)
    group = GroupWatch(ground, shared, look)
    ground.coordination.on_write = group.look
    members = members_of(group, simulation)
    works: list[Any] = [
        *(
            SuperProducer(services, expected, name, simulation.chance(name))
            for name in (f"p{number}" for number in range(_PRODUCER_COUNT))
        ),
        *(
            PlainSuperWriter(services, expected, name, simulation.chance(name))
            for name in (f"plain{number}" for number in range(_PLAIN_COUNT))
        ),
        Grower(services, expected, "grower", simulation.chance("grower")),
    ]
    tasks = [asyncio.create_task(work.run()) for work in works]
    sharing = [asyncio.create_task(member.run()) for member in members]
    troubling = asyncio.create_task(simulation.trouble.run())
    dying = asyncio.create_task(_let_die_at_steps(simulation))
    for task in (keeping, troubling, dying, *tasks, *sharing):
        task.add_done_callback(simulation.note_end)
    await asyncio.sleep(simulation.storm_seconds)
    simulation.trouble.end()
    for member in members:
        member.calm = True
    await simulation.until(lambda: not simulation.losses.busy, "an operator", REBUILD_SECONDS)
    await asyncio.wait({troubling}, timeout=simulation.quiet_seconds)
    expected.over = True
    await simulation.until(lambda: watch.is_active, "the end of a growth", REBUILD_SECONDS)
    await simulation.all_done(tasks)
    await see_it_is_held(simulation, group)
    services.closing = True
    await simulation.all_done(sharing)
    await simulation.read_all()
    expected.check()
    services.story.count("changes of the holder", group.moves)
    services.story.count("partitions of a super stream", len(expected.streams))
    keeping.cancel()


async def _let_die_at_steps(simulation: Simulation) -> None:
    """Some program dies in the middle of a request or of a growth, again and again."""
    chance = simulation.chance("steps")
    while True:
        await asyncio.sleep(chance.uniform(1, 6))
        if simulation.trouble.over:
            return
        point = chance.choice(_STEPS)
        fault_points.arm(point, FaultAction.EXIT, chance.choice((1, 2, 5)))
        simulation.story.tell("steps", f"lets who passes {point} die")
        simulation.story.count("steps at which somebody dies")


async def _create(simulation: Simulation) -> tuple[SuperExpected, SuperWatch]:
    chance = simulation.chance("config")
    config: dict[str, Any] = {
        "partitions": chance.choice((2, 3)),
        "fragment": {"target_bytes": 65_536, "max_age_ms": chance.choice((100, 500, 2000))},
        "retention": {"max_age": "20h"},
    }
    if simulation.replicas > 1:
        config["replication"] = {"replicas": simulation.replicas}
    path = f"/v1/super-streams/{_NAME}"
    answer = await simulation.services.ask(simulation.manifest, "PUT", path, body=config)
    if answer is None or answer[0] != 201:
        raise Broken(f"a super stream was not created: {answer}")
    expected = SuperExpected(_NAME, answer[1]["super_id"])
    ground = simulation.ground

    def enter(stream: Expected) -> None:
        simulation.streams.append(stream)
        simulation.watches[stream.name] = (
            ReplicaWatch(stream, ground, simulation.nodes)
            if simulation.replicas > 1
            else Watch(stream, ground.coordination, ground.drive, simulation.nodes)
        )

    watch = SuperWatch(expected, ground, enter)
    watch.look()
    return expected, watch
