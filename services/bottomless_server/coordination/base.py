"""The protocol of coordination: values, transactions on a few keys, leases, queues, sets.

Values are bytes under text keys. What they mean stands in `stores/`; what a port
promises stands here. No call retries a write, and none reconnects inside a
transaction: a lost reply is an outcome that the caller must hear of.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol, TypeVar

from bottomless.errors import Code, Outcome, Unavailable
from bottomless.guards import guard

T = TypeVar("T")


class CoordinationUnavailable(Unavailable):
    """The store does not answer; nothing was changed."""

    default_code = Code.COORDINATION_UNAVAILABLE


class CoordinationUnknown(Unavailable):
    """The reply to EXEC was lost: the change may have happened, or may still happen.

    Reading back does not decide it, since the old EXEC can still arrive. First make
    it impossible (change a key that it watches, from a new connection), then look.
    """

    default_code = Code.COORDINATION_UNAVAILABLE
    default_outcome = Outcome.UNKNOWN


class CoordinationConflict(Unavailable):
    """Others changed the keys at every one of the allowed attempts; nothing was changed."""

    default_code = Code.COORDINATION_UNAVAILABLE


class StoreRun(NamedTuple):
    """One run of the store's process, from its start to its end."""

    run_id: str
    """No other run has it."""
    up_ms: int
    """How long it has run, by its own clock, which may have been set meanwhile; else it is never more,
    and at most two seconds less, than it has."""


class Due(NamedTuple):
    """One member of a queue that is ordered by time."""

    redis_key: str
    member: bytes
    due_at: int
    """Milliseconds since 1970; a member that is queued again takes the later time."""


class Member(NamedTuple):
    """One member of a set that is ordered by the bytes of its members: an index."""

    redis_key: str
    member: bytes
    present: bool
    """False takes it out."""


class Hold(Enum):
    """What became of asking for a lease. True in a condition where it is held."""

    RENEWED = "renewed"
    """It was held with this value all the time since it was asked for last."""
    TAKEN = "taken"
    """Nobody held it, so it had run out, or was given up: others may have held it meanwhile."""
    REFUSED = "refused"
    """It is held with another value."""

    def __bool__(self) -> bool:
        return self is not Hold.REFUSED


@dataclass(frozen=True, slots=True)
class Changes:
    """What one transaction writes, all of it or nothing."""

    values: Mapping[str, bytes | None] = field(default_factory=dict)
    """New values; None deletes the key, also one of a queue or an index."""
    queued: Sequence[Due] = ()
    members: Sequence[Member] = ()
    requeued: Sequence[Due] = ()
    """Queued too, but one that is queued already becomes at least 1 ms later than it was: so
    `settle` with what was read of the queue before leaves it there, whatever the clocks say."""
    settled: Sequence[Due] = ()
    """Taken out of their queue as `Coordination.settle` does, before anything is queued: in a
    transaction, so that it can depend on what is watched."""

    def __or__(self, other: "Changes") -> "Changes":
        """Both, in one transaction; where both write a value, the other's."""
        return Changes(
            {**self.values, **other.values},
            (*self.queued, *other.queued),
            (*self.members, *other.members),
            (*self.requeued, *other.requeued),
            (*self.settled, *other.settled),
        )


class IndexFull(Exception):
    """An index has as many members as it may have; nothing was changed."""


class Room(NamedTuple):
    """The bound of an index that a member is about to enter."""

    redis_key: str
    """The key of the index."""
    member: bytes
    count_max: int
    others: int = 0
    """So many more members enter with it in the same transaction: all of them find room, or none."""

    @guard("the count of an index in the EXEC that enters it")
    def check(self, changes: Changes, count: int, is_in: bool) -> None:
        """Look whether the member fits, where the index has `count` members.

        Raises:
            IndexFull: the changes put it in, it is not there yet, and there is no room.
        """
        enters = Member(self.redis_key, self.member, True) in changes.members
        if enters and not is_in and count + self.others >= self.count_max:
            raise IndexFull


Values = Mapping[str, bytes | None]
"""Values of watched keys at one moment; None for a key that is absent."""
Decide = Callable[[Values], tuple[Changes, T]]
"""Looks at the watched values, and says what to write and what to tell who asked for it; it raises
to change nothing. It may be called again after a conflict, so it must not have effects of its
own: what it finds out goes into its value, and that of the call that was written is the one that
counts."""


