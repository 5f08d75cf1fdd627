"""Find what is known of the producers and keys of a leaderless stream, in the fragments of its end.

Coordination had it, and lost it. Trailers of chunks say who wrote which append, and tracking chunks what
changed without one. They are read from the fragments that a rebuild has made of WAL objects, and from
those before them, the newest first, for as long as a producer is remembered and up to a bound in bytes;
then they are taken in the order of the stream. Nothing is written here.

What is not found is not known: a strict producer hears of it at its next number. Of one that is found
only the appends that were read are known, so an older repeat is refused and never stored once more.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
import structlog

from bottomless.drives.base import ObjectMissing
from bottomless.errors import Corrupt
from bottomless.formats.chunk import decode_trailer, split_chunks, trailer_of
from bottomless.formats.fragment import HEADER_SIZE, decode_footer
from bottomless.formats.keys import fragment_key
from bottomless.formats.tracking import decode_tracking
from bottomless.model.chunk import ChunkFlags, ChunkKind
from bottomless.model.fragment import FragmentInfo
from bottomless.model.limits import MIB
from bottomless.model.manifest import EntryKind, Node, fragment_info
from bottomless.model.stream import StreamRecord
from bottomless_server.core.tracking.known_producers import (
    TrackingBounds,
    tracked,
    tracked_key,
)
from bottomless_server.core.tracking.tracking import Tracking
from bottomless_server.leaderless.decided import KnownName, NewKnown
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.tree.core.adoption_check import footer_piece
from bottomless_server.manifest.tree.reachability import load_group

log = structlog.get_logger(__name__)

_PRODUCER_KEEP_MS: Final = 7 * 86_400_000
"""How long a producer that is silent is remembered by default."""
_KEY_KEEP_MS: Final = 3_600_000
"""How long a key is bound to its request."""
READ_BYTES_MAX: Final = 256 * MIB
"""Bytes of fragments that are read of one stream, and the one with which they are more."""
_BOUNDS: Final = TrackingBounds(
    producer_count_max=100_000, append_count_max=5, key_count_max=1_000_000, keep_ms=_KEY_KEEP_MS
)


async def find_known(
    context: Context, record: StreamRecord, root: Node
) -> Mapping[KnownName, NewKnown]:
    """What is known of producers and keys at the end of a manifest.

    Raises:
        DriveUnavailable, DriveRefused
    """
    tracking = Tracking(_BOUNDS)
    for fragment in reversed(await _newest(context, record, root)):
        try:
            await _take(context, record, fragment, tracking)
        except (Corrupt, ObjectMissing):
            log.exception(
                "nothing is known of who wrote a fragment",
                stream_id=record.stream_id,
                fragment=fragment.fragment_id,
            )
    known: dict[KnownName, NewKnown] = {}
    for producer_id, producer in tracking.producers.items():
        entries = list(tracked(producer_id, producer))
        name = KnownName(producer_id, is_producer=True)
        known[name] = NewKnown(entries, producer.timestamp + _PRODUCER_KEEP_MS)
    for key_hash, use in tracking.keys.items():
        name = KnownName(key_hash.hex(), is_producer=False)
        known[name] = NewKnown([tracked_key(key_hash, use)], use.timestamp + _KEY_KEEP_MS)
    return known


async def _newest(context: Context, record: StreamRecord, root: Node) -> list[FragmentInfo]:
    """The fragments that are read, the newest first."""
    oldest = root.last_timestamp - _PRODUCER_KEEP_MS
    found: list[FragmentInfo] = []
    size = 0
    pending = [(root, index) for index in range(len(root.entries))]
    while pending and size < READ_BYTES_MAX:
        node, index = pending.pop()
        entry = node.entries[index]
        if int(entry["last_timestamp"]) < oldest:
            break
        if entry["kind"] == EntryKind.GROUP:
            try:
                below = await load_group(context.drive, record.tenant, node, entry)
            except (Corrupt, ObjectMissing):
                log.exception("a group cannot be read", stream_id=record.stream_id)
                break
            # What a cut has taken off is in the object of its group all the same.
            live = np.flatnonzero(below.entries["next_offset"] > np.uint64(root.first_offset))
            pending += [(below, int(place)) for place in live]
        elif entry["kind"] == EntryKind.FRAGMENT:
            found.append(fragment_info(entry))
            size += found[-1].size
    return found


async def _take(
    context: Context, record: StreamRecord, fragment: FragmentInfo, tracking: Tracking
) -> None:
    key = fragment_key(record.stream_id, fragment.first_offset, fragment.uid, record.tenant)
    data = memoryview(await context.drive.get(key))
    footer = footer_piece(len(data))
    end = decode_footer(data[footer.start :]).index_position
    for header, chunk in split_chunks(data[HEADER_SIZE:end]):
        trailer = trailer_of(header, chunk)
        if header.kind is ChunkKind.TRACKING:
            tracking.take_tracked(decode_tracking(trailer))
        else:
            tracking.take_chunk(
                header.first_offset,
                header.timestamp,
                decode_trailer(trailer),
                more_follows=ChunkFlags.MORE_FOLLOWS in header.flags,
            )
