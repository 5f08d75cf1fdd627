"""Find what is known of the producers and keys of a leaderless stream, in the fragments of its end.

Coordination had it, and lost it. Trailers of chunks say who wrote which append, and a tracking chunk says
everything that was known at the end of its fragment (docs/decisions/0058). So fragments are read, the
newest first, until one has a tracking chunk, for as long as a producer is remembered and up to a bound
in bytes; then what they say is taken in the order of the stream. Nothing is written here.

What is not found is not known: a strict producer hears of it at its next number. Of one that is found
only the appends that were read are known, so an older repeat is refused and never stored once more.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

import numpy as np
import structlog

from bottomless.drives.base import ObjectMissing
from bottomless.errors import Corrupt
from bottomless.formats.chunk import decode_trailer, split_chunks, trailer_of
from bottomless.formats.fragment import HEADER_SIZE, decode_footer
from bottomless.formats.keys import fragment_place
from bottomless.formats.tracking import decode_tracking
from bottomless.guards import guard
from bottomless.model.chunk import (
    AppendEntry,
    ChunkFlags,
    ChunkHeader,
    ChunkKind,
    TrackedEntry,
)
from bottomless.model.fragment import FragmentInfo
from bottomless.model.limits import MIB
from bottomless.model.manifest import EntryKind, Node, fragment_info
from bottomless.model.stream import StreamRecord
from bottomless_server.core.tracking.known_producers import (
    Producer,
    TrackingBounds,
    tracked,
    tracked_key,
)
from bottomless_server.core.tracking.tracking import Tracking
from bottomless_server.leaderless.decided import KnownName, NewKnown
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.tree.core.adoption_check import footer_piece
from bottomless_server.manifest.tree.reachability import load_group
from bottomless_server.stores.read_again import read_again

log = structlog.get_logger(__name__)

_PRODUCER_KEEP_MS: Final = 7 * 86_400_000
"""How long a producer that is silent is remembered by default."""
_KEY_KEEP_MS: Final = 3_600_000
"""How long a key is bound to its request."""
READ_BYTES_MAX: Final = 256 * MIB
"""Bytes of fragments that are read of one stream without a tracking chunk, and the one with which
they are more."""
_BOUNDS: Final = TrackingBounds(
    producer_count_max=100_000, append_count_max=5, key_count_max=1_000_000, keep_ms=_KEY_KEEP_MS
)


class _ChunkSaid(NamedTuple):
    """What one chunk says of producers and keys."""

    header: ChunkHeader
    entries: Sequence[AppendEntry]
    tracked: Sequence[TrackedEntry] | None
    """None of a chunk with records."""


async def find_known(
    context: Context, record: StreamRecord, root: Node
) -> Mapping[KnownName, NewKnown]:
    """What is known of producers and keys at the end of a manifest.

    Raises:
        DriveUnavailable, DriveRefused
    """
    tracking = Tracking(_BOUNDS)
    newest_first = [said async for said in _newest(context, record, root)]
    for said in reversed(newest_first):
        tracking = _take(tracking, said)
    for producer_id, epoch in _epochs_of(newest_first).items():
        if (producer := tracking.producers.get(producer_id)) is not None:
            tracking.producers[producer_id] = not_lowered(producer, epoch)
    known: dict[KnownName, NewKnown] = {}
    for producer_id, producer in tracking.producers.items():
        entries = list(tracked(producer_id, producer))
        name = KnownName(producer_id, is_producer=True)
        known[name] = NewKnown(entries, producer.timestamp + _PRODUCER_KEEP_MS)
    for key_hash, use in tracking.keys.items():
        name = KnownName(key_hash.hex(), is_producer=False)
        known[name] = NewKnown([tracked_key(key_hash, use)], use.timestamp + _KEY_KEEP_MS)
    return known


def _epochs_of(newest_first: Sequence[Sequence[_ChunkSaid]]) -> dict[str, int]:
    """The epochs of which the last tracking chunk knew."""
    tracked_chunks = [one.tracked for said in newest_first for one in said if one.tracked]
    return {
        entry.producer_id: entry.producer_epoch
        for entry in (tracked_chunks[-1] if tracked_chunks else ())
        if entry.producer_id is not None
    }


async def _newest(
    context: Context, record: StreamRecord, root: Node
) -> AsyncIterator[list[_ChunkSaid]]:
    """What the fragments say that are needed, the newest first."""
    size = 0
    async for fragment in _backwards(context, record, root):
        try:
            said = await read_again(partial(_said, context, record, fragment))
        except (Corrupt, ObjectMissing):
            log.exception(
                "nothing is known of who wrote a fragment",
                stream_id=record.stream_id,
                fragment=fragment.fragment_id,
            )
            continue
        yield said
        size += fragment.size
        if size >= READ_BYTES_MAX or any(one.tracked for one in said):
            return


async def _backwards(
    context: Context, record: StreamRecord, root: Node
) -> AsyncIterator[FragmentInfo]:
    """Fragments that are young enough, from the end of the manifest on."""
    oldest = root.last_timestamp - _PRODUCER_KEEP_MS
    pending = [(root, index) for index in range(len(root.entries))]
    while pending:
        node, index = pending.pop()
        entry = node.entries[index]
        if int(entry["last_timestamp"]) < oldest:
            return
        if entry["kind"] == EntryKind.GROUP:
            try:
                below = await load_group(context.drive, record.tenant, node, entry)
            except (Corrupt, ObjectMissing):
                log.exception("a group cannot be read", stream_id=record.stream_id)
                return
            # What a cut has taken off is in the object of its group all the same.
            live = np.flatnonzero(below.entries["next_offset"] > np.uint64(root.first_offset))
            pending += [(below, int(place)) for place in live]
        elif entry["kind"] == EntryKind.FRAGMENT:
            yield fragment_info(entry)


async def _said(context: Context, record: StreamRecord, fragment: FragmentInfo) -> list[_ChunkSaid]:
    place = fragment_place(record.stream_id, fragment, record.tenant)
    data = memoryview(await context.drives.of(place.drive).get(place.object_key))
    footer = footer_piece(len(data))
    end = decode_footer(data[footer.start :]).filters_position
    said = []
    for header, chunk in split_chunks(data[HEADER_SIZE:end]):
        trailer = trailer_of(header, chunk)
        if header.kind is ChunkKind.TRACKING:
            said.append(_ChunkSaid(header, (), decode_tracking(trailer)))
        else:
            said.append(_ChunkSaid(header, decode_trailer(trailer), None))
    return said


def _take(tracking: Tracking, said: Sequence[_ChunkSaid]) -> Tracking:
    for header, entries, entries_tracked in said:
        if entries_tracked is not None:
            # It says everything.
            tracking = Tracking(_BOUNDS)
            tracking.take_tracked(entries_tracked)
        else:
            more_follows = ChunkFlags.MORE_FOLLOWS in header.flags
            tracking.take_chunk(
                header.first_offset, header.timestamp, entries, more_follows=more_follows
            )
    return tracking


@guard("the epoch of a producer, which nothing that is restored lowers")
def not_lowered(producer: Producer, epoch: int) -> Producer:
    """A producer in the epoch that a tracking chunk knew of, if that is above its own. It was raised
    after appends which follow the chunk in the stream: those count, and are of an earlier run."""
    if producer.epoch >= epoch:
        return producer
    begins = 0 if producer.last_sequence is None else producer.last_sequence + 1
    return replace(producer, epoch=epoch, epoch_sequence=begins)
