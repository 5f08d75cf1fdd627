"""In the end all moves have ended, and nothing lies on any drive that nobody names."""

import asyncio
from typing import Final

from bottomless.formats.keys import FragmentPlace, fragment_place
from bottomless.model.drive import DEFAULT_NUMBER
from bottomless.model.names import TENANT_DEFAULT, StreamId
from bottomless_server.drives.memory import MemoryDrive
from bottomless_server.manifest.removal.expansion import expand
from bottomless_server.manifest.tree.core.delete_queue import parse_delete_target
from bottomless_server.stores.streams import deletes_key
from simulation.clients import LATER
from simulation.drives import of_streams, place_name
from simulation.expected import Broken, Expected
from simulation.neighbour import STREAM_ID
from simulation.run import Simulation
from simulation.tier_clients import verified

_AGE_SECONDS: Final = 15
"""Of what garbage collection takes: the longest time that a put may take here."""
_SECONDS: Final = 90.0


async def see_all_named(simulation: Simulation) -> None:
    """Wait until moves have ended, collect garbage, and look at what is left.

    Raises:
        Broken: a move goes on for ever, or something is left.
    """
    watches = [simulation.watches[one.name] for one in simulation.streams if not one.deleted]
    # While clocks differ nothing is deleted for its age.
    if simulation.ground.valkey_clock.skew_ms < 0:
        # It is set forward: leases end of which nobody knows it.
        simulation.ground.blind()
    simulation.ground.valkey_clock.skew_ms = 0
    for program in simulation.programs:
        program.clock.skew_ms = 0

    def ended() -> bool:
        return not any(record.moves for watch in watches if (record := watch.record()) is not None)

    await simulation.until(ended, "moves to end", _SECONDS)
    # What was put last may be garbage too.
    await asyncio.sleep(_AGE_SECONDS + 1)
    await _collect(simulation)
    end = simulation.loop.now + _SECONDS
    while left := _unnamed(simulation) - await _put_off(simulation):
        if simulation.loop.now > end:
            raise Broken(f"nobody names these, and they stay: {sorted(left)[:4]}")
        await asyncio.sleep(0.2)
    _count(simulation)
    for stream in simulation.streams:
        if not stream.deleted:
            await _see_damage_told(simulation, stream)


async def _see_damage_told(simulation: Simulation, stream: Expected) -> None:
    """A verification with checksums names the one fragment of which a bit is flipped, and nothing else."""
    ground, manifest = simulation.ground, simulation.watches[stream.name].manifest
    assert ground.others is not None
    there = [info for info in manifest.fragments if info.drive not in ground.others.lost]
    if not there:
        return
    info = simulation.chance(f"{stream.name} damage").choice(there)
    mounts = {DEFAULT_NUMBER: ground.drive}
    mounts |= {number: one.mounted for number, one in ground.others.mounts.items()}
    place = fragment_place(StreamId(stream.stream_id), info, TENANT_DEFAULT)
    mounts[place.drive].flip(place.object_key, info.size // 2)
    end = simulation.loop.now + _SECONDS
    while (wrong := await verified(simulation.services, stream, checksums=True)) is None:
        if simulation.loop.now > end:
            raise Broken(f"{stream.name} cannot be verified")
        await asyncio.sleep(0.2)
    told = [(one["kind"], one["first_offset"]) for one in wrong]
    if told != [("fragment-checksum", info.first_offset)]:
        raise Broken(f"{stream.name} is damaged at {info.first_offset}, and it is told {told[:3]}")
    simulation.story.count("fragments damaged and told")


async def _collect(simulation: Simulation) -> None:
    services = simulation.services
    body = {"dry_run": False, "minimum_age": f"{_AGE_SECONDS}s"}
    answer = None
    while answer is None or answer[0] in LATER:
        await asyncio.sleep(0.2)
        answer = await services.ask(services.manifest, "POST", "/v1/admin/gc", body=body)
    if answer[0] != 202:
        raise Broken(f"a collection of garbage was answered {answer}")
    path, end = f"/v1/operations/{answer[1]['operation_id']}", simulation.loop.now + _SECONDS
    while True:
        told = await services.ask(services.manifest, "GET", path)
        if told is not None and told[0] == 200 and told[1]["state"] in ("succeeded", "failed"):
            break
        if simulation.loop.now > end:
            raise Broken(f"garbage is collected for ever: {told}")
        await asyncio.sleep(0.2)
    if told[1]["state"] == "failed" or told[1]["result"].get("skipped_drives"):
        raise Broken(f"a collection of garbage ended so: {told[1]}")


async def _put_off(simulation: Simulation) -> set[str]:
    """What waits to be deleted for as long as a clock was ahead that condemned it."""
    ground = simulation.ground
    if not simulation.story.counts["clocks set ahead"]:
        return set()
    assert ground.others is not None
    drives: dict[int, MemoryDrive] = {DEFAULT_NUMBER: ground.drive}
    drives |= {number: mount.mounted for number, mount in ground.others.mounts.items()}
    found: set[str] = set()
    left = [
        target
        for number in drives
        for member in ground.coordination.peek_queue(deletes_key(number))
        if (target := parse_delete_target(member, number)) is not None
    ]
    while left:
        target = left.pop()
        found.add(place_name(FragmentPlace(target.drive, target.object_key)))
        below = await expand(drives[target.drive], target)
        found.update(below.first)
        left += below.queued
    return found


def _unnamed(simulation: Simulation) -> set[str]:
    """Fragments and copies that nobody names, on any drive."""
    ground = simulation.ground
    named = {key for watch in simulation.watches.values() for key in watch.reachable()}
    fragments = [one for one in of_streams(ground.stored.object_keys) if one.endswith(".fragment")]
    unasked = [str(STREAM_ID)]
    if simulation.story.counts["clocks set ahead"]:
        # The deletion of a stream may have been put off, as long as that.
        unasked += [one.stream_id for one in simulation.streams if one.deleted]
    return {
        one for one in fragments if one not in named and not any(each in one for each in unasked)
    }


def _count(simulation: Simulation) -> None:
    ground = simulation.ground
    assert ground.others is not None
    moved = sum(len(watch.copies - {0}) for watch in simulation.watches.values())
    simulation.story.count("moves done", moved)
    for number, mount in ground.others.mounts.items():
        left = [key for key in mount.mounted.object_keys if not key.startswith("_system/")]
        simulation.story.count("fragments on other drives", len(left))
        waiting = ground.coordination.peek_queue(deletes_key(number))
        simulation.story.count("deletions that wait on other drives", len(waiting))
        simulation.story.count("objects below mounts", len(mount.below.object_keys))
