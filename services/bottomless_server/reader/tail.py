"""The end of a stream, as the reader asks for it, whatever keeps it.

A tail says how far a stream goes, and gives out what is in no fragment yet; asked below what it holds
it answers `moved`, and then a root of the manifest has the rest. It never clamps and never guesses.
Of a stream with an owner that is `owned_tail.py`.

On the record's path: beside fragments.py, which reads what has left the tail.
"""

from dataclasses import dataclass
from typing import Protocol

from bottomless.errors import Unavailable
from bottomless.model.limits import OFFSET_MAX
from bottomless_server.protocol.tail import Bounds, Located
from bottomless_server.reader.streams import StreamFacts


class NoOwnerAnswers(Unavailable):
    """Nobody answers who could say how far a stream goes: what is published is read all the same."""


@dataclass(frozen=True, slots=True)
class TailAnswer:
    bounds: Bounds
    data: bytes | memoryview = b""
    """The bytes of whole committed chunks, the first of which holds the offset asked for."""
    first_offset: int = 0
    next_offset: int = 0
    """The next offset after those chunks."""
    moved: bool = False
    """The offset lies below what the tail still holds: read it from object storage."""
    end_known: bool = True
    """False: nobody answers who knows the end, so the stream goes at least as far as `bounds` say."""


@dataclass(frozen=True, slots=True)
class TailTime:
    """When the record at an offset was committed."""

    bounds: Bounds
    timestamp: int | None = None
    """In ms since 1970; None where no record of the tail is at the offset or after it."""
    moved: bool = False
    """The offset lies below what the tail still holds."""


class Tail(Protocol):
    async def bounds(self, stream: StreamFacts) -> Bounds:
        """What is said of the stream now.

        Raises:
            NotFound: there is no such stream any more.
            Unavailable: nobody answers who could say it.
        """
        ...

    async def chunks(
        self,
        stream: StreamFacts,
        first_offset: int,
        size: int,
        wait_ms: int = 0,
        end: int = OFFSET_MAX + 1,
    ) -> TailAnswer:
        """Chunks from the one that holds `first_offset` on: some `size` bytes, at least one chunk,
        and never a group without its end. Nothing at or beyond `end` is wanted, and may come all the
        same.

        At the end of the stream it waits up to `wait_ms` for the next chunk.

        Raises:
            NotFound, Unavailable: as `bounds`.
            Corrupt: what holds the offset is damaged, or missing.
        """
        ...

    async def time_of(self, stream: StreamFacts, offset: int) -> TailTime:
        """When the record at an offset was committed, or the first one after it.

        Raises:
            NotFound, Unavailable: as `bounds`.
            Corrupt: what holds the offset is damaged, or missing.
        """
        ...

    async def locate(self, stream: StreamFacts, timestamp: int) -> Located:
        """The first chunk of the tail of `timestamp` or later.

        Raises:
            NotFound, Unavailable: as `bounds`.
        """
        ...
