"""Promote what readers fetch often, by the `promote_after_reads` of the tier on whose drive it lies.

Readers tell what they have fetched within an hour (front/internal_fetched_routes.py). Nothing is
kept of it here: what is enough by what one reader told is promoted at once, as if somebody had asked
for it by hand (range_moves.py), and all else is forgotten. What a crash leaves is what it leaves
there: moves that were entered are entered, and the next telling finds the rest.
"""

from collections.abc import Sequence

from bottomless.errors import Exists, Overloaded
from bottomless.model.stream import StreamRecord, StreamState
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.mutators.range_moves import enter_range
from bottomless_server.manifest.mutators.tiering import tiers_of
from bottomless_server.manifest.tree.committer import Committer
from bottomless_server.manifest.tree.core.hot_ranges import Fetched, find_hot_ranges
from bottomless_server.manifest.tree.core.range_moves import Range, one_tier_up


async def promote_fetched(
    context: Context, committer: Committer, fetched: Sequence[Fetched]
) -> int:
    """Enter moves one tier up of what was fetched often enough; how many. It stays there a while.

    What there is no room for is left out, and so is what would go to a drive that is about to be retired.

    Raises:
        DriveUnavailable: the policy names a drive that this process does not know.
        NotFound, Unavailable, Corrupt
    """
    await committer.refresh()
    record = committer.record
    if not promotes(record):
        return 0
    tiers = tiers_of(context, record)
    reads = {
        tier.drive: config.promote_after_reads
        for tier, config in zip(tiers, record.config.tiers, strict=True)
        if config.promote_after_reads is not None
    }
    descent = find_hot_ranges(committer.keeper.root, fetched, reads)
    hot = await context.groups.descend(record.tenant, committer.keeper.root, descent)
    above = one_tier_up([tier.drive for tier in tiers])
    until = context.time.passed() + context.settings.manifest_promote_keep_ms
    entered = 0
    for one in hot:
        wanted = Range(one.first_offset, one.next_offset, {one.drive: above[one.drive]})
        try:
            entered += len((await enter_range(context, committer, wanted, until)).moves)
        except Overloaded:
            break
        except Exists:
            continue
    return entered


def promotes(record: StreamRecord) -> bool:
    """Whether anything of a stream is promoted because it is read."""
    asked = any(tier.promote_after_reads is not None for tier in record.config.tiers)
    return asked and record.state is StreamState.ACTIVE and record.root is not None
