"""Uploader sessions: who may put fragments, under which uids, and what an old session left.

An intent is written before its object can exist, so that every object that may exist is
in the manifest, the intents, the quarantine or the delete queue. After a crash at any step:

- a takeover's gap was due: it is published first, by `freeing.py`, whatever became of who began.
- a stream's first root was put, no intent of it written: a root without entries, which the record
  names or nobody does. The next one who asks for uids goes on, or puts another.
- intents written, answer lost: nothing lies under them; the next session gives them up.
- `begin` after its first EXEC: the new session is live, the old one refused; old intents are
  still there, and the same `begin` again, or the next session, resolves them.
- an intent on a drive that is away, and no first tier any more, is given up like one under which
  nothing lies; its key stays in the queue of that drive until the drive is back.
- adopted, or given up, by EXEC: a uid is in the manifest or in quarantine, never in both;
  a uid that left the intents can never be registered.

Nothing is deleted here. A given-up key goes into the delete queue in the EXEC that gives it
up, due when no put of it can be under way any more.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

import structlog

from bottomless.drives.base import DriveRefused, DriveUnavailable
from bottomless.errors import Exists, Fenced, Overloaded, Unavailable
from bottomless.formats.keys import fragment_key
from bottomless.guards import guard
from bottomless.model.drive import DEFAULT_NUMBER
from bottomless.model.manifest import Node
from bottomless.model.names import Uid
from bottomless.model.stream import Intent, StreamRecord
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.drive_states import require_open
from bottomless_server.manifest.common.registry_objects import note_drives
from bottomless_server.manifest.leaderless.pruning import prune_published
from bottomless_server.manifest.leaderless.tail_facts import tail_of
from bottomless_server.manifest.mutators.adopting import register_run
from bottomless_server.manifest.mutators.freeing import free
from bottomless_server.manifest.mutators.tiering import drive_numbers, drive_of_new
from bottomless_server.manifest.mutators.unseen import look_where_possible
from bottomless_server.manifest.tree.committer import Committer
from bottomless_server.manifest.tree.core.events import Edit, FirstRoot
from bottomless_server.manifest.tree.resolver import look_under
from bottomless_server.protocol.uploads import INTENT_COUNT_MAX
from bottomless_server.stores.streams import delete_later
from bottomless_server.tree.resolve import FoundUnderIntent, resolve_intents

log = structlog.get_logger(__name__)

QUARANTINE_COUNT_MAX: Final = 4_096
"""Given-up intents of one stream; with more no new ones are given, until the deleter has caught up."""
_GIVE_UP_ATTEMPT_COUNT: Final = 8
_OWNER_SECONDS: Final = 5.0


async def begin(context: Context, committer: Committer, session: str) -> StreamRecord:
    """Make `session` the live one and resolve what others left; repeating it is harmless.

    It also publishes what is registered and waits for more to share its root. So an uploader to
    which nothing more comes begins its session again.

    Raises:
        NotFound, Unavailable: not now; the same again is right.
    """

    def enter(record: StreamRecord) -> StreamRecord:
        return replace(record, uploader=session)

    await committer.refresh()
    # Before anything is given up: a takeover adopts what the lost home has uploaded.
    await free(context, committer)
    if committer.record.uploader != session:
        await committer.change(enter)
    # What the old session registered is durable and checked already: it goes the usual way.
    await committer.flush()
    await look_where_possible(context, committer)
    if committer.record.config.leaderless:
        # Before the uploader reads the tail: what it begins with is in no fragment then.
        await prune_published(context, committer.record)
    left = _left_by_others(committer.record, session)
    if left:
        await _resolve(context, committer, left)
    return committer.record


def _left_by_others(record: StreamRecord, session: str) -> list[Intent]:
    return [intent for intent in record.intents if intent.session != session]


async def _resolve(context: Context, committer: Committer, left: Sequence[Intent]) -> None:
    record = committer.record
    found = [await _look_under(context, record, intent) for intent in left]
    committed_next = None
    if any(one.fragment is not None for one in found):
        committed_next = await _committed_next(context, record)
    if run := resolve_intents(record, found, committed_next).adopted:
        await register_run(committer, run)
        await committer.flush()
        if any(committer.outcome(fragment.uid) is False for fragment in run):
            raise Unavailable("fragments of the last session are not published yet")
    await give_up(context, committer, {intent.uid for intent in left})


async def _look_under(context: Context, record: StreamRecord, intent: Intent) -> FoundUnderIntent:
    """What lies under an intent; nothing, for all that anybody waits for, where its drive is away and
    the stream puts nothing there any more. Then it is given up without a look, and what may lie there
    goes when the drive is back: who appended it has it still, or WAL objects do.
    """
    try:
        return await look_under(context, record, intent)
    except (DriveUnavailable, DriveRefused) as error:
        if not await _has_left(context, record, intent.drive):
            raise
        log.warning(
            "gave up an upload without a look",
            stream_id=record.stream_id,
            drive=intent.drive,
            error=str(error),
        )
        return FoundUnderIntent(intent, None)


async def _has_left(context: Context, record: StreamRecord, number: int) -> bool:
    """Whether a drive, not drive 0, is another one than that on which new fragments are put now."""
    if number == DEFAULT_NUMBER:
        return False
    closed = await context.drive_states.is_closed(number)
    return closed or drive_of_new(record.config.tiers, drive_numbers(context), [number]) != number


async def _committed_next(context: Context, record: StreamRecord) -> int | None:
    """Where the stream ends; None where nobody says it, and then nothing is adopted."""
    if record.config.leaderless:
        # Committed is what coordination has: no node can lose it or take it back.
        tail = await tail_of(context, record)
        return None if tail is None else tail.next_offset
    if record.owner_url is None:
        return None
    return await context.owners.committed_next(record.owner_url, record.stream_id, _OWNER_SECONDS)


async def intend(
    context: Context,
    committer: Committer,
    session: str,
    first_offsets: Sequence[int],
    able: Collection[int] = (),
) -> tuple[Uid, ...]:
    """Write down that objects may be put from now on, under which uids, and on which drive: the first
    tier's, if who puts them is `able` to reach that drive and it takes anything new.

    Raises:
        Fenced: another session is live.
        Overloaded: too many are under way.
        NotFound, Unavailable
    """
    await put_first_root(committer, session)
    # As far as is known. The look that counts comes after the EXEC, and whoever asks again knows then.
    open_to = [drive for drive in able if not context.drive_states.was_closed(drive)]
    numbers = drive_numbers(context)
    uids = tuple(context.new_uid() for _ in first_offsets)

    def add(record: StreamRecord) -> StreamRecord:
        check_session(record, session)
        drive = drive_of_new(record.config.tiers, numbers, open_to)
        intents = tuple(
            Intent(uid, first, session, drive)
            for uid, first in zip(uids, first_offsets, strict=True)
        )
        if len(record.intents) + len(intents) > INTENT_COUNT_MAX:
            raise Overloaded("too many uploads of this stream are under way")
        if len(record.quarantine) > QUARANTINE_COUNT_MAX:
            raise Overloaded("too many uploads of this stream were given up")
        return replace(record, intents=(*record.intents, *intents))

    await note_drives(context.registry_objects, await committer.change(add))
    await _require_open(context, committer, frozenset(uids))
    return uids


async def _require_open(context: Context, committer: Committer, uids: Collection[Uid]) -> None:
    """Give up intents that nobody has heard of, if their drive takes nothing new.

    The record has had them before this look, so whoever retires the drive finds them, or is found here.

    Raises:
        Unavailable: it takes nothing new; who asks again is given drive 0.
    """
    drives = {intent.drive for intent in committer.record.intents if intent.uid in uids}
    try:
        for drive in drives:
            await require_open(context.drive_states, drive)
    except Exists as error:
        await give_up(context, committer, uids)
        raise Unavailable("the drive of new fragments takes none any more; ask again") from error


@guard("a root before the first intent")
async def put_first_root(committer: Committer, session: str) -> None:
    """Have the bucket show that the stream has a manifest, before a fragment of it can be there.

    Uploads end in any order, so the first fragments that a bucket has may lie after a hole. With a
    root, a rebuild sees that nothing before them was ever published. Without any it could not tell
    that from a manifest which is lost.

    Raises:
        Fenced: another session is live.
        NotFound, Unavailable
    """
    if committer.record.root is not None:
        return

    async def work_out(record: StreamRecord, _: Node) -> Edit | None:
        check_session(record, session)
        return FirstRoot() if record.root is None else None

    await committer.edit(work_out)


async def abandon(
    context: Context, committer: Committer, session: str, uids: Collection[Uid]
) -> None:
    """Give up intents of the live session; those that are applied or gone stay as they are.

    Raises:
        Fenced: another session is live.
        NotFound, Unavailable
    """
    await committer.refresh()
    check_session(committer.record, session)
    await give_up(context, committer, uids)


async def give_up(context: Context, committer: Committer, uids: Collection[Uid]) -> None:
    """Move uids from the intents to quarantine, and their keys into the delete queue."""
    for _ in range(_GIVE_UP_ATTEMPT_COUNT):
        given_up = tuple(intent for intent in committer.record.intents if intent.uid in uids)
        if not given_up:
            return
        if await _move(context, committer, given_up):
            return
        await committer.refresh()
    raise Unavailable("others keep changing the intents of this stream")


async def _move(context: Context, committer: Committer, given_up: tuple[Intent, ...]) -> bool:
    record = committer.record
    due_at = context.time.latest() + context.settings.manifest_upload_deadline_ms
    queued = [
        delete_later(
            fragment_key(record.stream_id, intent.first_offset, intent.uid, record.tenant),
            due_at,
            intent.drive,
        )
        for intent in given_up
    ]

    def move(record: StreamRecord) -> StreamRecord:
        # The queue is fixed before the record is seen: a key may only be queued if its
        # uid is still an intent at that moment, or a published fragment would be deleted.
        if not set(given_up) <= set(record.intents):
            raise _Changed
        return replace(
            record,
            intents=tuple(intent for intent in record.intents if intent not in given_up),
            quarantine=(*record.quarantine, *given_up),
        )

    try:
        await committer.change(move, queued)
    except _Changed:
        return False
    log.info("gave up intents", stream_id=record.stream_id, count=len(given_up))
    return True


def check_session(record: StreamRecord, session: str) -> None:
    """Refuse a request of a session that is not the live one.

    Raises:
        Fenced
    """
    if record.uploader != session:
        raise Fenced(
            "a newer uploader session has begun", facts={"published_next": record.published_next}
        )


class _Changed(Exception):
    """An intent that was to be given up is not there any more."""
