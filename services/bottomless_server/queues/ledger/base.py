"""The port to the ledger: the one truth about queues, their items and the places of their messages.

A *round* is one transaction: begun, changed, committed. Each change of a round stands in a savepoint
of its own, so that a refused one leaves nothing. Nothing outside a round changes anything.
Who decides is not the ledger: it keeps rows, and keeps them consistent. At the end of every call

- a message has as many `refs` as items and outgoing rows name it, and goes with the last of them;
- a file's `valid` is the sum of the sizes of its messages, and a sealed file without any is doomed;
- the sums of a queue are what its items add up to;
- no sequence, `inside`, file number or outgoing number is given twice.

What is on disk after a crash: all rounds whose `commit` returned. One whose `commit` was under way
or raised is there whole or not at all, and `StoreRow.round` says which. Nothing of others is there.

One thread has a ledger, from opening to closing. An error of the database ends the round: until
`rollback` or `reopen` every call raises `LedgerFailed` (docs/decisions/0088).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from bottomless_server.queues.core.states import FileState, ItemState, QueueState

NUMBER_MAX: Final = 2**63 - 1
"""Every number of the ledger is below 2^63."""
FORMAT: Final = 2
ID_SIZE: Final = 16
FORGET_LATE_MS: Final = 1_000
"""How much later than it could a publish is forgotten, so that those of a second are forgotten at once."""
SEQUENCE_BLOCK: Final = 2**20
"""Sequences are reserved in the registry in blocks of this size, before one of them is used."""


def reserved_above(next_sequence: int) -> int:
    """Sequences below are to be reserved of a queue that goes on at one: a block at least is left."""
    return (next_sequence // SEQUENCE_BLOCK + 2) * SEQUENCE_BLOCK


class LedgerFailed(Exception):
    """The database refused a call, and with it the round."""

    def __init__(self, message: str, *, full: bool = False) -> None:
        super().__init__(message)
        self.full = full
        """Whether the disk has no room."""


class LedgerDamaged(LedgerFailed):
    """The database is damaged, or is no ledger: it is made anew from the message files."""


class LedgerNotServed(LedgerFailed):
    """A later release wrote the ledger, and can read it."""


class StoreRow(NamedTuple):
    """What there is once in a ledger."""

    store_id: bytes
    """Made anew with each ledger, so that a receipt of an earlier one is good for nothing."""
    round: int
    """Number of the last round that was committed."""
    clean: bool
    """Whether that was the last round of an orderly stop."""
    clock: int
    """Highest time that a round was given, in ms since 1970."""
    next_file: int
    """Number of the next message file; none is used twice."""
    last_v1_file: int | None
    """Highest number of a message file of version 1."""


class FileRow(NamedTuple):
    """A message file."""

    number: int
    size: int
    """Bytes that count; what lies after them in the file is cut at a start."""
    valid: int
    """Bytes of records that a message needs."""
    state: FileState


class Sums(NamedTuple):
    """How many items a queue has in each state, and how many bytes their records have."""

    ready: int = 0
    in_flight: int = 0
    delayed: int = 0
    damaged: int = 0
    bytes: int = 0

    @property
    def item_count(self) -> int:
        return self.ready + self.in_flight + self.delayed + self.damaged


class Totals(NamedTuple):
    """What has become of the messages of a queue since it was made."""

    published: int = 0
    delivered: int = 0
    redelivered: int = 0
    acked: int = 0
    expired: int = 0
    dead_lettered: int = 0
    dropped: int = 0
    duplicates: int = 0
    rejected: int = 0
    """What consumers rejected, whether it became a dead letter or is gone."""
    purged: int = 0
    refused: int = 0
    """Messages of publishes that were refused since the queue was full."""


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A queue."""

    queue_id: bytes
    tenant: str
    name: str
    config: str
    """JSON, which the ledger does not look into."""
    version: int
    """Counts changes of the configuration, from 1."""
    state: QueueState
    inside: int
    """The number under which its items stand; a purge gives it another one."""
    next_sequence: int
    reserved_below: int
    """Sequences below are reserved in the registry, as of the last round."""
    purged_below: int
    """Messages below were purged; a rebuild brings none of them back."""
    remembered: int
    """Rows of `Seen` that it has."""
    sums: Sums
    totals: Totals


class Message(NamedTuple):
    """A message, whatever queues it is in, and where its record lies."""

    id: int
    msg_id: bytes
    file: int
    position: int
    size: int
    """Bytes of the whole record."""


class Item(NamedTuple):
    """Place and state of a message in one queue."""

    inside: int
    sequence: int
    state: ItemState
    priority: int
    due_at: int | None
    """When it becomes ready, of a delayed one and of one in flight; None of others."""
    expires_at: int | None
    published_at: int
    deliveries: int
    origin: bytes | None
    """Where it was before it came here as a dead letter; the ledger does not look into it."""


class Stored(NamedTuple):
    """An item with its message."""

    item: Item
    message: Message


