"""Find out what is there: the root that a record names, and what lies under intents.

Runs at the first touch of a stream and whenever an uploader begins a session. It only
reads; what follows from it is decided in `tree/resolve.py` and done by the committer.
"""

from typing import Final

import structlog

from bottomless.drives.base import ObjectMissing
from bottomless.errors import Code, Corrupt
from bottomless.formats.keys import FragmentPlace, fragment_key, root_key
from bottomless.model.manifest import Node, no_entries
from bottomless.model.names import StreamId, Uid
from bottomless.model.stream import Intent, StreamRecord
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.tree.core.adoption_check import AdoptionCheck, footer_piece
from bottomless_server.stores.nodes import load_node
from bottomless_server.tree.resolve import FoundUnderIntent

log = structlog.get_logger(__name__)

_LOAD_ATTEMPT_COUNT: Final = 3
"""A root is gone only long after its record moved on; more than one change under us is rare."""


async def load_root(
    context: Context, record: StreamRecord, known: Node | None = None
) -> tuple[StreamRecord, Node]:
    """The root of a stream and the record that names it, which may be newer than the one given.

    A root that is missing is read again with the record: it may have been replaced and
    deleted meanwhile. If the record still names it, data is missing: that is an error and
    an alarm, never an empty stream.

    Raises:
        Corrupt: `data-missing`, or the root is damaged.
        NotFound: the stream is gone.
    """
    for _ in range(_LOAD_ATTEMPT_COUNT):
        if record.root is None:
            return record, empty_root(record)
        if known is not None and known.uid == record.root.uid:
            return record, known
        try:
            return record, await load_node(
                context.drive,
                root_object_key(record),
                size=record.root.size,
                crc=record.root.crc,
            )
        except ObjectMissing:
            newer = await context.streams.load(record.stream_id)
            if newer.root == record.root:
                break
            record = newer
    log.critical("a root is missing", stream_id=record.stream_id, version=record.version)
    raise Corrupt("the manifest of the stream is missing", code=Code.DATA_MISSING)


def empty_root(record: StreamRecord) -> Node:
    """The manifest before anything was published."""
    return Node(
        stream_id=record.stream_id,
        uid=Uid("0" * 32),
        height=0,
        first_offset=record.published_next,
        next_offset=record.published_next,
        epoch=record.epoch,
        version=record.version,
        generation=record.generation,
        last_timestamp=record.last_timestamp,
        entries=no_entries(),
    )


def root_object_key(record: StreamRecord) -> str:
    root = record.root
    assert root is not None
    return root_key(
        record.stream_id, root.generation, root.epoch, root.version, root.uid, record.tenant
    )


async def look_under(
    context: Context, record: StreamRecord, intent: Intent, copy: int = 0
) -> FoundUnderIntent:
    """Find what lies under the key of an intent; all bytes of the object are read, once. With `copy` it
    is looked for under the key that a move of this number has given it.

    Raises:
        DriveUnavailable, DriveRefused: it cannot be told now.
    """
    try:
        place = intended_place(record, intent, copy)
        check = await _read(context, record.stream_id, intent, place)
        return FoundUnderIntent(intent, check.fragment()._replace(copy=copy))
    except ObjectMissing:
        return FoundUnderIntent(intent, None)
    except Corrupt:
        log.exception(
            "an object under an intent is not a sound fragment",
            stream_id=record.stream_id,
            first_offset=intent.first_offset,
            uid=intent.uid,
        )
        return FoundUnderIntent(intent, None)


def intended_place(record: StreamRecord, intent: Intent, copy: int = 0) -> FragmentPlace:
    """Where the object of an intent lies if it is there, or its copy that a move has made."""
    key = fragment_key(record.stream_id, intent.first_offset, intent.uid, record.tenant, copy)
    return FragmentPlace(intent.drive, key)


async def _read(
    context: Context, stream_id: StreamId, intent: Intent, place: FragmentPlace
) -> AdoptionCheck:
    drive, object_key = context.drives.of(place.drive), place.object_key
    size = (await drive.head(object_key)).size
    tail = footer_piece(size)
    footer = bytes(await drive.get(object_key, tail.start, tail.size))
    check = AdoptionCheck(stream_id, intent, size, footer)
    for piece in check.pieces():
        check.feed(piece, bytes(await drive.get(object_key, piece.start, piece.size)))
    return check
