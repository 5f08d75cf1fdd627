"""Read what a committed manifest leads to, for many members of the delete queue at once."""

from collections.abc import Hashable, Mapping
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from bottomless.guards import guard
from bottomless.model.manifest import Node
from bottomless.model.stream import StreamRecord
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.lookup import Found, Sought, entries_of
from bottomless_server.manifest.tree.core.delete_queue import DeleteTarget, is_at, is_copied
from bottomless_server.manifest.tree.resolver import load_root

K = TypeVar("K", bound=Hashable)


class Seen(NamedTuple, Generic[K]):
    """A stream as it was at one moment, and what its manifest says of some members."""

    record: StreamRecord
    root: Node
    entries: Mapping[K, Found]
    """What names fragments and groups as a whole, where they lie or elsewhere."""
    lost: frozenset[int]
    """The drives of the stream that were lost when its manifest had been read."""


async def see(context: Context, record: StreamRecord, members: Mapping[K, DeleteTarget]) -> Seen[K]:
    """Read what the manifest says of members.

    Raises:
        NotFound, Unavailable, Corrupt: of the root.
    """
    record, root = await load_root(context, record)
    sought = {
        key: Sought(max(one.first_offset, root.first_offset), one.uid, one.height)
        for key, one in members.items()
        # A group whose front was cut begins below the floor, and is reached through it.
        if one.first_offset is not None and one.uid is not None and one.range is None
    }
    entries = await entries_of(context.drive, record.tenant, root, sought)
    lost = await context.drive_states.lost(record.drives)
    return Seen(record, root, entries, lost)


@guard("reachability before a delete")
def is_reachable(
    record: StreamRecord, root: Node, target: DeleteTarget, entry: np.void | None
) -> bool:
    """Whether the record, its root, or the way from it leads to any of the target; `entry` is what the
    way leads to, where that could be read."""
    if target.registry_version is not None:
        return target.registry_version == record.registry_version
    if target.uid is None:
        # Of what is left of the copies of a move each one is looked at by itself.
        return False
    if target.copy and any(is_copied(move, target) for move in record.moves):
        return True
    if record.root is not None and record.root.uid == target.uid:
        return True
    if any(target.uid == intent.uid for intent in record.intents):
        return True
    if target.range is not None:
        # Below the floor nothing is reachable, at or above it everything is.
        return target.range.next_offset > root.first_offset
    return entry is not None and is_at(entry, target)
