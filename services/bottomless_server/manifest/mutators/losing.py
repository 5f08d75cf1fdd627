"""Give up all that a stream has on a drive that is lost for good.

In this order; after a crash at any step the same again goes on:

1. One EXEC takes out of the record what is under way there: intents, what was given up, moves to and
   from the drive, and that a rebuild has not looked at it. What a move has copied elsewhere is looked
   for later. From here on nothing that lies there can come into the manifest. Whoever has appended what
   an intent was about has it still, and uploads it anew.
2. Roots in which fragments on the drive are gaps, each by one EXEC, as many as it takes: a walk makes a
   bounded number of groups anew. What is whole on another drive is named there instead: the source of a
   move that waits for its grace, or a copy of a move away from the drive that did not come to its end.
   Both wait to be deleted, and the deleter leaves alone what the manifest names (`removal/deleter.py`).
   What is going already (`removal/claims.py`) is not named: its deletion may be under way, and lands when
   it lands. Where it is still there its bytes are put on drive 0 under a key of their own, and named
   there. Before such an EXEC there are such copies, groups and a root that nobody names, as after any
   publish that came to nothing; the same again names the copies. Groups that are displaced go after the
   grace, each as one object.
3. The same for all other drives of the stream that are lost by then. Somebody else may have found there, when
   they were not lost, what lay on this one or on another one, and be about to name it: then the loss of such a
   drive has passed over the stream before the EXEC. Since the manifest names a drive that is lost as long as
   that is so, and the registry says so before anybody looks, this changes the record, and that EXEC comes to
   nothing; or it came before, and is seen here.

Nothing is deleted from the drive, and nothing waits for it.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import structlog

from bottomless.drives.base import ObjectMissing
from bottomless.formats.checks import crc32c
from bottomless.formats.keys import FragmentPlace, fragment_place, stream_prefix
from bottomless.guards import guard
from bottomless.model.drive import DEFAULT_NUMBER
from bottomless.model.fragment import FragmentInfo
from bottomless.model.manifest import Node, fragment_info
from bottomless.model.names import StreamId, Uid, uid_from_bytes
from bottomless.model.stream import StreamRecord, StreamState, drives_under_way
from bottomless.model.tiers import Move
from bottomless_server.coordination.base import Due
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.other_drives import drives_of, lost_drives_of
from bottomless_server.manifest.mutators.moves import new_copy
from bottomless_server.manifest.tree.committer import Committer
from bottomless_server.manifest.tree.core.delete_queue import copies_target, parse_delete_target
from bottomless_server.manifest.tree.core.events import Edit, LoseDrive
from bottomless_server.manifest.tree.core.planning import seal_node
from bottomless_server.stores.going import going_key, unnameable
from bottomless_server.stores.put_retries import put_object
from bottomless_server.stores.streams import deletes_key
from bottomless_server.tree.drive_loss import Elsewhere, Lost, lose
from bottomless_server.tree.retention import Totals

log = structlog.get_logger(__name__)


def uses(record: StreamRecord, number: int) -> bool:
    """Whether a record says that something is under way on a drive, or was not looked at."""
    return number in drives_under_way(record) or number in record.unseen


async def give_up_uploads(context: Context, record: StreamRecord, number: int) -> None:
    """Take out of the record what is under way on a drive: step 1. It needs no task of the stream: where
    a takeover is due, such a task waits for the drive.

    Raises:
        NotFound, Unavailable
    """
    if record.state is not StreamState.ACTIVE or not uses(record, number):
        return
    due_at = context.time.latest() + context.settings.manifest_upload_deadline_ms
    queued = [
        Due(deletes_key(target.drive), target.member, due_at)
        for target in (copies_target(record, move) for move in record.moves if _is_on(move, number))
        if target.drive != number
    ]
    before = set(record.moves)

    def take_out(found: StreamRecord) -> StreamRecord:
        # The queue was fixed before the record was seen: a move that came since stays for the next try.
        ended = {move for move in found.moves if _is_on(move, number) and move in before}
        return replace(
            found,
            intents=tuple(one for one in found.intents if one.drive != number),
            quarantine=tuple(one for one in found.quarantine if one.drive != number),
            moves=tuple(move for move in found.moves if move not in ended),
            unseen=tuple(one for one in found.unseen if one != number),
        )

    left = await context.streams.update(record.stream_id, take_out, queued)
    if any(_is_on(move, number) for move in left.moves):
        await give_up_uploads(context, left, number)


class Losses(NamedTuple):
    """What became of the fragments that a stream had on a drive."""

    lost: Totals
    """Gaps are in their place."""
    kept: Totals
    """They were whole on another drive, and are named there."""


async def lose_drive(context: Context, committer: Committer, number: int) -> Losses:
    """Put gaps in the place of all fragments on a drive that are on no other one: step 2. The same is done
    for other drives that are lost by then: step 3.

    Raises:
        NotFound, Unavailable, Corrupt: also where another drive of the stream is away, since what is
            whole there is not lost.
    """
    losses, done = await _lose_one(context, committer, number), {number}
    while others := lost_too(await lost_drives_of(context, committer.record), done):
        done.add(other := min(others))
        more = await _lose_one(context, committer, other)
        losses = Losses(*(one.plus(two) for one, two in zip(losses, more, strict=True)))
    return losses


@guard("other drives that are lost when a stream is told of one")
def lost_too(lost: Collection[int], done: Collection[int]) -> set[int]:
    """Pick drives of which a stream is told with another one."""
    return {*lost} - {*done}


async def _lose_one(context: Context, committer: Committer, number: int) -> Losses:
    lost, kept, more = Totals(), Totals(), True
    while more:
        found = Lost(committer.keeper.root)

        async def work_out(record: StreamRecord, root: Node) -> Edit | None:
            nonlocal found
            found = await _found(context, record, root, number)
            return LoseDrive(found) if found.fragments else None

        await committer.edit(work_out)
        lost, kept, more = lost.plus(found.lost), kept.plus(found.kept), found.more
    context.damaged_sources.forget_drive(committer.record.stream_id, number)
    if lost.fragment_count or kept.fragment_count:
        _tell(committer.record.stream_id, number, lost, kept)
    return Losses(lost, kept)


async def _found(context: Context, record: StreamRecord, root: Node, number: int) -> Lost:
    descent = lose(root, number, context.new_uid, seal_node)
    found = await context.groups.descend(record.tenant, root, descent)
    if not found.fragments:
        return found
    elsewhere = await whole_elsewhere(context, record, found.fragments)
    if not elsewhere:
        return found
    descent = lose(root, number, context.new_uid, seal_node, elsewhere)
    return await context.groups.descend(record.tenant, root, descent)


@guard("what is whole elsewhere before it is given up")
async def whole_elsewhere(
    context: Context, record: StreamRecord, entries: Sequence[np.void]
) -> dict[Uid, Elsewhere]:
    """Where the bytes of fragments are on drives that are not lost. Each object was put whole, and was
    compared with its checksum when it was copied. Of what is going a copy is made.

    Raises:
        DriveUnavailable, DriveRefused, DriveAmbiguous: one of the drives does not say.
        Corrupt: what is going cannot be read.
    """
    # Before the drives are listed: what is claimed later than this finds the drive lost, and stays; what is
    # not claimed any more is gone by then (`removal/claims.py`).
    going = unnameable(await context.coordination.get(going_key(record.stream_id)))
    sizes = {uid_from_bytes(one["uid"].tobytes()): int(one["object_size"]) for one in entries}
    first = min(int(one["first_offset"]) for one in entries)
    last = max(int(one["first_offset"]) for one in entries)
    place = f"{stream_prefix(record.stream_id, record.tenant)}data/"
    found: dict[Uid, Elsewhere] = {}
    leaving: dict[Uid, list[FragmentPlace]] = {}
    for number in await drives_of(context, record):
        async for facts in context.drives.of(number).list(place, f"{place}{first:020d}"):
            target = parse_delete_target(facts.object_key.encode("ascii", "replace"), number)
            if target is None or target.uid is None or target.first_offset is None:
                continue
            if target.first_offset > last:
                break
            if facts.size == sizes.get(target.uid):
                if target.place in going:
                    leaving.setdefault(target.uid, []).append(target.place)
                else:
                    found.setdefault(target.uid, Elsewhere(number, target.copy))
    for entry in entries:
        info = fragment_info(entry)
        for place_of_it in leaving.get(info.uid, ()):
            if info.uid not in found and (
                saved := await _copied_anew(context, record, info, place_of_it)
            ):
                found[info.uid] = saved
    return found


async def _copied_anew(
    context: Context, record: StreamRecord, info: FragmentInfo, going: FragmentPlace
) -> Elsewhere | None:
    """Put the bytes of an object that is going on drive 0, which has room for what is new and is never
    retired; None where it is gone by now, or damaged.

    Raises:
        DriveUnavailable, DriveRefused, DriveAmbiguous
    """
    try:
        data = bytes(await context.drives.of(going.drive).get(going.object_key))
    except ObjectMissing:
        return None
    if (len(data), crc32c(data)) != (info.size, info.crc):
        log.error("what is going of a fragment is damaged", **going._asdict())
        return None
    saved = Elsewhere(DEFAULT_NUMBER, new_copy(context.new_uid))
    seconds = context.settings.manifest_put_seconds
    copy = info._replace(drive=saved.drive, copy=saved.copy)
    object_key = fragment_place(record.stream_id, copy, record.tenant).object_key
    await put_object(context.drive, object_key, [data], info.crc, deadline_seconds=seconds)
    return saved


def _tell(stream_id: StreamId, number: int, lost: Totals, kept: Totals) -> None:
    tell = log.critical if lost.fragment_count else log.warning
    tell(
        "records were lost with a drive" if lost.fragment_count else "a drive was given up",
        stream_id=stream_id,
        drive=number,
        fragments=lost.fragment_count,
        records=lost.record_count,
        kept_fragments=kept.fragment_count,
    )


def _is_on(move: Move, number: int) -> bool:
    return number in (move.from_drive, move.to_drive)
