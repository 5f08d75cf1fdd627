"""Look at what a rebuild could not look at: fragments on drives that were away then.

The record names these drives in `unseen`. What lies there from the end of the manifest on may have been
put before coordination was lost and never published. What continues it on another drive was a stray to
the rebuild, since it continued nothing then. Each such object, on any drive of the stream, gets an intent of no session that
lives, in the EXEC that takes the drive out of `unseen`: from then on it is an object that an earlier
uploader may have put, and is adopted or given up like any other. After a crash before the EXEC the drive
is still in `unseen`, and the look is made again; a crash after it leaves intents for the next session.

A new session makes the look if all of these drives are there, and does without it if not: what was acknowledged is
with the node that appended it, or in WAL objects. A gap is different: it says that nothing is stored for
its offsets, so before one is published the drive has to be back, or said to be lost; and what lies there
gets intents however many the record has. Until then the collection of garbage leaves these objects alone.
"""

from dataclasses import replace
from typing import Final

import structlog

from bottomless.drives.base import Drive
from bottomless.errors import StoreError
from bottomless.formats.keys import stream_prefix
from bottomless.guards import guard
from bottomless.model.stream import Intent, StreamRecord
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.other_drives import drives_of
from bottomless_server.manifest.tree.committer import Committer
from bottomless_server.manifest.tree.core.delete_queue import DeleteTarget, parse_delete_target
from bottomless_server.protocol.uploads import INTENT_COUNT_MAX

log = structlog.get_logger(__name__)

NOBODYS_SESSION: Final = "rebuilt"
"""The session of these intents: none that an uploader begins has its name."""


async def look_where_possible(context: Context, committer: Committer) -> None:
    """Look at the drives of `unseen`, if all of them are there: what continues what lies on one that is still
    away would be given up.

    Raises:
        NotFound, Unavailable: of the record.
    """
    for number in committer.record.unseen:
        try:
            await context.drives.marked(number).look()
        except StoreError as error:
            log.info("a drive is still away", drive=number, error=str(error))
            return
    for number in committer.record.unseen:
        try:
            await _look(context, committer, number, INTENT_COUNT_MAX)
        except StoreError as error:
            log.warning(
                "a drive that a rebuild did not see cannot be looked at",
                stream_id=committer.record.stream_id,
                drive=number,
                error=str(error),
            )


@guard("all drives before a gap")
async def look_everywhere(context: Context, committer: Committer) -> None:
    """Look at all drives of `unseen`, before a gap says that nothing lies there. A drive with more than
    fits at once stays in it; its oldest objects have intents then.

    Raises:
        NotFound, Unavailable: also where a drive is still away.
    """
    for number in committer.record.unseen:
        held = len(committer.record.intents)
        await _look(context, committer, number, room_for_all(held))


@guard("room for what a gap would cover")
def room_for_all(held: int) -> int:
    """How many intents a record may have before a gap: uploads that are under way keep no room from what
    lies on one more drive."""
    return held + INTENT_COUNT_MAX + 1


async def _look(context: Context, committer: Committer, number: int, count_max: int) -> None:
    """Give intents to what lies on a drive, and to what may continue it, up to so many in the record."""
    record = committer.record
    found = await _fragments(context.drives.marked(number), record, number)
    if set(record.unseen) <= {number}:
        # The last one. What continues a drive that is still away would be given up now.
        found = sorted([*found, *await _continued(context, record, number)], key=_first_offset)

    def enter(record: StreamRecord) -> StreamRecord:
        known = {intent.uid for intent in (*record.intents, *record.quarantine)}
        new = [one for one in found if one.uid not in known]
        room = max(0, count_max - len(record.intents))
        # What there is no room for is looked for again when these have become something.
        unseen = record.unseen
        if len(new) <= room and len(found) <= INTENT_COUNT_MAX:
            unseen = tuple(one for one in unseen if one != number)
        return replace(record, unseen=unseen, intents=(*record.intents, *new[:room]))

    await committer.change(enter)
    if found:
        log.info("found fragments", stream_id=record.stream_id, drive=number, count=len(found))


@guard("what continues on another drive what was not seen")
async def _continued(context: Context, record: StreamRecord, number: int) -> list[Intent]:
    """What lies after the end of the manifest on the other drives that can be looked at."""
    found = list[Intent]()
    for other in await drives_of(context, record):
        if other != number and other not in record.unseen:
            found += await _fragments(context.drives.of(other), record, other)
    return found


def _first_offset(intent: Intent) -> int:
    return intent.first_offset


async def _fragments(drive: Drive, record: StreamRecord, number: int) -> list[Intent]:
    """Intents for what lies from the end of the manifest on, oldest first; one more than there is room
    for at most. Copies that moves have made are none: they are of what the manifest names."""
    place = f"{stream_prefix(record.stream_id, record.tenant)}data/"
    found = list[Intent]()
    async for facts in drive.list(place, f"{place}{record.published_next:020d}"):
        target = parse_delete_target(facts.object_key.encode("ascii", "replace"), number)
        if target is None or not _is_fragment(target):
            continue
        assert target.uid is not None
        assert target.first_offset is not None
        found.append(Intent(target.uid, target.first_offset, NOBODYS_SESSION, number))
        if len(found) > INTENT_COUNT_MAX:
            break
    return found


def _is_fragment(target: DeleteTarget) -> bool:
    has_key = target.uid is not None and target.first_offset is not None
    return has_key and not target.height and not target.copy


@guard("what a rebuild did not see is no garbage")
def may_be_adopted(record: StreamRecord, target: DeleteTarget) -> bool:
    """Whether a rebuild would perhaps have adopted an object, had it seen all drives: it may lie on the one
    that was away, or continue what lies there."""
    after = target.first_offset is not None and target.first_offset >= record.published_next
    return bool(record.unseen) and after
