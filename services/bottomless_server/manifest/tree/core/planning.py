"""Work a publication out: the root to be, the groups below it, the change of the record.

A plan is made once and tried as often as it takes, under the same uids, so that an
attempt whose reply was lost is recognised. Pure: the keeper decides when.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bottomless.formats.checks import crc32c
from bottomless.formats.manifest import encode_node
from bottomless.guards import guard
from bottomless.model.fragment import FragmentInfo
from bottomless.model.manifest import (
    ENTRY_DTYPE,
    Entries,
    EntryKind,
    GapReason,
    Node,
    no_entries,
)
from bottomless.model.names import Uid
from bottomless.model.stream import RootPointer, StreamRecord
from bottomless_server.manifest.tree.core.events import (
    AcceptGap,
    Action,
    CutFront,
    Edit,
    Empty,
    LoseDrive,
    Publish,
    PutGroup,
    PutRoot,
    Relocate,
    TakeOver,
)
from bottomless_server.tree.append import append_entries, append_fragments
from bottomless_server.tree.rebalance import SealedNode, rebalance
from bottomless_server.tree.retention import Edited, Retired, cut_front, emptied


@dataclass(frozen=True, slots=True)
class PublishPlan:
    """A publication worked out: its uids stay the same however often it is tried."""

    root: Node
    run: tuple[FragmentInfo, ...]
    publish: Publish
    actions: tuple[Action, ...]


def plan_publish(
    record: StreamRecord,
    root: Node,
    run: Sequence[FragmentInfo],
    edit: Edit | None,
    fanout: int,
    new_uid: Callable[[], Uid],
) -> PublishPlan:
    """Plan one publish: the edit, then the run at the end, then groups where a height is full."""
    edited = _edited(record, root, edit)
    grown = edited.root
    if run:
        grown = append_fragments(grown, run)
    grown = replace(
        grown,
        uid=new_uid(),
        # Never one that the record does not have yet: see takeovers.py.
        epoch=record.epoch,
        version=record.version + 1,
        generation=record.generation,
    )
    planned, groups = rebalance(grown, fanout, new_uid, seal_node)
    sealed = seal_node(planned)
    # Below what is put for the fanout: a new group may have one of them in it.
    groups = (*_made_anew(edit), *groups)
    publish = Publish(
        base=record,
        pointer=_pointer(sealed),
        next_offset=planned.next_offset,
        last_timestamp=planned.last_timestamp,
        uids=frozenset(fragment.uid for fragment in run),
        edit=edit,
        retired=edited.retired,
    )
    actions: tuple[Action, ...] = (*(PutGroup(group) for group in groups), PutRoot(sealed), publish)
    return PublishPlan(planned, tuple(run), publish, actions)


def _edited(record: StreamRecord, root: Node, edit: Edit | None) -> Edited:
    match edit:
        case CutFront(cut):
            return cut_front(root, cut)
        case Empty():
            return emptied(root)
        case TakeOver(next_offset):
            # Of the fence's epoch, which is how a rebuild knows that the fence was there before.
            gap = gap_at_end(root, next_offset, record.epoch, GapReason.TAKEOVER)
            return Edited(append_entries(root, gap))
        case AcceptGap(next_offset, reason):
            gap = gap_at_end(root, next_offset, record.epoch, reason)
            return Edited(append_entries(root, gap))
        case Relocate(_, relocated):
            return Edited(relocated.root, _cut_anew(root, relocated.root))
        case LoseDrive(lost):
            return Edited(lost.root, _cut_anew(root, lost.root))
        case _:
            return Edited(root)


def _made_anew(edit: Edit | None) -> tuple[SealedNode, ...]:
    match edit:
        case Relocate(_, relocated):
            return relocated.groups
        case LoseDrive(lost):
            return lost.groups
        case _:
            return ()


def _cut_anew(root: Node, relocated: Node) -> tuple[Retired, ...]:
    """What is below the floor in a group that was made anew: it was queued by the name of the old
    group, which may be gone before that is done. What is gone already goes once more, harmlessly."""
    old, new = root.entries[:1], relocated.entries[:1]
    if len(old) == 0 or not is_cut(old[0], root.first_offset) or old["uid"][0] == new["uid"][0]:
        return ()
    return (Retired(new[0], int(new["first_offset"][0]), root.first_offset),)


@guard("the cut of a group that is made anew")
def is_cut(entry: np.void, floor: int) -> bool:
    """Whether the front of what an entry says is below the floor."""
    return int(entry["first_offset"]) < floor


def gap_at_end(root: Node, next_offset: int, epoch: int, reason: GapReason) -> Entries:
    """The entry of a gap from the end of the manifest to `next_offset`; times stay in order around it."""
    if next_offset <= root.next_offset:
        return no_entries()
    gap = np.zeros(1, dtype=ENTRY_DTYPE)
    gap["first_offset"], gap["next_offset"] = root.next_offset, next_offset
    gap["first_timestamp"] = gap["last_timestamp"] = root.last_timestamp
    gap["first_epoch"] = gap["last_epoch"] = epoch
    gap["kind"], gap["reason"] = EntryKind.GAP, reason
    return gap


def _pointer(root: SealedNode) -> RootPointer:
    node = root.node
    return RootPointer(
        uid=node.uid,
        generation=node.generation,
        epoch=node.epoch,
        version=node.version,
        size=len(root.data),
        crc=root.crc,
    )


def seal_node(node: Node) -> SealedNode:
    """Encode a node, with the checksum that its entry above says."""
    data = encode_node(node)
    return SealedNode(node, data, crc32c(data))
