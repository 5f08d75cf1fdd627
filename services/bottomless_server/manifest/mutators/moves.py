"""Take fragments to another drive: enter a move, hand it to an uploader, name its copies, give it up.

The record has the move from its decision to its end, with a random number of its own that the keys of
its copies have. The uploader copies; here it is decided and named. Each step is one EXEC; after a
crash, or a lost reply, all of it is done or nothing:

1. `enter`: the record has the move, and its drives among those of the stream. Nothing is anywhere yet;
   the next uploader that asks takes it up.
2. `claim`: it has a session too, and then the registry object names the drives. Another one takes it
   over after a minute without a word (common/held_moves.py): both put the same bytes under the same keys, and the last step wants the session.
3. The uploader puts copies. Nobody reads them; the deleter and the collection of garbage leave them
   alone as long as the record has the move.
4. `relocate`: groups on the way to the fragments, then a root, are put anew; then the EXEC that names
   the root takes the move out of the record, and puts what it displaced into the queues of the drives
   where it lies, due after the time that readers of older roots have. Before the EXEC, groups and a
   root are there that nobody names, as after any publish that came to nothing.
5. The deleter does the rest. A crash in it leaves members that are due again.

`give_up` takes the move out in place of step 4. Copies may still be on their way then, so what is left
of them is looked for when no put can be under way any more; a member of the queue says so.

Retention and trim go on meanwhile. What they cut has copies that nobody will ever name; the EXEC of
step 4 has them looked for too, below the floor alone. And of a group whose front is cut it queues the
cut once more, by the name of the new group: the old one may go before what was queued by its name is
done, and that would not be found any more.

Uploaders ask for moves over HTTP (front/internal_move_routes.py); a timer enters them (tier_timer.py),
and so does whoever asks for it (streams/tier_routes.py).
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import NamedTuple

import structlog

from bottomless.errors import Exists, Fenced, InvalidRequest, Overloaded
from bottomless.guards import guard
from bottomless.model.drive import NUMBER_MAX
from bottomless.model.fragment import FragmentInfo
from bottomless.model.limits import MOVE_COUNT_MAX
from bottomless.model.manifest import EntryKind, Node, fragment_info
from bottomless.model.names import Uid
from bottomless.model.stream import StreamRecord
from bottomless.model.tiers import Move, Promotion, copy_text
from bottomless_server.coordination.base import Due
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.drive_states import require_open
from bottomless_server.manifest.common.registry_objects import note_drives
from bottomless_server.manifest.tree.committer import Committer
from bottomless_server.manifest.tree.core.delete_queue import copies_target
from bottomless_server.manifest.tree.core.events import Edit, Relocate
from bottomless_server.manifest.tree.core.planning import seal_node
from bottomless_server.manifest.tree.core.promotions import with_promotion
from bottomless_server.stores.streams import deletes_key
from bottomless_server.tree.relocate import Relocated, Relocation, relocate

log = structlog.get_logger(__name__)


class Wanted(NamedTuple):
    """The fragments between two offsets that are on a drive, and where they are to go."""

    first_offset: int
    next_offset: int
    """Exclusive."""
    from_drive: int
    to_drive: int


class Claimed(NamedTuple):
    """A move in the hands of a session, and what is to be copied."""

    tenant: str
    """Under whose prefix the stream's objects are."""
    move: Move
    fragments: tuple[FragmentInfo, ...]
    """What the manifest names now, oldest first; none where all of it was cut meanwhile."""


async def enter(
    context: Context, committer: Committer, wanted: Wanted, until: int | None = None
) -> Move:
    """Decide a move; with `until`, in ms since 1970, its fragments are promoted until then.

    Raises:
        InvalidRequest: it goes nowhere, or lies beyond what is published.
        Overloaded: the stream has as many moves as it may, or promotions, or a move of some of these
            offsets.
        Exists: `drive-in-use`, the drive is retired, or about to be.
        NotFound, Unavailable
    """
    _check(wanted)
    # Not the look that counts, which is that of `claim`: this one spares an entry that comes to nothing.
    await require_open(context.drive_states, wanted.to_drive)
    copy = new_copy(context.new_uid)
    move = Move(copy, *wanted, session=None, at=context.clock())

    def add(record: StreamRecord) -> StreamRecord:
        if move.next_offset > record.published_next:
            raise InvalidRequest("only what is in the object store can be moved")
        if len(record.moves) >= MOVE_COUNT_MAX:
            raise Overloaded("the stream has as many moves under way as it may")
        if any(_overlap(one, move) for one in record.moves):
            raise Overloaded("a move of some of these fragments is under way")
        promoted = record.promoted
        if until is not None:
            one = Promotion(move.first_offset, move.next_offset, until)
            floor = committer.keeper.root.first_offset
            promoted = tuple(with_promotion(promoted, one, context.time.passed(), floor))
        return replace(record, moves=(*record.moves, move), promoted=promoted)

    await committer.change(add)
    return move


