"""What queues need of message files, of the registry and of streams.

Rounds call the first two in the one thread of the writer (`rounds/round_writer.py`). `rounds/round_files.py`
has message files on a disk, `directory/registry.py` the registry, `rounds/memory_files.py` both in
memory. Streams are asked in the event loop; `outgoing/memory_streams.py` has some in memory.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from bottomless.formats.message_file import HEADER_SIZE
from bottomless.model.record import Content
from bottomless_server.queues.ledger.base import QueueRow

FIRST_POSITION: Final = HEADER_SIZE
"""Where the first record of a message file lies: the header is before it."""
Record = Sequence[bytes | memoryview]
"""A record in its parts."""


class WriteFailed(Exception):
    """A write was refused or came short: some of it may be in the file, after its end in the ledger."""

    def __init__(self, message: str, *, full: bool = False) -> None:
        super().__init__(message)
        self.full = full
        """Whether the disk has no room."""


class SyncFailed(Exception):
    """A sync failed: what was written may be in the file or not, and a later sync would not tell."""


class Pin(Protocol):
    """Keeps bytes where they are, until it is released; released twice it does nothing."""

    def release(self) -> None: ...


class MessageFiles(Protocol):
    """Message files, as the writer changes them. Errors of the disk are raised as the two above."""

    def write(self, number: int, position: int, records: Sequence[Record], *, create: bool) -> None:
        """Write records at a position by one gathered write.

        With `create` the file is made, with its header before the records; one that is there under
        this number was left by a round that failed, and is replaced. What lies in a file from
        `position` on was left so too.

        Raises:
            WriteFailed: some of it may be there.
        """
        ...

    def sync(self, number: int, *, created: bool) -> None:
        """Return when what was written is durable, and of a file that was created also its name.

        Raises:
            SyncFailed: nobody knows what is.
        """
        ...

    def cut(self, number: int, size: int | None) -> None:
        """Cut a file to a size and sync it; None removes it, if it is there.

        Raises:
            SyncFailed: the file may be longer. It must not be written to any more.
        """
        ...

    def pin(self, file: int, number: int) -> Pin:
        """Let every byte of a file stay where rounds up to `number` have it."""
        ...

    def free_bytes(self) -> int:
        """Room that is left on the disk, in bytes.

        Raises:
            WriteFailed: the disk does not say.
        """
        ...


class Registry(Protocol):
    """Objects beside the ledger, one for each queue, by which a lost ledger is made anew."""

    def write(self, row: QueueRow) -> None:
        """Return when the object of a live queue says what its row says, durably.

        Raises:
            WriteFailed: the old one may be there or the new one.
            NotServed: a later release has configured it; nothing is written.
        """
        ...

    def remove(self, queue_id: bytes) -> None:
        """Return when a deleted queue has no object, durably.

        Raises:
            WriteFailed: it may be there.
        """
        ...


class OutgoingRecord(NamedTuple):
    """A message on its way to a stream, as the record that it becomes."""

    number: int
    """Its publishing id."""
    value: bytes | memoryview
    content: Content
    headers: Sequence[tuple[str, bytes]]
    event_time: int
    """When it was published in its queue, in ms since 1970."""


class RecordRefused(Exception):
    """A stream refuses a record for itself, and nothing of the request is stored."""

    def __init__(self, number: int) -> None:
        super().__init__(f"the stream refuses the record {number}")
        self.number = number


class OutgoingStreams(Protocol):
    """Streams that messages of queues go to."""

    async def require(self, tenant: str, stream: str) -> None:
        """Ask whether there is a stream of this name.

        Raises:
            NotFound: there is none, or a super stream has the name.
            StoreError: nobody knows.
        """
        ...

    async def last_id(self, tenant: str, stream: str, producer: str) -> int | None:
        """The highest publishing id that the stream knows of a producer; None where it knows none.

        Raises:
            StoreError: it does not say; the target waits.
        """
        ...

    async def append(
        self, tenant: str, stream: str, producer: str, records: Sequence[OutgoingRecord]
    ) -> None:
        """Append records whose numbers grow, in highwater mode: those up to the highest known id
        are there already, and are not appended again. Returns when all of them are there.

        Raises:
            RecordRefused: one is refused for itself (too large, say); none of them is stored.
            StoreError: anything else; some may be stored, and the target waits.
        """
        ...
