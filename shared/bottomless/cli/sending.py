"""Sending: one batch after the other, each until it is stored.

A batch whose outcome is not known is sent again only by a producer with numbers, of whom
the server knows what it has; without, the sender stops rather than store twice.
"""

import time
from secrets import SystemRandom
from typing import TYPE_CHECKING, Final

from bottomless.errors import Code, Outcome, StoreError

if TYPE_CHECKING:
    from bottomless.client import BottomlessClient

RETRY_SECONDS: Final = 60.0
"""How long one batch is tried."""

_PAUSE_SECONDS: Final = 0.1
_PAUSE_SECONDS_MAX: Final = 5.0


class Sender:
    """Appends to one stream, and knows how far it came."""

    def __init__(
        self, client: "BottomlessClient", stream: str, *, producer: str | None = None
    ) -> None:
        self._client = client
        self._stream = stream
        self._producer = producer
        self._epoch = 0
        self.sequence = 0
        """Number of the next record; of a producer, how many the stream has of it."""
        self.count = 0
        self.first_offset: int | None = None
        self.next_offset: int | None = None

    def begin(self) -> None:
        """See that the stream is there; fence older runs of the producer and learn its number."""
        if self._producer is None:
            self._client.describe(self._stream)
            return
        known = self._client.raise_producer_epoch(self._stream, self._producer)
        self._epoch = known["epoch"]
        self.sequence = 0 if known["last_seq"] is None else known["last_seq"] + 1

    def send(self, body: bytes, media_type: str, count: int) -> None:
        """Append a body of so many records.

        Raises:
            StoreError: it is not stored, or that is not known.
        """
        deadline = time.monotonic() + RETRY_SECONDS
        failures = 0
        while True:
            try:
                self._append(body, media_type)
            except StoreError as error:
                failures += 1
                pause = _pause(failures, error)
                if not self._may_repeat(error) or time.monotonic() + pause > deadline:
                    raise
                time.sleep(pause)
            else:
                self.sequence += count
                self.count += count
                return

    def _append(self, body: bytes, media_type: str) -> None:
        if self._producer is None:
            stored = self._client.append_body(self._stream, body, media_type)
            first, following = stored.first_offset, stored.next_offset
        else:
            answer = self._client.append_numbered(
                self._stream,
                body,
                media_type,
                producer=self._producer,
                epoch=self._epoch,
                sequence=self.sequence,
            )
            first, following = answer["first_offset"], answer["next_offset"]
        if self.first_offset is None:
            self.first_offset = first
        self.next_offset = following

    def _may_repeat(self, error: StoreError) -> bool:
        # A gap is said to be retryable, but here nothing else will send what lies before.
        if not error.retryable or error.code is Code.PRODUCER_SEQUENCE_GAP:
            return False
        return self._producer is not None or error.outcome is Outcome.NONE


def _pause(failures: int, error: StoreError) -> float:
    longest = min(_PAUSE_SECONDS * 2 ** min(failures, 10), _PAUSE_SECONDS_MAX)
    return max(error.retry_after_seconds or 0.0, SystemRandom().uniform(0, longest))