class NewMessage(NamedTuple):
    """A message whose record is about to be written, and the items that it gets, one in each queue."""

    msg_id: bytes
    file: int
    position: int
    size: int
    items: Sequence[Item]


class Seen(NamedTuple):
    """What a queue remembers of a publish, to answer its repeats."""

    key_hash: bytes
    body_hash: bytes
    sequence: int
    """Sequence of its first message."""
    msg_id: bytes
    """Id of its first message; those of the others count up by one."""
    message_count: int
    until: int
    """When it is forgotten, in ms since 1970."""


class Target(NamedTuple):
    """Where messages go that leave a queue: another queue, or a stream."""

    id: int
    tenant: str
    kind: str
    """`queue` or `stream`."""
    name: str
    next_number: int
    """Number of its next outgoing row; none is given twice."""


class Outgoing(NamedTuple):
    """A message on its way to a target."""

    target: int
    number: int
    origin: bytes
    """Where it was and why it left; the ledger does not look into it."""
    message: Message


class Move(NamedTuple):
    """A record that compaction or a rewrite has copied."""

    msg_id: bytes
    file: int
    position: int
    new_file: int
    new_position: int


class Ledger(Protocol):
    """The ledger of one store. What it returns are values; rows change by its methods only.

    Raises:
        LedgerFailed: of every method but `rollback`, `reopen` and `close`.
    """

    # Rounds

    def begin(self) -> int:
        """Begin a round, and return its number: one more than that of the last committed one."""
        ...

    def savepoint(self) -> None:
        """Begin a change within the round; exactly one of `keep` and `undo` ends it."""
        ...

    def keep(self) -> None: ...

    def undo(self) -> None:
        """Take back all since `savepoint`."""
        ...

    def commit(self) -> None:
        """Return when the round is durable. If it raises nobody knows whether it is: `reopen`."""
        ...

    def rollback(self) -> None:
        """Take the round back, also one that an error has ended.

        Raises:
            LedgerFailed: it could not be; `reopen`.
        """
        ...

    def reopen(self) -> None:
        """Close and open, and make durable once more what is found; `store().round` then tells
        whether the last round is there.

        Raises:
            LedgerFailed: nothing is known yet; again.
        """
        ...

    def checkpoint(self) -> None:
        """Move what was committed from the log into the database. Outside a round; an error of it is
        as that of a `commit`.
        """
        ...

    @property
    def log_size(self) -> int:
        """Bytes that a checkpoint would have to move, about."""
        ...

    def close(self) -> None:
        """Close; a round that is open is taken back."""
        ...

    # The store

    def store(self) -> StoreRow: ...

    def set_store_id(self, store_id: bytes) -> None:
        """Give the store another id: receipts of before are good for nothing then."""
        ...

    def set_clean(self, *, clean: bool) -> None: ...

    def set_clock(self, clock: int) -> None:
        """Raise the clock; a lower value changes nothing."""
        ...

    def set_last_v1_file(self, number: int | None) -> None: ...

    # Files

    def add_file(self, state: FileState) -> int:
        """Enter a file without bytes, open or moving, and return its number."""
        ...

    def restore_file(self, number: int) -> None:
        """Enter a moving file that was found, under the number that it has; no row has it."""
        ...

    def file(self, number: int) -> FileRow | None: ...

    def files(self) -> list[FileRow]:
        """All files, by their numbers."""
        ...

    def set_file_size(self, number: int, size: int) -> None: ...

    def set_file_state(self, number: int, state: FileState) -> FileState:
        """Returns the state that it has now: one that is sealed without a live record is doomed."""
        ...

    def remove_file(self, number: int) -> None:
        """Remove the row of a file that no message is in."""
        ...

    def live(self, number: int) -> list[Message]:
        """Messages of a file, by their positions."""
        ...

    def move(self, moves: Sequence[Move]) -> int:
        """Give messages new places, those that are where the moves say still; returns how many."""
        ...

    # Queues

    def create_queue(self, queue_id: bytes, tenant: str, name: str, config: str) -> QueueRow:
        """Make a queue whose name no live one of the tenant has; its registry object is due."""
        ...

    def restore_numbers(
        self, queue_id: bytes, *, version: int, next_sequence: int, purged_below: int
    ) -> None:
        """Let the numbers of a queue go on where those of a lost ledger may have come to; lower ones
        change nothing. Its registry object is due.
        """
        ...

    def queue(self, queue_id: bytes) -> QueueRow | None:
        """A queue, also a deleted one while its row is there."""
        ...

    def queue_named(self, tenant: str, name: str) -> QueueRow | None:
        """The live queue of a name."""
        ...

    def queue_inside(self, inside: int) -> QueueRow | None:
        """The live queue whose items stand under a number; None of a number that is doomed."""
        ...

    def queues(self, tenant: str, after: str, count: int) -> list[QueueRow]:
        """Live queues of a tenant by their names, of those that sort after `after`."""
        ...

    def queue_count(self, tenant: str) -> int: ...

    def sums(self) -> Sums:
        """Sums of all live queues together; it looks at each queue."""
        ...

    def set_config(self, queue_id: bytes, config: str) -> None:
        """Change the configuration; its registry object is due."""
        ...

    def reserve(self, queue_id: bytes, below: int) -> None:
        """Say that the registry has to reserve sequences below a number; its object is due."""
        ...

    def purge(self, queue_id: bytes) -> int:
        """Take all items out of a queue and doom them; returns their number. Registry object due."""
        ...

    def delete_queue(self, queue_id: bytes) -> None:
        """Delete a queue and doom its items. Its name is free; its registry object is due."""
        ...

    def sweep(self, count: int) -> int:
        """Remove up to `count` doomed items; returns how many. Fewer than asked: none is left."""
        ...

    def add_totals(self, queue_id: bytes, totals: Totals) -> None: ...

    def registry_due(self, count: int) -> list[QueueRow]:
        """Queues whose registry object is not what their row says."""
        ...

    def settle_registry(self, queue_ids: Iterable[bytes]) -> None:
        """Say that their registry objects are written or, of deleted queues, removed; the rows of these go."""
        ...

    # Items

    def add_messages(self, messages: Sequence[NewMessage]) -> None:
        """Enter messages with their items.

        The sequences of a queue's items go on at its `next_sequence`, without a hole. A message has a
        place that no other has, in a file that has a row and is not doomed.
        """
        ...

    def restore_messages(self, messages: Sequence[NewMessage]) -> None:
        """Enter messages that were found on a disk: in any order, with holes between sequences.

        A message whose place has a row gets further items. A queue goes on above all of its items.
        """
        ...

    def ready(self, inside: int, count: int) -> list[Stored]:
        """Up to `count` ready items as they are delivered: by priority, the highest first, then sequence."""
        ...

    def items(self, inside: int, sequences: Sequence[int]) -> dict[int, Stored]:
        """Items of these sequences, those that are there."""
        ...

    def page(self, inside: int, at_least: int, count: int) -> list[Stored]:
        """Items by their sequences, from one on."""
        ...

    def damaged(self, inside: int, count: int) -> list[Stored]:
        """Damaged items, by their sequences."""
        ...

    def items_in_file(self, number: int, count: int) -> list[Stored]:
        """Items of a file that are not damaged yet, in no order; it may look at all items of the ledger."""
        ...

    def due(self, now: int, count: int) -> list[Stored]:
        """Items in flight or delayed whose `due_at` is not after `now`, the earliest first."""
        ...

    def expired(self, now: int, count: int) -> list[Stored]:
        """Items whose `expires_at` is not after `now`, but for those in flight and damaged ones."""
        ...

    def next_due(self) -> int | None:
        """When the next item becomes due or expires, or FORGET_LATE_MS after a publish may be forgotten."""
        ...

    def change_items(self, changes: Sequence[tuple[Stored, Item]]) -> None:
        """Give items, as they were just read, new state, `due_at` and `deliveries`."""
        ...

    def expire_later(self, stored: Sequence[Stored], at: int) -> None:
        """Let items, as they were just read, expire at a later time than they say."""
        ...

    def remove_items(self, stored: Sequence[Stored]) -> None:
        """Remove items as they were just read, each once."""
        ...

    # Repeats

    def seen(self, queue_id: bytes, key_hash: bytes) -> Seen | None: ...

    def remember(self, queue_id: bytes, seen: Seen) -> None:
        """Remember a publish; one that was remembered under the same key gives its place up."""
        ...

    def forget_seen(self, now: int, count: int) -> int:
        """Forget up to `count` publishes whose `until` is not after `now`; returns how many."""
        ...

    # Outgoing

    def target(self, tenant: str, kind: str, name: str) -> Target:
        """A target; it is made the first time that it is asked for, and stays."""
        ...

    def targets(self) -> list[Target]:
        """All targets, by their ids."""
        ...

    def set_next_number(self, target: int, number: int) -> None:
        """Let numbers go on at one that is at least the next; a lower one changes nothing."""
        ...

    def send_out(self, target: int, items: Sequence[tuple[Stored, bytes]]) -> None:
        """Make outgoing rows of items, as they were just read, in this order; the items are gone."""
        ...

    def outgoing(self, target: int, count: int) -> list[Outgoing]:
        """The first outgoing rows of a target, by their numbers."""
        ...

    def renumber(self, target: int, number: int) -> int:
        """Let a row step aside to the end of its target's; returns its new number."""
        ...

    def remove_outgoing(self, target: int, numbers: Sequence[int]) -> None:
        """Remove rows that arrived; their messages go with the last that names them."""
        ...

    def outgoing_counts(self) -> Mapping[int, int]:
        """How many rows each target has, of those that have any; it looks at all targets."""
        ...

    # For tests and operators

    def check(self) -> list[str]:
        """Everything that the rows say of each other and that is not so; it looks at all of them."""
        ...
