"""A model of how a stream takes the appends of one strict producer, with trouble where a test wants it.

It answers as services/bottomless_server/ingest does, and keeps values instead of files.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import urlsplit

import pyarrow as pa

from bottomless.formats.batch import decode_message, split_frames
from support.raw_server import Asked, answer, problem

Trouble: TypeAlias = Callable[[Asked, Callable[[], bytes]], bytes | Awaitable[bytes]]
"""What happens to one append instead of its answer, which the second argument makes."""


class _Stored(NamedTuple):
    sequence: int
    record_count: int
    body: bytes
    first_offset: int


class StrictIngest:
    """The script of a RawServer."""

    def __init__(self, *, epoch: int = 0) -> None:
        self.values: list[bytes] = []
        self.batches: list[pa.RecordBatch] = []
        self.epoch = epoch
        self.troubles: deque[Trouble] = deque()
        """One for each of the next appends."""
        self.next_sequence = 0
        self._stored: deque[_Stored] = deque(maxlen=5)

    def __call__(self, asked: Asked) -> bytes | Awaitable[bytes]:
        path = urlsplit(asked.path).path
        if path.endswith("/epoch"):
            self.epoch += 1
            last = self.next_sequence - 1 if self.next_sequence else None
            return answer(value={"epoch": self.epoch, "last_seq": last})
        assert path.endswith("/records")
        if self.troubles:
            return self.troubles.popleft()(asked, lambda: self._append(asked))
        return self._append(asked)

    def _append(self, asked: Asked) -> bytes:
        epoch, first = (
            int(asked.header("producer-epoch") or 0),
            int(asked.header("producer-seq") or 0),
        )
        if epoch < self.epoch:
            return problem(409, "producer-fenced", retryable=False, current_epoch=self.epoch)
        batches = _batches(asked)
        count = sum(batch.num_rows for batch in batches)
        for stored in self._stored:
            if stored[:3] == (first, count, asked.body):
                return _appended(stored.first_offset, count, count)
        if first > 0 and not self.next_sequence and not self.epoch:
            return problem(409, "producer-unknown", retryable=False)
        if first > self.next_sequence:
            return problem(
                409, "producer-sequence-gap", retryable=True, expected_seq=self.next_sequence
            )
        if first < self.next_sequence:
            return problem(409, "producer-sequence-overlap", retryable=False)
        self._stored.append(_Stored(first, count, asked.body, len(self.values)))
        self.next_sequence += count
        self.batches += batches
        for batch in batches:
            values: list[Any] = batch.column("value").to_pylist()
            self.values += values
        return _appended(len(self.values) - count, count, 0)


def _batches(asked: Asked) -> list[pa.RecordBatch]:
    body = asked.body
    encoding: Any = asked.header("content-encoding")
    if encoding is not None:
        with pa.CompressedInputStream(pa.BufferReader(body), encoding) as stream:
            body = stream.read()
    if asked.header("content-type") == "application/vnd.apache.arrow.stream":
        with pa.ipc.open_stream(body) as reader:
            return list(reader)
    return [decode_message(head, stored) for head, stored in split_frames(memoryview(body))]


def _appended(first_offset: int, count: int, duplicates: int) -> bytes:
    value: dict[str, Any] = {
        "first_offset": first_offset,
        "next_offset": first_offset + count,
        "timestamp": "2026-11-21T08:00:00.000Z",
        "count": count - duplicates,
        "duplicates": duplicates,
    }
    return answer(value=value)
