"""Decide how each stream leaves a node that is emptied, and tell how far that has come.

A stream whose owner the node is is given to another one that has everything. Where none has, since one
node is to hold it, another is taken in first, as for a replacement; it lets this one go once it owns the
stream, since its configuration wants one. Where the node is a member it is replaced.

How far it has come stands in the progress of the operation. All streams are gone through again and again,
so it is counted anew in each pass; what is shown is that of the last whole pass, and in the first one
what was found so far.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

from bottomless.errors import Code, Fenced
from bottomless.model.names import TENANT_DEFAULT, NodeId
from bottomless.model.stream import StreamRecord
from bottomless_server.node.core.failover import heirs

NAMED_COUNT_MAX: Final = 20
"""Streams that the progress names, with why each is still there."""

CATCHING_UP: Final = "another node takes its place there, and does not have everything yet"
OWNER_AWAY: Final = "the node that owns it does not live"
HEIR_GOES_ON: Final = "the node that owns it does not live; another one goes on with it by itself"
ALONE_AND_AWAY: Final = "its newest records are on this node alone, which does not live"
NOBODY_HAS_IT: Final = "no other node that lives has everything that it holds"
NO_NODE: Final = "no other node lives that could hold it: start one"
LEAVING: Final = "it was given to another node, which lets this one go next"
"""Why a stream is still on the node: sentences for people, after the name of the stream."""


class Move(NamedTuple):
    """What is asked of the owner of a stream."""

    gives: bool
    """Whether the stream is given to the node; otherwise that node is to be replaced."""
    node: NodeId


def leaves(
    record: StreamRecord, node: NodeId, free: Collection[NodeId], live: Collection[NodeId]
) -> Move | str:
    """What has a stream leave a node that holds it, or why nothing can.

    `free` are the nodes that streams may be put on, without the one that is emptied; `live` are all that
    have a lease.
    """
    if record.home == node:
        targets = [one for one in heirs(record) if one in free]
        if node not in live:
            return HEIR_GOES_ON if targets else ALONE_AND_AWAY
        if targets:
            return Move(True, targets[0])
        if record.config.replication.replicas > 1:
            return NOBODY_HAS_IT
        return Move(False, node) if free else NO_NODE
    if record.home not in live:
        return OWNER_AWAY
    if (
        set(free) <= set(record.members)
        and len(record.members) <= record.config.replication.replicas
    ):
        return NO_NODE
    return Move(False, node)


def reason_of(move: Move | str) -> str:
    """Why a stream is still there of which this was found, or asked for."""
    if isinstance(move, str):
        return move
    return LEAVING if move.gives else CATCHING_UP


def is_held_by(record: StreamRecord, node: NodeId) -> bool:
    """Whether a node has to do with what of a stream is not in object storage."""
    return record.dirty and (record.home == node or node in record.members)


def note_left(progress: dict[str, Any], record: StreamRecord, why: str) -> None:
    """Note that a stream is still on the node in this pass."""
    count = int(progress.get("_left", 0)) + 1
    named = progress.get("_named", [])
    if len(named) < NAMED_COUNT_MAX:
        name = record.name if record.tenant == TENANT_DEFAULT else f"{record.tenant}/{record.name}"
        named = [*named, {"stream": name, "why": why}]
    progress |= {"_left": count, "_named": named}
    if not progress.get("_passes"):
        progress |= {"held": count, "left": count, "remaining": named}


def end_pass(progress: Mapping[str, Any]) -> dict[str, Any]:
    """What is shown after the last stream of a pass, and is the beginning of the next one."""
    left = int(progress.get("_left", 0))
    return {
        **progress,
        "held": max(int(progress["held"]), left),
        "left": left,
        "remaining": progress.get("_named", []),
        "_after": "",
        "_left": 0,
        "_named": [],
        "_passes": int(progress.get("_passes", 0)) + 1,
    }


def not_emptied(progress: Mapping[str, Any]) -> Fenced:
    """Streams are left though they had long enough to leave."""
    left = int(progress["left"])
    streams = "1 stream is" if left == 1 else f"{left} streams are"
    return Fenced(
        f"{streams} still on the node; `remaining` in the progress of the operation says which and why. "
        "Repeat it when that is mended: it goes on with what is left",
        code=Code.NOT_IN_SYNC,
        retry_after_seconds=5,
    )
