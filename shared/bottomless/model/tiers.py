"""Tiers of a stream: which drives its fragments lie on by age and size, and what is on its way. Pure.

A policy is a list of tiers, the newest records' first. What exceeds a tier's limits belongs to the
next one. A move takes fragments from one drive to another: it stands in the stream's record from its
decision to its end, under a random number that the keys of its copies have, so that no key lives
twice.
"""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Final, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field

from bottomless.model.closed_schema import Closed, read_size
from bottomless.model.drive import DEFAULT_NAME, NUMBER_MAX, parse_drive_name
from bottomless.model.duration import parse_duration, stored_duration
from bottomless.model.limits import MOVE_COUNT_MAX, OFFSET_MAX, PROMOTION_COUNT_MAX, TIER_COUNT_MAX

COPY_MAX: Final = 2**64 - 1
"""The largest number of a move; the smallest is 1, since 0 says of an object that it is no copy."""
_COPY: Final = re.compile(r"[0-9a-f]{16}", re.ASCII)


def _drive_name(text: str) -> str:
    return text if text == DEFAULT_NAME else parse_drive_name(text)


class TierConfig(Closed):
    """A drive, and what of the newest records belongs on it; the limit that leaves less counts."""

    drive: Annotated[str, AfterValidator(_drive_name)]
    """Its name; `default` is the store of everything else."""
    max_age: Annotated[str, AfterValidator(stored_duration)] | None = None
    max_bytes: Annotated[
        Annotated[int, Field(ge=1, le=OFFSET_MAX)] | None, BeforeValidator(read_size)
    ] = None
    promote_after_reads: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """A fragment of which a reader service fetches so many times its size within an hour moves one tier up;
    None for never."""

    @property
    def is_limited(self) -> bool:
        """Whether anything older or more belongs elsewhere."""
        return self.max_age is not None or self.max_bytes is not None

    @property
    def age_limit_ms(self) -> int | None:
        """The limit of `max_age` in milliseconds; None for no limit."""
        return None if self.max_age is None else 1_000 * parse_duration(self.max_age)


def check_tiers(tiers: Sequence[TierConfig]) -> None:
    """Check that tiers make a policy; none at all are none.

    Raises:
        ValueError: they do not; the message says what is wrong.
    """
    if not tiers:
        return
    if len(tiers) > TIER_COUNT_MAX:
        raise ValueError(f"there must be 1 to {TIER_COUNT_MAX} tiers")
    if len({tier.drive for tier in tiers}) < len(tiers):
        raise ValueError("each drive may be in one tier")
    if tiers[-1].is_limited or not all(tier.is_limited for tier in tiers[:-1]):
        raise ValueError("each tier but the last must have a limit, and the last must have none")
    if tiers[0].promote_after_reads is not None:
        raise ValueError("nothing is promoted from the first tier, since no tier is above it")


class Move(NamedTuple):
    """Fragments that are on their way from one drive to another: those between two offsets."""

    copy: int
    """Random, 1 to 2^64 - 1; the keys of the copies have it after the uid."""
    first_offset: int
    next_offset: int
    """Exclusive. A fragment that does not lie whole between the two is not meant."""
    from_drive: int
    """The number of the drive on which they are."""
    to_drive: int
    """The number of the drive on which the copies are put."""
    session: str | None
    """The run of the uploader that makes the copies; None as long as no uploader does."""
    at: int
    """When it was decided, or taken up by its session, in ms since 1970."""


class Promotion(NamedTuple):
    """Offsets whose fragments the policy leaves where they are for a while."""

    first_offset: int
    next_offset: int
    """Exclusive."""
    until: int
    """Milliseconds since 1970."""


def copy_text(copy: int) -> str:
    """Write the number of a move as keys and records have it: 16 hex digits."""
    return f"{copy:016x}"


def parse_copy(text: str) -> int:
    """Read the number of a move from 16 lower case hex digits.

    Raises:
        ValueError: it is something else, or 0.
    """
    if not _COPY.fullmatch(text) or int(text, 16) == 0:
        raise ValueError("the number of a move must have 16 lower case hex digits, not all 0")
    return int(text, 16)


def check_moves(moves: Sequence[Move]) -> None:
    """Assert what must hold of the moves of one record; a failure is a bug.

    Two moves of one fragment would each make a copy, and one of these would never be named.
    """
    assert len(moves) <= MOVE_COUNT_MAX
    assert len({move.copy for move in moves}) == len(moves)
    assert all(0 < move.copy <= COPY_MAX for move in moves)
    assert all(move.first_offset < move.next_offset for move in moves)
    assert all(0 <= drive <= NUMBER_MAX for move in moves for drive in move[3:5])
    assert all(move.from_drive != move.to_drive for move in moves)
    ranges = sorted((move.first_offset, move.next_offset) for move in moves)
    assert all(a[1] <= b[0] for a, b in pairwise(ranges))


def check_promotions(promoted: Sequence[Promotion]) -> None:
    """Assert what must hold of the promotions of one record; a failure is a bug."""
    assert len(promoted) <= PROMOTION_COUNT_MAX
    assert all(one.first_offset < one.next_offset for one in promoted)
