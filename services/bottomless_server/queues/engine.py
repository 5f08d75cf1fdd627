"""The engine of queues in one process: a directory with a ledger and message files, and all that is done there.

    DIR/ledger.db  ledger.db-wal    the truth about queues, items and places
        registry/{queue_id}.json    what a rebuild of a lost ledger needs of each queue
        messages/{n}.sqs            bodies
        aside/                      for an operator

One process has a directory open; whoever opens it holds its lock. All methods are for one event loop.
A method that changes something returns when that is durable. What it raises says with its `outcome`
whether something is stored all the same; `Overloaded` and `Unavailable` say when to come again.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bottomless.model.queue import QueueConfig
from bottomless_server.node.file_calls import FileCalls
from bottomless_server.queues.calls import (
    Created,
    PeekAnswer,
    PublishAnswer,
    PublishRequest,
    QueueDescription,
    QueuePage,
    ReceivedMessage,
    RedriveAnswer,
    Settlement,
    StateFilter,
    StorageFigures,
)
from bottomless_server.queues.ports import OutgoingStreams
from bottomless_server.queues.settings import EngineSettings
from bottomless_server.queues.store.start import StartReport


class QueueEngine:
    """All queues of one node. `open` makes one; `close` ends it."""

    @classmethod
    async def open(
        cls,
        directory: Path,
        settings: EngineSettings,
        clock: Callable[[], int],
        *,
        files: FileCalls | None = None,
        streams: OutgoingStreams | None = None,
    ) -> "QueueEngine":
        """Open a directory, make its files and its ledger agree, and begin.

        `clock` gives the wall clock in ms since 1970 as far as it is believed, or raises what is
        then answered (`clock-skew`). Without `streams` what is on its way to streams waits.

        Raises:
            CannotStart: an operator has to look first; nothing was changed.
            OSError: the disk does not work.
        """
        raise NotImplementedError

    async def close(self) -> None:
        """Answer everybody, waiting receives with nothing, and leave the directory in order.

        What is asked from now on hears `draining`. May be called again.
        """
        raise NotImplementedError

    def stop_waiting(self) -> None:
        """Answer all waiting receives with nothing, and let none wait from now on."""
        raise NotImplementedError

    @property
    def start_report(self) -> StartReport:
        """What the start has found and done."""
        raise NotImplementedError

    # Queues

    async def create_queue(self, tenant: str, name: str, config: QueueConfig) -> Created:
        """Make a queue; one that is there with the same configuration is the answer.

        Raises:
            Exists: `queue-exists`, with the fact `differences`.
            InvalidRequest: `validation-failed`: dead letters would come back to it.
            Overloaded: `quota-exceeded`.
        """
        raise NotImplementedError

    async def describe_queue(self, tenant: str, name: str) -> QueueDescription:
        """What a queue is and has.

        Raises:
            NotFound: `queue-not-found`, as of every method below that names a queue.
        """
        raise NotImplementedError

    async def list_queues(
        self, tenant: str, *, prefix: str = "", after: str = "", limit: int = 100
    ) -> QueuePage:
        """Queues of a tenant by their names, those that sort after `after`."""
        raise NotImplementedError

    async def update_queue(
        self, tenant: str, name: str, patch: object, *, queue_id: bytes, version: int
    ) -> QueueDescription:
        """Apply a merge patch to the configuration, if the queue is still that of `queue_id` and
        the configuration still that of `version`.

        Raises:
            WrongOffset: `etag-mismatch`.
            InvalidRequest: `validation-failed`.
        """
        raise NotImplementedError

    async def delete_queue(self, tenant: str, name: str, *, if_empty: bool = False) -> None:
        """Delete a queue with all that is in it; its name is free at once.

        Raises:
            Exists: `queue-not-empty`, or `queue-in-use`, with the facts `queue` and `count`: dead
                letters of others go there.
        """
        raise NotImplementedError

    # Messages

    async def publish(self, request: PublishRequest) -> PublishAnswer:
        """Store messages in queues: all in all of them, or none.

        Raises:
            NotFound: `queue-not-found`, with the fact `queue`.
            InvalidRequest: `idempotency-mismatch`: the key or a `dedup_id` was used for something else.
            Overloaded: `queue-full`, with the fact `queue`; `disk-bound`; `quota-exceeded`: a queue
                remembers as many repeats as it can; `overloaded`.
            Unavailable: `storage-full`, `storage-failed`, `clock-skew`, `draining`.
        """
        raise NotImplementedError

    async def receive(
        self,
        tenant: str,
        name: str,
        *,
        limit: int = 10,
        bytes_max: int = 4 * 2**20,
        visibility_ms: int | None = None,
        wait_ms: int = 0,
        allowed: Callable[[], bool] | None = None,
    ) -> Sequence[ReceivedMessage]:
        """Take up to `limit` messages of at most `bytes_max` bytes of records together, but one at
        least if one is ready; wait for some for up to `wait_ms`.

        `allowed` is asked once more after messages were found: where it says no they are given
        back and nothing is returned. A caller that is cancelled takes nothing.

        Raises:
            Overloaded: too many wait for messages of this queue.
        """
        raise NotImplementedError

    def give_back(self, tenant: str, name: str, messages: Sequence[ReceivedMessage]) -> None:
        """Let others have at once what was received and could not be sent to whoever asked."""
        raise NotImplementedError

    async def ack(self, tenant: str, name: str, receipts: Sequence[str]) -> Settlement:
        """Their consumer is done with these messages: they are gone, or on their way to the archive."""
        raise NotImplementedError

    async def nack(
        self,
        tenant: str,
        name: str,
        receipts: Sequence[str],
        *,
        delay_ms: int = 0,
        dead_letter: bool = False,
    ) -> Settlement:
        """Their consumer gives these messages back, or rejects them as dead letters."""
        raise NotImplementedError

    async def extend(
        self, tenant: str, name: str, receipts: Sequence[str], visibility_ms: int | None = None
    ) -> Settlement:
        """Their consumer wants these messages for longer, from now on."""
        raise NotImplementedError

    async def peek(
        self,
        tenant: str,
        name: str,
        *,
        after: int | None = None,
        limit: int = 10,
        state: StateFilter | None = None,
        bytes_max: int = 4 * 2**20,
    ) -> PeekAnswer:
        """Look at messages in order of their sequences, of those after `after`."""
        raise NotImplementedError

    async def purge(self, tenant: str, name: str, *, damaged: bool = False) -> int:
        """Remove everything, in flight too, or what is damaged alone; returns how many."""
        raise NotImplementedError

    async def redrive(
        self, tenant: str, name: str, *, limit: int = 1_000, to: str | None = None
    ) -> RedriveAnswer:
        """Publish ready messages anew, the oldest first, where each was before it came here as a
        dead letter, or in the queue `to`; they are gone from here.

        Raises:
            NotFound: `queue-not-found`, with the fact `queue`: where the first one would go there
                is no queue.
        """
        raise NotImplementedError

    # Operators

    async def storage(self) -> StorageFigures:
        """What lies on the disk."""
        raise NotImplementedError

    async def compact(self) -> int:
        """Have all sealed files with a gap compacted soon, without a pause; returns how many."""
        raise NotImplementedError

    def metrics(self) -> dict[str, Any]:
        """Figures since the start, by their names, without names of queues."""
        raise NotImplementedError
