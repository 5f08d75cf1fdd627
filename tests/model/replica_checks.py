"""What must hold of nodes with replicas, after each event."""

from itertools import pairwise
from typing import TYPE_CHECKING

from bottomless_server.protocol.replica import Place
from model.replica_nodes import Chunk

if TYPE_CHECKING:
    from model.replicas import Replicas


def check(world: "Replicas") -> None:
    logs = {name: node.disk.chunks for name, node in world.nodes.items()}
    by_place: dict[tuple[int, Place], Chunk] = {}
    for chunks in logs.values():
        for one in chunks:
            same = by_place.setdefault((one.epoch, one.place), one)
            assert same == one, "two logs hold one epoch at one place with other bytes"
        for one, later in pairwise(chunks):
            assert one.next_offset == later.first, "a log has a gap"
    for name in world.record.in_sync:
        node = world.nodes[name]
        lacking = _needed(world) - set(node.disk.chunks[: node.synced])
        if not lacking:
            world.aged.discard(name)
        assert not lacking or name in world.aged, "a node in sync lacks what was shown"
    record = world.record
    bounds = (record.epoch, record.version, record.published_next, record.reserved_next)
    assert all(a <= b for a, b in zip(world.bounds, bounds, strict=True)), "a bound went back"
    world.bounds = bounds
    home_in_sync = record.home in world.record.in_sync
    assert not record.dirty or home_in_sync, "the home is not in sync"
    _check_disks(world)


def _needed(world: "Replicas") -> set[Chunk]:
    published = world.record.published_next
    return {one for one in world.shown.values() if one.next_offset > published}


def _check_disks(world: "Replicas") -> None:
    """What was acknowledged is on as many disks as was asked for."""
    if world.aged or not world.record.dirty or not world.record.in_sync:
        return
    if world.events["a member was named by an operator"]:
        return
    for one in _needed(world):
        holders = sum(one in node.disk.chunks[: node.synced] for node in world.nodes.values())
        assert holders >= world.least_in_sync, "too few disks have what was acknowledged"