async def claim(context: Context, committer: Committer, copy: int, session: str) -> Claimed:
    """Hand a move to the run of an uploader; it says so again and again while it copies.

    Raises:
        Fenced: the move has ended, or another session is at it.
        Exists: `drive-in-use`: its drive is retired, or about to be. Nobody was at it, and it has ended.
        NotFound, Unavailable, Corrupt
    """
    await committer.refresh()
    found = move_of(committer.record, copy)
    if found.session is None:
        await _require_open(context, committer, found)
    now = context.clock()

    def take(record: StreamRecord) -> StreamRecord:
        move = move_of(record, copy)
        if context.held_moves.is_held(move, session):
            raise Fenced("another session is at this move")
        taken = move._replace(session=session, at=now)
        return replace(record, moves=tuple(taken if one is move else one for one in record.moves))

    record = await committer.change(take)
    context.held_moves.note(move_of(record, copy))
    await note_drives(context.registry_objects, record)
    move = move_of(record, copy)
    # What is to be copied is what would be named now: the same walk finds both.
    relocated = await _relocated(context, record, committer.keeper.root, move)
    # A root's own ones were found before those below its groups.
    fragments = sorted(_fragments_of(relocated), key=lambda info: info.first_offset)
    return Claimed(record.tenant, move, tuple(fragments))


def _fragments_of(relocated: Relocated) -> list[FragmentInfo]:
    """The fragments that a relocation is about, as they are named before it."""
    entries = (one for one in relocated.displaced if one["kind"] == EntryKind.FRAGMENT)
    return [fragment_info(entry) for entry in entries]


async def _require_open(context: Context, committer: Committer, move: Move) -> None:
    """Refuse a move that nobody was ever at, and take it out, if its drive takes nothing new.

    The record has had it before this look, so whoever retires the drive finds the move there, or is
    found here. No copy of it can be anywhere. One that a session was at has passed this look.
    """
    try:
        await require_open(context.drive_states, move.to_drive)
    except Exists:
        await committer.change(
            lambda record: replace(record, moves=tuple(one for one in record.moves if one != move))
        )
        raise


async def finish(
    context: Context,
    committer: Committer,
    copy: int,
    session: str,
    copied: Collection[Uid],
    damaged: Collection[Uid] = (),
) -> StreamRecord:
    """Name the copies of a move and end it; the record says so. The copies of all fragments that were
    `copied` are durable; of another one none is named, and it stays where it is. Those that are `damaged`
    are left alone for a while (common/damaged_sources.py).

    Where nothing of what was copied is live any more, it is given up.

    Raises:
        Fenced: the move has ended, or is another session's.
        NotFound, Unavailable, Corrupt
    """
    cut = False
    left: list[FragmentInfo] = []

    async def work_out(record: StreamRecord, root: Node) -> Edit | None:
        nonlocal cut, left
        move = move_of(record, copy)
        if move.session != session:
            raise Fenced("another session is at this move")
        if damaged:
            whole = await _relocated(context, record, root, move)
            left = [one for one in _fragments_of(whole) if one.uid in damaged]
        relocated = await _relocated(context, record, root, move, copied)
        cut = relocated.moved.fragment_count == 0
        return None if cut else Relocate(move, relocated)

    record = await committer.edit(work_out)
    # In the task of the stream: no evaluation enters them anew before that.
    context.damaged_sources.note(record.stream_id, left)
    context.damaged_sources.forget(record.stream_id, copied)
    return await give_up(context, committer, copy) if cut else record


async def give_up(context: Context, committer: Committer, copy: int) -> StreamRecord:
    """End a move without it, and have its copies looked for when none can be put any more.

    Raises:
        Fenced: the move has ended.
        NotFound, Unavailable
    """
    await committer.refresh()
    move = move_of(committer.record, copy)
    due_at = context.time.latest() + context.settings.manifest_upload_deadline_ms
    target = copies_target(committer.record, move)
    queued = [Due(deletes_key(target.drive), target.member, due_at)]

    def take_out(record: StreamRecord) -> StreamRecord:
        # The queue is fixed before the record is seen: it may be another move, or named by now.
        found = move_of(record, copy)
        return replace(record, moves=tuple(one for one in record.moves if one is not found))

    record = await committer.change(take_out, queued)
    log.info("gave up a move", stream_id=record.stream_id, copy=copy_text(copy))
    return record


def move_of(record: StreamRecord, copy: int) -> Move:
    """The move of a record that has a number.

    Raises:
        Fenced: there is none (any more).
    """
    for move in record.moves:
        if move.copy == copy:
            return move
    raise Fenced("the move has ended, or was given up")


@guard("a key of its own for each move")
def new_copy(new_uid: Callable[[], Uid]) -> int:
    """Draw the number of a move. No key lives twice by it: a delete or a put of an earlier move that
    lands late does nothing to what was moved back."""
    # 64 of 128 random bits; the last ones, so that a test whose uids count has others too.
    return int(new_uid()[16:], 16) or new_copy(new_uid)


async def _relocated(
    context: Context,
    record: StreamRecord,
    root: Node,
    move: Move,
    copied: Collection[Uid] | None = None,
) -> Relocated:
    relocation = relocation_of(move, copied)
    descent = relocate(root, relocation, context.new_uid, seal_node)
    return await context.groups.descend(record.tenant, root, descent)


@guard("what a mover has copied")
def relocation_of(move: Move, copied: Collection[Uid] | None) -> Relocation:
    """What of a manifest a move changes: of all that it is about what was copied; None for all."""
    only = None if copied is None else frozenset(copied)
    return Relocation(*move[1:5], copy=move.copy, only=only)


def _overlap(one: Move, other: Move) -> bool:
    return one.first_offset < other.next_offset and other.first_offset < one.next_offset


def _check(wanted: Wanted) -> None:
    drives = wanted.from_drive, wanted.to_drive
    if wanted.first_offset < 0 or wanted.first_offset >= wanted.next_offset:
        raise InvalidRequest("a move must have an offset in it")
    if drives[0] == drives[1] or not all(0 <= drive <= NUMBER_MAX for drive in drives):
        raise InvalidRequest("a move must go from one drive to another")
