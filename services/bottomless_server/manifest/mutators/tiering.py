"""Find what a stream's policy wants moved, and enter the moves that its record has room for.

What is decided is `tree/core/tiering.py`'s: a preview shows what it finds, and an evaluation enters its
first moves, so that a preview that nothing came after is what happens. After a crash between two of
them the ones before are entered, and the next evaluation leaves their offsets alone.

A timer calls it (tier_timer.py), and whoever asks for it (streams/tier_routes.py).
"""

from collections.abc import Collection, Mapping, Sequence

from bottomless.drives.base import DriveUnavailable
from bottomless.guards import guard
from bottomless.model.drive import DEFAULT_NAME, DEFAULT_NUMBER
from bottomless.model.limits import MOVE_COUNT_MAX
from bottomless.model.manifest import Node
from bottomless.model.stream import StreamRecord
from bottomless.model.tiers import Move, TierConfig
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.mutators.moves import Wanted, enter
from bottomless_server.manifest.tree.committer import Committer
from bottomless_server.manifest.tree.core.move_search import Held
from bottomless_server.manifest.tree.core.tiering import Tier, Tiering, find_tiering
from bottomless_server.runtime.base.fault_points import reach


async def preview(context: Context, committer: Committer) -> Tiering | None:
    """Find what the policy wants moved now; changes nothing. None of a stream without a policy.

    Raises:
        DriveUnavailable: it names a drive that this process does not know.
        NotFound, Unavailable, Corrupt
    """
    await committer.refresh()
    return await _judge(context, committer.record, committer.keeper.root)


async def evaluate(context: Context, committer: Committer) -> list[Move]:
    """Enter the first moves that the policy wants, as many as there is room for.

    Raises:
        DriveUnavailable: it names a drive that this process does not know.
        NotFound, Unavailable, Corrupt
    """
    found = await preview(context, committer)
    wanted = () if found is None else found.moves
    entered = []
    for one in wanted:
        if await context.drive_states.is_closed(one.to_drive):
            # The policy names it still: what belongs there stays where it is.
            continue
        move = Wanted(one.first_offset, one.next_offset, one.from_drive, one.to_drive)
        entered.append(await enter(context, committer, move))
        await reach("manifest.tiers.after-enter")
    return entered


async def _judge(context: Context, record: StreamRecord, root: Node) -> Tiering | None:
    if not record.config.tiers:
        return None
    # By the slowest clock: a move is a copy that somebody pays for, though it loses nothing.
    now, _ = await context.time.look()
    held = held_of(record) + promoted_of(record, now) + damaged_of(context, record, root)
    room = MOVE_COUNT_MAX - len(record.moves)
    tiers = tiers_of(context, record)
    descent = find_tiering(root, tiers, now, held, room)
    return await context.groups.descend(record.tenant, root, descent)


def held_of(record: StreamRecord) -> list[Held]:
    """The offsets of which a move is under way."""
    return [Held(move.first_offset, move.next_offset) for move in record.moves]


def damaged_of(context: Context, record: StreamRecord, root: Node) -> list[Held]:
    """The offsets of fragments that cannot be moved, and are not to be tried yet."""
    waiting = context.damaged_sources.waiting(record.stream_id, root.first_offset)
    return [Held(one.first_offset, one.next_offset) for one in waiting]


@guard("promoted ranges")
def promoted_of(record: StreamRecord, now: int) -> list[Held]:
    """The offsets that were promoted and are left where they are, at a time in ms since 1970."""
    return [Held(one.first_offset, one.next_offset) for one in record.promoted if one.until > now]


def drive_numbers(context: Context) -> dict[str, int]:
    """The numbers of all drives that this process knows, by their names."""
    numbers = {drive.name: drive.number for drive in context.drives.configured}
    return {**numbers, DEFAULT_NAME: DEFAULT_NUMBER}


@guard("the drives that an uploader reaches")
def drive_of_new(
    tiers: Sequence[TierConfig], numbers: Mapping[str, int], able: Collection[int]
) -> int:
    """The number of the drive on which a new fragment is to be put: the first tier's.

    It is drive 0 where there are no tiers, and where the manifest or who puts the fragment, which is
    `able` to reach these drives beside drive 0, does not know that drive: the policy moves it later.
    """
    number = numbers.get(tiers[0].drive, DEFAULT_NUMBER) if tiers else DEFAULT_NUMBER
    return number if number in able else DEFAULT_NUMBER


def tiers_of(context: Context, record: StreamRecord) -> list[Tier]:
    """The tiers of a stream's policy by the numbers of their drives; none without a policy.

    Raises:
        DriveUnavailable: it names a drive that this process does not know.
    """
    numbers = drive_numbers(context)
    tiers = record.config.tiers
    if any(tier.drive not in numbers for tier in tiers):
        raise DriveUnavailable(
            "a drive of the stream's policy is not among those that this process started with; "
            "name it in BOTTOMLESS_DRIVES and start the process anew"
        )
    return [Tier(numbers[tier.drive], tier.age_limit_ms, tier.max_bytes) for tier in tiers]
