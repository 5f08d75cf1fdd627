"""Instances: runs of a writer of WAL objects, as coordination knows them and as the writer does.

An instance has 128 random bits for a name, and gives its objects the sequences 0, 1, 2 and so on:

    0 ... deleted ... settled ... reserved
          objects ->| no commit   | the writer may put and commit
          are gone  | any more    |

Every EXEC that speaks of a flush watches the record and gives it a new `attempt`, a number that is
never used twice: so a lost reply can be decided, and an EXEC that is late finds its watch broken.
"""

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any, Final

import orjson

from bottomless.formats.checks import VERSION, check, corrupt
from bottomless.formats.sealed_json import parse_object
from bottomless.guards import guard
from bottomless.model.limits import TIMESTAMP_MAX, WAL_SEQUENCE_MAX
from bottomless_server.leaderless.attempts import AttemptNumbers

RESERVED_COUNT: Final = 1_024
"""Sequences that are reserved at a time, so that a note needs no coordination."""
RESERVED_LEFT_MIN: Final = 64
"""A commit reserves more where so many are left, or fewer."""


@dataclass(frozen=True, slots=True)
class WalInstance:
    """The record of an instance in coordination. Members stand in the order in which they are
    written; sequences are exclusive ends."""

    url: str | None
    """Internal address of the writer; None for an instance that a rebuild has found."""
    generation: int
    reserved: int
    """The writer puts nothing at or above it."""
    settled: int
    """Below it the instance commits nothing more."""
    deleted: int = 0
    """Below it all objects are gone."""
    attempt: int = 0
    """The number of the writer's last EXEC, be it a commit or one that decides about a lost one."""
    keep_until: int = 0
    """Before this time (ms since 1970) no object of it is deleted; 0 for no such time."""

    def goes_on_as(self, later: "WalInstance") -> bool:
        """Tell whether a record that was read later can have come of this one: nothing goes back."""
        return all(getattr(later, name) >= getattr(self, name) for name in _GROWING)


_GROWING: Final = ("reserved", "settled", "deleted", "attempt")
_NUMBERS: Final = ("generation", "reserved", "settled", "deleted", "attempt", "keep_until")


def encode_instance(record: WalInstance) -> bytes:
    """Encode the record of an instance: JSON."""
    _check(record)
    numbers = {name: getattr(record, name) for name in _NUMBERS}
    return orjson.dumps({"format": VERSION, "url": record.url, **numbers})


def decode_instance(data: bytes) -> WalInstance:
    """Read what `encode_instance` wrote.

    Raises:
        Corrupt: it is not such a value.
    """
    what = "WAL instance"
    members: dict[str, Any] = parse_object(what, data)
    check(what, members.keys() == {"url", *_NUMBERS}, "its members are not those of its version")
    check(what, members["url"] is None or isinstance(members["url"], str), "its url is no text")
    for name in _NUMBERS:
        check(what, type(members[name]) is int, f"{name} is not a number")
    record = WalInstance(**members)
    try:
        _check(record)
    except AssertionError as error:
        raise corrupt(what, "its numbers do not go together") from error
    return record


def _check(record: WalInstance) -> None:
    assert 0 <= record.deleted <= record.settled <= record.reserved <= WAL_SEQUENCE_MAX + 1
    assert 0 <= record.generation < 2**32
    assert 0 <= record.attempt < 2**63
    assert 0 <= record.keep_until <= TIMESTAMP_MAX


class Loss(Enum):
    """Why a writer cannot commit a flush as it is."""

    GONE = auto()
    """The instance has no record any more, or another writes as it: take a new instance, and put
    the flush again."""
    SETTLED = auto()
    """Others took the writer for dead and settled all that it had reserved: take a new instance, and
    put the flush again."""
    REGRESSED = auto()
    """Coordination shows less than it did, or another generation: nothing is committed any more."""


@guard("the reserved sequences in the EXEC of a commit")
def is_reserved(record: WalInstance, end: int) -> bool:
    """Tell whether all sequences below an exclusive end are the writer's to put. What lies above has
    an object that neither the vacuum nor the comparison with the bucket knows anything of."""
    return end <= record.reserved


@guard("the settled sequence in the EXEC of a commit")
def is_settled(record: WalInstance, sequence: int) -> bool:
    """Tell whether a commit of this sequence would come too late: its object may be gone."""
    return sequence < record.settled


@guard("a record that is gone while its writer lives")
def is_taken_away(numbers: AttemptNumbers) -> bool:
    """Tell whether a record that is not there cannot have been forgotten: the vacuum looks at the
    lease of its writer. So coordination has gone back to before the instance began."""
    return numbers.is_held()


def loss_of(record: WalInstance | None, numbers: AttemptNumbers, sequence: int) -> Loss | None:
    """Say why a writer cannot commit its flush of this sequence; None if it can."""
    if record is None:
        return Loss.REGRESSED if is_taken_away(numbers) else Loss.GONE
    if record.generation != numbers.generation or record.attempt < numbers.attempt:
        return Loss.REGRESSED
    if record.attempt > numbers.attempt:
        return Loss.GONE
    return Loss.SETTLED if is_settled(record, sequence) else None


def committed(
    record: WalInstance, *, attempt: int, settled: int, next_sequence: int
) -> WalInstance:
    """Make the record that a commit writes.

    `settled` is the first sequence with anything left to decide; `next_sequence` is the one that the
    writer gives next: where hardly any is left, more are reserved. A writer that has used up all
    sequences that there are begins a new instance.
    """
    assert is_reserved(record, next_sequence), "the writer gave what it has not reserved"
    reserved = record.reserved
    if reserved - next_sequence <= RESERVED_LEFT_MIN:
        reserved = min(reserved + RESERVED_COUNT, WAL_SEQUENCE_MAX + 1)
    settled = min(max(record.settled, settled), reserved)
    return replace(record, attempt=attempt, settled=settled, reserved=reserved)


def settled_whole(record: WalInstance) -> WalInstance:
    """Settle all that a writer reserved which is dead, or ends: what it has not committed it never
    will."""
    return replace(record, settled=record.reserved)
