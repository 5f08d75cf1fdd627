"""What a change does within a round, and what becomes of it: between `round_writer.py` and all changes."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from operator import add
from typing import Any, NamedTuple, Protocol

from bottomless.errors import Code, Outcome, Unavailable
from bottomless_server.queues.ledger.base import Ledger, Totals
from bottomless_server.queues.ports import Pin, Record
from bottomless_server.queues.rounds.round_bodies import Place, RoundBodies


class Work:
    """What a change has while it is applied; it keeps nothing of it."""

    def __init__(self, ledger: Ledger, number: int, now: int, ways: "Ways") -> None:
        self.ledger = ledger
        self.number = number
        """The number of the round."""
        self.now = now
        """The time of the round, in ms since 1970; never less than that of one before."""
        self.made_ready: Counter[bytes] = Counter()
        """How many messages became ready in which queue."""
        self.is_busy = False
        """Whether anybody has asked for something in this round or one shortly before."""
        self.needs_upkeep = False
        """Set by a change that leaves work to be done in further rounds."""
        self.sent_out: set[int] = set()
        """Targets that got outgoing rows."""
        self.totals = Totals()
        """What has become of messages, of all queues together."""
        self.dead_lettered: Counter[str] = Counter()
        """How many messages became dead letters, by the reason."""
        self._refused: list[tuple[bytes, Totals]] = []
        self._ways = ways

    def add_record(self, record: Record) -> Place:
        """Take the record of a message, in its parts, and say where it is about to be.

        Raises:
            StoreError: `storage-full` or `storage-failed`: no record can be stored at present.
        """
        return self._ways.bodies.add(record)

    def pin(self, file: int) -> Pin:
        """Let the bytes of a file stay where this round knows them; whoever gets the answer releases
        it.
        """
        return self._ways.pin(file)

    def wake(self, queue_id: bytes, count: int) -> None:
        """Say that messages of a queue became ready, for those who wait there."""
        self.made_ready[queue_id] += count

    def count(self, queue_id: bytes, totals: Totals) -> None:
        """Add to what has become of the messages of a queue."""
        self.ledger.add_totals(queue_id, totals)
        self.totals = sum_of(self.totals, totals)

    def count_if_refused(self, queue_id: bytes, totals: Totals) -> None:
        """Add to what has become of messages once the change is refused: all that stays of it."""
        self._refused.append((queue_id, totals))

    def settle_refused(self) -> None:
        """Count what `count_if_refused` was told; for the writer, once the change is taken back."""
        self.totals = Totals()
        for queue_id, totals in self._refused:
            self.count(queue_id, totals)

    def require_registry(self, queue_id: bytes) -> None:
        """Refuse to go on with a queue whose registry object could not be written.

        Raises:
            Unavailable: `storage-failed`.
        """
        if queue_id in self._ways.unwritten:
            raise not_stored()


class Look:
    """What somebody has who only looks, between two rounds."""

    def __init__(self, ledger: Ledger, pin: Callable[[int, int], Pin]) -> None:
        self.ledger = ledger
        self._pin = pin

    def pin(self, file: int) -> Pin:
        """Let the bytes of a file stay where the ledger has them now; whoever looked releases it."""
        return self._pin(file, self.ledger.store().round)


class Ways(NamedTuple):
    """What a change reaches beside the ledger."""

    bodies: RoundBodies
    pin: Callable[[int], Pin]
    unwritten: frozenset[bytes]


class Change(Protocol):
    """Something that is asked of queues."""

    @property
    def size(self) -> int:
        """Bytes that it keeps in memory while it waits."""
        ...

    def apply(self, work: Work) -> Any:
        """Do it, within a savepoint, and return the answer. It may be done again after the first
        time was taken back.

        Raises:
            StoreError: it is refused; nothing of it stays.
        """
        ...


class Asked(NamedTuple):
    """A change, and whether anybody still wants its answer."""

    change: Change
    is_wanted: Callable[[], bool]


class Verdict(NamedTuple):
    """What became of a change."""

    answer: Any = None
    error: Exception | None = None
    """What is raised instead of the answer. With both it was done, and what it took goes back."""


class Ended(NamedTuple):
    """What became of a round."""

    verdicts: Sequence[Verdict]
    made_ready: Mapping[bytes, int]
    """How many messages became ready in which queue."""
    next_due: int | None
    """When something is to be done by itself, in ms since 1970."""
    needs_upkeep: bool = False
    """Whether something is to be done by itself now."""
    sent_out: frozenset[int] = frozenset()
    """Targets that got outgoing rows."""
    totals: Totals = Totals()
    """What has become of messages, of all queues together."""
    dead_lettered: Mapping[str, int] = {}
    """How many messages became dead letters, by the reason."""


def sum_of(one: Totals, other: Totals) -> Totals:
    """Totals together."""
    return Totals(*map(add, one, other))


def not_stored(
    *, full: bool = False, outcome: Outcome = Outcome.NONE, code: Code | None = None
) -> Unavailable:
    """What is said of a change that the disk did not take."""
    return Unavailable(
        "the disk of this node is full" if full else "the disk of this node failed",
        code=code or (Code.STORAGE_FULL if full else Code.STORAGE_FAILED),
        outcome=outcome,
        retry_after_seconds=5,
    )