class Coordination(Protocol):
    @property
    def connected_count(self) -> int:
        """How often this process has connected to the store so far.

        As long as it is the same, the same run of the store has answered. Else another one may have
        taken its place, such as a replica that lacked its last changes. It counts new connections of
        any cause, so it says nothing but that.
        """
        ...

    async def get(self, redis_key: str) -> bytes | None:
        """The value, None if absent.

        Raises:
            CoordinationUnavailable
        """
        ...

    async def get_many(self, redis_keys: Sequence[str]) -> list[bytes | None]:
        """The values of several keys, as they are at one moment.

        Raises:
            CoordinationUnavailable
        """
        ...

    async def transact(
        self,
        redis_keys: Sequence[str],
        decide: Decide[T],
        attempts: int = 16,
        room: Room | None = None,
    ) -> T:
        """WATCH the keys, read them, let `decide` decide, MULTI, EXEC.

        After a conflict it reads again and asks `decide` again, `attempts` times in all.
        Returns the value of the decision that was written. Whatever `decide` raises passes through,
        and nothing is written.
        With `room` its index is watched and counted too, so that many at once cannot fill it
        beyond its bound.

        Raises:
            IndexFull: a member that the changes put in has no room.
            CoordinationUnavailable: before EXEC was sent.
            CoordinationUnknown: after EXEC was sent, with no reply.
            CoordinationConflict: every attempt met a change by others.
        """
        ...

    async def hold(self, redis_key: str, value: bytes, ttl_ms: int) -> Hold:
        """Take or renew a lease for `ttl_ms` by the store's clock, and tell which of both it was.

        After `CoordinationUnknown` it may have been taken: the next `RENEWED` then says nothing
        of the time before. A lease key reads as absent once it ran out, and may be among the keys
        of a transaction.

        Raises:
            CoordinationUnavailable, CoordinationUnknown
        """
        ...

    async def release(self, redis_key: str, value: bytes) -> None:
        """Give a lease up, if it is still held with this value.

        Raises:
            CoordinationUnavailable, CoordinationUnknown
        """
        ...

    async def remaining(self, redis_keys: Sequence[str]) -> list[int | None]:
        """How many ms each of these leases still runs by the store's clock; None where nobody
        holds one. A lease that is renewed runs longer than was said.

        Raises:
            CoordinationUnavailable
        """
        ...

    async def due(self, redis_key: str, now: int, limit: int) -> list[Due]:
        """The members of a queue that are due at `now` (ms), earliest first.

        Raises:
            CoordinationUnavailable
        """
        ...

    async def settle(self, dues: Sequence[Due]) -> None:
        """Take members out of their queue, except those queued again for later since.

        Raises:
            CoordinationUnavailable, CoordinationUnknown
        """
        ...

    async def due_at(self, redis_key: str, members: Sequence[bytes]) -> list[int | None]:
        """When each of these members of a queue is due; None of one that is not queued.

        Raises:
            CoordinationUnavailable
        """
        ...

    async def bring_forward(self, redis_key: str, latest: int, limit: int) -> list[Due]:
        """Let members of a queue that are due after `latest` (ms) be due then; returns up to
        `limit` of them as they were. One that is settled, or due earlier, stays as it is.

        Raises:
            CoordinationUnavailable: some of them may be moved; the same again is right.
        """
        ...

    async def members(self, redis_key: str, after: bytes, limit: int) -> list[bytes]:
        """The members of an index that sort after `after`, in the order of their bytes.

        Raises:
            CoordinationUnavailable
        """
        ...

    async def member_count(self, redis_key: str) -> int:
        """How many members an index or a queue has.

        Raises:
            CoordinationUnavailable
        """
        ...

    async def clock(self) -> int:
        """The store's own time in ms since 1970: for comparing clocks.

        Raises:
            CoordinationUnavailable
        """
        ...

    async def fullness(self) -> float:
        """How full the store's memory is: what is used, over the most that may be; 0 where it has
        no limit. A full store refuses every write, also those that make room.

        Raises:
            CoordinationUnavailable
        """
        ...

    async def run(self) -> StoreRun:
        """The run of the store that answers: what one run has answered it does not go back on.

        Raises:
            CoordinationUnavailable
        """
        ...

    async def check(self) -> None:
        """Find out whether the store answers and keeps what it is given.

        Raises:
            CoordinationUnavailable: it does not answer, or its settings lose writes.
        """
        ...

    def hurry(self, seconds: float) -> None:
        """Hurry for a stop: what waits for the store in `seconds` from now, or begins to later,
        fails then as if the store did not answer. Only the first call counts.
        """
        ...

    async def aclose(self) -> None: ...
