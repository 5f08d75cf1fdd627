"""Sending: one batch after the other, each until it is stored.

Only for a producer with numbers does the client send a batch again whose outcome is not known,
since the server then knows what it has; otherwise it stops rather than store records twice.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer

from bottomless.cli.outages import RETRY_SECONDS, LongWait, told_by_an_owner
from bottomless.cli.super_names import is_super_stream
from bottomless.errors import Code, Denied, NotFound

if TYPE_CHECKING:
    from bottomless.client import Client


class Sender:
    """Appends to one stream, and knows how far it has come."""

    def __init__(
        self, client: "Client", stream: str, waits: LongWait, *, producer: str | None = None
    ) -> None:
        self._client = client
        self._stream = stream
        self._waits = waits
        self.producer = producer
        self._epoch = 0
        self.sequence = 0
        """Number of the next record; of a producer, how many the stream has of it."""
        self.count = 0
        """Records that are stored."""
        self.pending = 0
        """Records of the request that is under way, or was given up."""
        self.first_offset: int | None = None
        self.next_offset: int | None = None

    def begin(self) -> None:
        """Check that the stream exists.

        Fence older runs of the producer and learn its next number, from the owner of the stream,
        which is waited for as with a batch.
        """
        if self.producer is None:
            try:
                self._client.describe(self._stream)
            except Denied as error:
                # A key that only appends may not look; what is not there its append will say.
                if error.code is not Code.FORBIDDEN:
                    raise
            return
        self._fence(self.producer, self._client.raise_producer_epoch)

    def _fence(self, producer: str, raised: Callable[[str, str], dict[str, Any]]) -> None:
        known = told_by_an_owner(self._waits, lambda: raised(self._stream, producer))
        self._epoch = known["epoch"]
        self.sequence = 0 if known["last_seq"] is None else known["last_seq"] + 1

    def send(self, body: bytes, media_type: str, count: int) -> None:
        """Append a body of `count` records.

        Raises:
            StoreError: it is not stored, or that is not known.
        """
        self.pending = count
        if self.producer is None:
            stored = self._client.append_body(
                self._stream, body, media_type, retry_seconds=RETRY_SECONDS
            )
        else:
            stored = self._client.append_numbered(
                self._stream,
                body,
                media_type,
                producer=self.producer,
                epoch=self._epoch,
                sequence=self.sequence,
                retry_seconds=RETRY_SECONDS,
            )
        if self.first_offset is None:
            self.first_offset = stored.first_offset
        self.next_offset = stored.next_offset
        self.sequence += count
        self.count += count
        self.pending = 0


class SuperSender(Sender):
    """Appends to one super stream: its records have places in several partitions."""

    def begin(self) -> None:
        """Fence older runs of the producer in all partitions, and learn its next number."""
        if self.producer is not None:
            self._fence(self.producer, self._client.raise_super_producer_epoch)

    def send(self, body: bytes, media_type: str, count: int) -> None:
        """Append a body of `count` records, each to the partition of its key.

        Raises:
            StoreError: it is not stored, or in part, or that is not known.
        """
        self.pending = count
        if self.producer is None:
            self._client.append_super_body(
                self._stream, body, media_type, retry_seconds=RETRY_SECONDS
            )
        else:
            self._client.append_super_numbered(
                self._stream,
                body,
                media_type,
                producer=self.producer,
                epoch=self._epoch,
                sequence=self.sequence,
                retry_seconds=RETRY_SECONDS,
            )
        self.sequence += count
        self.count += count
        self.pending = 0


def begun(
    client: "Client", stream: str, waits: LongWait, producer: str | None, *, resume: bool
) -> Sender:
    """Make the sender for a stream, or for a super stream where the name is one's, and begin.

    Raises:
        NotFound: there is neither.
        typer.BadParameter: a super stream is to be resumed.
    """
    sender = Sender(client, stream, waits, producer=producer)
    try:
        sender.begin()
    except NotFound as error:
        if error.code is not Code.STREAM_NOT_FOUND or not is_super_stream(client, stream):
            raise
        if resume:
            raise typer.BadParameter(
                "a request that was cut off may be stored in some partitions of a super stream and "
                "not in others, so nobody can say after which record to go on",
                param_hint="--resume",
            ) from error
        sender = SuperSender(client, stream, waits, producer=producer)
        sender.begin()
    return sender
