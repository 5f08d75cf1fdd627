"""Offsets that the policy of a stream leaves alone for a while, since somebody reads them. Pure."""

from collections.abc import Sequence

from bottomless.errors import Overloaded
from bottomless.model.limits import PROMOTION_COUNT_MAX
from bottomless.model.tiers import Promotion


def with_promotion(
    promoted: Sequence[Promotion], one: Promotion, now: int, floor: int
) -> list[Promotion]:
    """Add a promotion, and leave out those that have ended at `now`, in ms since 1970, and those that
    lie below the floor of the stream: what they were about is gone.

    Those that it covers for longer become one with it, and so do neighbours that end at the same moment:
    what was asked for at once takes one place.

    Raises:
        Overloaded: there are as many as there may be, each of another range or end.
    """
    kept = []
    for other in promoted:
        touches = one.first_offset <= other.next_offset and other.first_offset <= one.next_offset
        covered = (
            one.first_offset <= other.first_offset and other.next_offset <= one.next_offset
        ) and other.until <= one.until
        if touches and other.until == one.until:
            first = min(one.first_offset, other.first_offset)
            one = Promotion(first, max(one.next_offset, other.next_offset), one.until)
        elif is_in_force(other, now, floor) and not covered:
            kept.append(other)
    if len(kept) >= PROMOTION_COUNT_MAX:
        raise Overloaded("as much of the stream is promoted as may be at one time")
    return [*kept, one]


def is_in_force(one: Promotion, now: int, floor: int) -> bool:
    """Whether a promotion still says something at `now`, in ms since 1970, of a stream with this floor."""
    return one.until > now and one.next_offset > floor
