"""Check the tail of a leaderless stream: its index, and the WAL objects that it names.

It is the last part of a verification, after the tree. Each step looks at a page of entries, from where
the last one ended; a prune or an append in between is no fault. What is found is looked at once more:
an entry that is pruned meanwhile may have lost its object by right. Nothing is changed.

- the index: entries follow each other, from the end of what is pruned to the end of the stream
- objects: each is there, and holds what the entry says; with `checksums`, all pieces are read
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from bottomless.drives.base import ObjectMissing
from bottomless.errors import Corrupt
from bottomless.formats.keys import wal_key
from bottomless.formats.placing import place
from bottomless.model.stream import StreamRecord
from bottomless_server.leaderless.tail import Tail, TailEntry
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.leaderless.tail_facts import tail_of
from bottomless_server.stores.tail_keys import entries_from

PAGE_COUNT: Final = 256
"""Entries of one step."""


class TailFault(NamedTuple):
    """Something that is not as it should be, in a range of offsets."""

    kind: str
    first_offset: int
    next_offset: int


class TailPage(NamedTuple):
    """What one step has looked at."""

    entry_count: int
    next_offset: int
    """Where the next step goes on."""
    faults: list[TailFault]
    more: bool


async def check_tail_page(
    context: Context, record: StreamRecord, position: int, *, checksums: bool
) -> TailPage:
    """Look at a page of entries from `position` on.

    Raises:
        Unavailable: `coordination-regressed`, or not now.
        DriveUnavailable, DriveRefused
    """
    try:
        tail = await tail_of(context, record)
        if tail is None:
            return TailPage(0, position, [TailFault("tail-missing", position, position + 1)], False)
        position = max(position, tail.pruned_next)
        entries = await entries_from(context.coordination, record.stream_id, position, PAGE_COUNT)
    except Corrupt:
        return TailPage(0, position, [TailFault("tail-corrupt", position, position + 1)], False)
    more = len(entries) == PAGE_COUNT
    faults = _holes(tail, entries, position, more=more)
    sizes: dict[str, int | None] = {}
    for entry in entries:
        kind = await _fault_of(context, tail, entry, sizes, checksums=checksums)
        if kind is not None:
            faults.append(TailFault(kind, entry.first_offset, entry.next_offset))
    end = entries[-1].next_offset if entries else tail.next_offset
    return TailPage(len(entries), end, await _lasting(context, record, faults), more)


def _holes(
    tail: Tail, entries: Sequence[TailEntry], position: int, *, more: bool
) -> list[TailFault]:
    found = []
    for entry in entries:
        if entry.first_offset > position:
            found.append(TailFault("tail-hole", position, entry.first_offset))
        position = entry.next_offset
    if not more and position < tail.next_offset:
        found.append(TailFault("tail-hole", position, tail.next_offset))
    return found


async def _fault_of(
    context: Context,
    tail: Tail,
    entry: TailEntry,
    sizes: dict[str, int | None],
    *,
    checksums: bool,
) -> str | None:
    object_key = wal_key(entry.instance, entry.sequence)
    try:
        if not checksums:
            if object_key not in sizes:
                sizes[object_key] = (await context.drive.head(object_key)).size
            whole = (sizes[object_key] or 0) >= entry.position + entry.size
            return None if whole else "wal-size"
        place(
            await context.drive.get(object_key, entry.position, entry.size),
            first_offset=entry.first_offset,
            record_count=entry.record_count,
            timestamp=entry.timestamp,
            epoch=tail.epoch,
        )
    except ObjectMissing:
        return "wal-missing"
    except Corrupt:
        return "wal-checksum"
    return None


async def _lasting(
    context: Context, record: StreamRecord, faults: Sequence[TailFault]
) -> list[TailFault]:
    """Leave out faults of what is not readable any more: it was compacted meanwhile."""
    if not faults:
        return []
    tail = await tail_of(context, record)
    if tail is None:
        return []
    return [fault for fault in faults if fault.next_offset > tail.pruned_next]
