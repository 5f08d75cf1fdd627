"""What becomes of a commit to leaderless streams whose reply was lost.

The old EXEC may still be on its way, so looking at the record alone decides nothing: first a new
attempt is written into it, which breaks the watch of that EXEC for ever.

Another run of the store may be an older copy, in which the commit is missing though it was there, and
readers have seen it. So nothing is decided over a connection that was not compared with the bucket.
"""

from dataclasses import replace
from enum import Enum, auto

from bottomless.guards import guard
from bottomless_server.coordination.base import Changes, Coordination, Values
from bottomless_server.core.regressed import coordination_lost
from bottomless_server.leaderless.attempts import AttemptNumbers
from bottomless_server.leaderless.instance import (
    WalInstance,
    decode_instance,
    encode_instance,
    is_taken_away,
)
from bottomless_server.stores.streams import GENERATION_KEY
from bottomless_server.stores.wal import instance_key, require_generation
from bottomless_server.stores.wal_check import require_checked


class Fate(Enum):
    """What became of a commit whose reply was lost."""

    APPLIED = auto()
    NOT_APPLIED = auto()
    """It never will be: the watch of its EXEC is broken."""
    PUT_BACK = auto()
    """The store has begun anew since, and does not have it. Nobody knows whether the run before had it,
    and readers may have seen it: the same is committed again, before anything else."""
    UNKNOWN = auto()
    """The instance has no record any more, so nobody can tell."""


@guard("a new attempt before a lost commit is taken for none")
def outdating(redis_key: str, record: WalInstance, attempt: int) -> Changes:
    """Give an instance a new attempt, which breaks the watch of every EXEC that is still under way."""
    return Changes({redis_key: encode_instance(replace(record, attempt=attempt))})


async def decide_lost(coordination: Coordination, numbers: AttemptNumbers) -> Fate:
    """Find out whether the commit that is lost was applied, and see to it that it cannot be any more
    if it was not.

    It is asked again until it answers: a number of its own for each call, so that no bump ever looks
    like the commit. In Redis after a crash: the instance as it was, or with a new attempt; nothing
    else.

    Raises:
        CoordinationUnknown, CoordinationUnavailable, CoordinationConflict: ask again.
        Unchecked: this connection was not compared with the bucket; ask again once it is.
        Unavailable: `coordination-regressed`.
    """
    owes = numbers.owes or numbers.is_outlived
    lost, bump, key = numbers.lost, numbers.take(owing=owes), instance_key(numbers.instance)
    assert lost is not None, "no commit is lost"

    def decide(values: Values) -> tuple[Changes, Fate]:
        require_generation(values, numbers.generation)
        value = values[key]
        if value is None and is_taken_away(numbers):
            raise coordination_lost()
        if value is None:
            return Changes(), Fate.UNKNOWN
        record = decode_instance(value)
        if record.attempt == lost:
            return Changes(), Fate.APPLIED
        if record.attempt < numbers.attempt or record.generation != numbers.generation:
            raise coordination_lost()
        require_run_of_commit(coordination, numbers)
        return outdating(key, record, bump), Fate.PUT_BACK if owes else Fate.NOT_APPLIED

    fate = await coordination.transact([GENERATION_KEY, key], decide)
    if fate is Fate.APPLIED:
        numbers.decided(lost)
    elif fate is not Fate.UNKNOWN:
        numbers.bumped(bump)
    return fate


@guard("the run of the store, known before a lost commit is taken for none")
def require_run_of_commit(coordination: Coordination, numbers: AttemptNumbers) -> None:
    """Refuse to tell of a lost commit by what may be another run of the store than it was sent to.

    Raises:
        Unchecked
    """
    require_checked(coordination, numbers)
