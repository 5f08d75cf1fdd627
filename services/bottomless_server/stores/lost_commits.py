"""What becomes of a commit to leaderless streams whose reply was lost.

The old EXEC may still be on its way, so looking at the record alone decides nothing: first a new
attempt is written into it, which breaks the watch of that EXEC for ever.
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


class Fate(Enum):
    """What became of a commit whose reply was lost."""

    APPLIED = auto()
    NOT_APPLIED = auto()
    """It never will be: the watch of its EXEC is broken."""
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
        Unavailable: `coordination-regressed`.
    """
    lost, bump, key = numbers.lost, numbers.take(), instance_key(numbers.instance)
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
        return outdating(key, record, bump), Fate.NOT_APPLIED

    fate = await coordination.transact([GENERATION_KEY, key], decide)
    if fate is not Fate.UNKNOWN:
        numbers.decided(lost if fate is Fate.APPLIED else bump)
    return fate
