"""Move what lies between two offsets because somebody asks for it: to a drive, or one tier up.

What is found is `tree/core/range_moves.py`'s. Its first moves are entered, as many as the record has
room for, each by one EXEC; the answer says how much there is besides. After a crash between two of
them the ones before are entered, and the same request goes on with the rest.

What is promoted is put down in the EXEC that enters its move, so that no evaluation of the policy can
come in between and move it down again.
"""

from typing import NamedTuple

from bottomless.errors import Code, InvalidRequest, Overloaded
from bottomless.model.limits import MOVE_COUNT_MAX
from bottomless.model.tiers import Move
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.mutators.moves import Wanted, enter
from bottomless_server.manifest.mutators.tiering import damaged_of, held_of, tiers_of
from bottomless_server.manifest.tree.committer import Committer
from bottomless_server.manifest.tree.core.range_moves import (
    Range,
    everything_to,
    find_range_moves,
    one_tier_up,
)
from bottomless_server.tree.retention import Totals


class Entered(NamedTuple):
    """What a request for moves has led to."""

    moves: tuple[Move, ...]
    left: Totals
    """What of the range is to move and was not entered, for lack of room."""


async def move_range(
    context: Context, committer: Committer, first_offset: int, next_offset: int, drive: int
) -> Entered:
    """Enter moves of the fragments that lie whole between two offsets, to the drive of a number.

    Raises:
        InvalidRequest: there is no offset between, or not all are published.
        Overloaded: the stream has as many moves as it may.
        NotFound, Unavailable, Corrupt
    """
    wanted = Range(first_offset, next_offset, everything_to(drive))
    return await enter_range(context, committer, wanted)


async def promote_range(
    context: Context, committer: Committer, first_offset: int, next_offset: int
) -> Entered:
    """Enter moves of fragments to the drive of the tier before their own, where they stay a while.

    Raises:
        InvalidRequest: there is no offset between, not all are published, or the stream has no policy.
        Overloaded: the stream has as many moves, or promotions, as it may.
        DriveUnavailable: its policy names a drive that this process does not know.
        NotFound, Unavailable, Corrupt
    """
    await committer.refresh()
    tiers = tiers_of(context, committer.record)
    if not tiers:
        raise InvalidRequest(
            "the stream has no tiers, so nothing can be promoted", code=Code.VALIDATION_FAILED
        )
    until = context.time.passed() + context.settings.manifest_promote_keep_ms
    targets = one_tier_up([tier.drive for tier in tiers])
    return await enter_range(context, committer, Range(first_offset, next_offset, targets), until)


async def enter_range(
    context: Context, committer: Committer, wanted: Range, until: int | None = None
) -> Entered:
    """Enter the first moves of a range; with `until`, in ms since 1970, what moves is promoted until then.

    Raises:
        InvalidRequest: there is no offset in it, or not all are published.
        Overloaded: the stream has as many moves as it may, or promotions.
        Exists: `drive-in-use`, a drive is retired, or about to be.
        NotFound, Unavailable, Corrupt
    """
    await committer.refresh()
    record, root = committer.record, committer.keeper.root
    if wanted.first_offset >= wanted.next_offset:
        raise InvalidRequest("a move must have an offset in it")
    if wanted.next_offset > record.published_next:
        raise InvalidRequest(
            "only what is in the object store can be moved",
            code=Code.OFFSET_BEYOND_END,
            facts={"published_next": record.published_next},
        )
    room = MOVE_COUNT_MAX - len(record.moves)
    # Promoted or not: what is asked for by hand goes before what was asked for earlier.
    held = held_of(record) + damaged_of(context, record, root)
    descent = find_range_moves(root, wanted, held, room)
    found = await context.groups.descend(record.tenant, root, descent)
    if found.waiting.fragment_count and room == 0:
        raise Overloaded("the stream has as many moves under way as it may")
    entered, left = [], found.waiting
    for one in found.moves:
        move = Wanted(one.first_offset, one.next_offset, one.from_drive, one.to_drive)
        entered.append(await enter(context, committer, move, until))
        left = left.minus(one.moved)
    return Entered(tuple(entered), left)
