"""What must hold of nodes with replicas, after each event."""

from itertools import pairwise
from typing import TYPE_CHECKING

from bottomless.model.names import NodeId
from bottomless.model.stream import epoch_at
from bottomless_server.protocol.replica import Place
from model.replica_nodes import Chunk, Node

if TYPE_CHECKING:
    from model.replicas import Replicas


def check(world: "Replicas") -> None:
    by_place: dict[tuple[int, Place], Chunk] = {}
    for node in world.nodes.values():
        for one in node.disk.chunks:
            same = by_place.setdefault((one.epoch, one.place), one)
            assert same == one, "two logs hold one epoch at one place with other bytes"
        for one, later in pairwise(node.disk.chunks):
            assert one.next_offset == later.first, "a log has a gap"
    needed = _needed(world)
    assert world.record.dirty or not needed, "a clean stream lacks what was shown"
    for name in world.record.in_sync:
        node = world.nodes[name]
        lacking = {one for one in needed if not _has(node, one)}
        # Before it was opened anew its owner may count what was lost, and show that.
        if not lacking and (node.owner is not None or node.opened is not None):
            world.aged.discard(name)
        assert not lacking or name in world.aged, "a node in sync lacks what was shown"
    record = world.record
    bounds = (record.epoch, record.version, record.published_next, record.reserved_next)
    assert all(a <= b for a, b in zip(world.bounds, bounds, strict=True)), "a bound went back"
    world.bounds = bounds
    home_in_sync = record.home in world.record.in_sync
    assert not record.dirty or home_in_sync, "the home is not in sync"
    _check_owner(world)
    _check_disks(world, needed)


def _needed(world: "Replicas") -> set[Chunk]:
    """What is shown and not published. A chunk without records says something of producers, which is kept
    until coordination has it of a clean stream."""
    published = world.record.published_next
    return {
        one
        for one in world.shown.values()
        if one.next_offset > published or (one.first == published and one not in world.left)
    }


def _has(node: Node, one: Chunk) -> bool:
    """Whether a chunk is durable on a node; of one without records whose segment was freed, what it says of
    producers, with which the next segment begins."""
    synced = node.disk.chunks[: node.synced]
    if one.first < one.next_offset or one in synced:
        return one in synced
    return bool(synced) and synced[0].begins and synced[0].place > one.place


def _check_owner(world: "Replicas") -> None:
    """Whoever may be in sync is waited for, so none can be admitted whom its owner does not know of."""
    record = world.record
    owner = None if record.home is None else world.nodes[record.home].owner
    if owner is not None and owner.epoch == record.epoch:
        known = owner.holders.counted >= set(record.in_sync)
        assert known, "an owner does not wait for a node in sync"
        for one in world.nodes[NodeId(str(record.home))].disk.chunks:
            # What is uploaded of it has the epoch of its chunks, and is refused under any other.
            if one.next_offset > max(one.first, record.published_next):
                known_epoch = epoch_at(record, max(one.first, record.published_next))
                assert known_epoch == one.epoch, "the record names another epoch than the log has"


def _check_disks(world: "Replicas", needed: set[Chunk]) -> None:
    """What was acknowledged is on as many disks as was asked for."""
    if world.aged or not world.record.dirty or not world.record.in_sync:
        return
    if world.events["a member was named by an operator"]:
        return
    for one in needed:
        holders = sum(_has(node, one) for node in world.nodes.values())
        assert holders >= world.least_in_sync, "too few disks have what was acknowledged"
