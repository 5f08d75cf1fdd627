"""What is asked of the engine of queues, and what it answers: values without behaviour, over no wire.

Names of queues are checked by whoever asks (`parse_queue_name`), and so are the bounds of single values;
the engine checks what depends on the state of queues.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from bottomless.model.queue import QueueConfig
from bottomless.model.record import Content
from bottomless_server.queues.core.origin import Origin
from bottomless_server.queues.ledger.base import FileRow, Sums, Totals

StateFilter = Literal["ready", "in-flight", "delayed", "damaged"]
"""Items that a peek shows."""


class OutMessage(NamedTuple):
    """A message to be published."""

    value: bytes | memoryview
    content: Content = Content.BYTES
    headers: Sequence[tuple[str, bytes]] = ()
    priority: int = 0
    """0 to 9, the highest first."""
    delay_ms: int | None = None
    """None: as long as the queue says."""
    ttl_ms: int | None = None
    """How long it is there at most; the queue may have a shorter time. None: as the queue says."""
    dedup_id: str | None = None
    """A second message with the same one stores nothing, for as long as the queue remembers it."""


@dataclass(frozen=True, slots=True)
class PublishRequest:
    """Messages for one or several queues of a tenant: all of them are stored in all queues, or none."""

    tenant: str
    queues: Sequence[str]
    """1 to FAN_OUT_MAX names, each once."""
    messages: Sequence[OutMessage]
    """1 to PUBLISH_COUNT_MAX."""
    principal: str = ""
    """Name of whoever publishes: one key of two principals is two keys."""
    key: str | None = None
    """The `Idempotency-Key` of the request; with one no message has a `dedup_id`."""
    body_hash: bytes = b""
    """SHA-256 of the body, where there is a key: a repeat has the same."""


class PublishedMessage(NamedTuple):
    """What is told of a message that was published."""

    message_id: bytes
    """16 bytes; users see 32 hex digits."""
    sequence: int
    """Its number in the queue, from 0."""
    duplicate: bool
    """Whether it was there before this request, perhaps long gone."""


class PublishedTo(NamedTuple):
    """What a publish has come to in one queue; messages in the order of the request."""

    queue: str
    queue_id: bytes
    messages: Sequence[PublishedMessage]


class PublishAnswer(NamedTuple):
    """What a publish has come to, for each queue in the order of the request."""

    queues: Sequence[PublishedTo]
    replayed: bool
    """Whether the whole request was a repeat, of which nothing was stored now."""


class ReceivedMessage(NamedTuple):
    """A message that a consumer has, until its visibility is over."""

    receipt: str
    message_id: bytes
    sequence: int
    deliveries: int
    """How often it was delivered, with this time."""
    published_at: int
    """Milliseconds since 1970."""
    priority: int
    content: Content
    headers: Sequence[tuple[str, bytes]]
    value: bytes | memoryview
    dead_letter: Origin | None
    """Where it was before, if it came here as a dead letter."""


class Settlement(NamedTuple):
    """What became of receipts, each of which is in one of three ways. None of them is an error."""

    done: int
    """Acknowledged, given back or extended."""
    gone: Sequence[str]
    """No longer in the queue: what a repeated acknowledgement hears."""
    stale: Sequence[str]
    """Delivered again since, and somebody else's."""


class PeekedMessage(NamedTuple):
    """A message as it lies in a queue; nothing was taken."""

    message_id: bytes
    sequence: int
    state: StateFilter
    deliveries: int
    published_at: int
    priority: int
    due_at: int | None
    """When it becomes ready, of a delayed one and of one in flight; ms since 1970."""
    expires_at: int | None
    dead_letter: Origin | None
    content: Content
    headers: Sequence[tuple[str, bytes]]
    value: bytes | memoryview | None
    """None of a message whose bytes are damaged, or are not given by the disk."""


class PeekAnswer(NamedTuple):
    """Messages by their sequences."""

    messages: Sequence[PeekedMessage]
    after: int | None
    """What the next page is asked with; None where there is none."""


class RedriveAnswer(NamedTuple):
    """How many messages moved, and how many ready ones the queue still has, wherever they came from."""

    moved: int
    left: int


@dataclass(frozen=True, slots=True)
class QueueDescription:
    """A queue, its configuration and what is in it, at one moment."""

    queue_id: bytes
    name: str
    config: QueueConfig
    version: int
    """Counts changes of the configuration, from 1; no two states of one queue id share it."""
    sums: Sums
    totals: Totals
    next_sequence: int
    oldest_published_at: int | None
    """Time of the message with the lowest sequence, in ms since 1970."""
    outgoing: int
    """Messages on their way to where the dead letters and the archive of this queue go; those of
    other queues with the same target are counted too."""
    outgoing_waiting_for: str | None = None
    """The code of what they wait for; None where they go on."""
    outgoing_oldest_at: int | None = None
    """When the first of them left its queue, in ms since 1970."""


class Created(NamedTuple):
    """A queue, and whether this request has made it."""

    queue: QueueDescription
    created: bool


class QueuePage(NamedTuple):
    """Queues by their names."""

    queues: Sequence[QueueDescription]
    after: str | None
    """The name after which the next page begins; None where there is none."""
    not_served: Sequence[str] = ()
    """Names of queues that a later release has configured: nothing can be said of them here."""


class OutgoingFigures(NamedTuple):
    """Messages on their way to one target."""

    tenant: str
    kind: str
    """`queue` or `stream`."""
    name: str
    count: int  # type: ignore[assignment]  # no message is looked for in it
    waiting_for: str | None
    """The code of what the target waits for; None where it does not."""


@dataclass(frozen=True, slots=True)
class StorageFigures:
    """What lies on the disk of a node."""

    store_id: bytes
    round: int
    files: Sequence[FileRow]
    disk_bytes: int
    """Bytes of all message files."""
    live_bytes: int
    """Bytes of records that a message needs."""
    ledger_bytes: int
    log_bytes: int
    """Bytes of the ledger's log, which the next checkpoint moves into it."""
    damaged_files: int
    last_v1_file: int | None
    outgoing: Sequence[OutgoingFigures]
    pins: int
    """Reads that are under way."""
    compactions: Mapping[str, int]
    """How many ended in which way since the start."""
    moved_bytes: int
    """Bytes that compactions have copied since the start."""
