"""A source as the body of one PUT: sent block by block, and never to its end where it is not right.

The PUT says how many bytes come and which CRC-32C they have; both stand in the signed head. The
last block is sent only when all bytes together have that sum. So a source that fails, or gives
other bytes, ends a request whose body is too short, which no store takes for an object.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from bottomless.drives.base import Source
from bottomless.errors import StoreError
from bottomless.formats.checks import crc32c
from bottomless_server.drives.checked_parts import blocks_of, require_sum


class SentSource:
    """What the library is given as a body, and what its HTTP client iterates over."""

    def __init__(self, source: Source, crc: int) -> None:
        self._source = source
        self._crc = crc
        self._failure: StoreError | None = None

    def read(self, *_: object) -> bytes:
        """The library takes nothing for a body that cannot be read; it is never called."""
        raise NotImplementedError

    def __aiter__(self) -> AsyncIterator[memoryview]:
        return self._blocks()

    @contextmanager
    def told_of_failures(self) -> Iterator[None]:
        """Raise what befell the source, whatever the client made of a body that ended early.

        Nothing is stored then: the store waits for bytes that do not come.
        """
        try:
            yield
        except StoreError:
            if self._failure is not None:
                raise self._failure from None
            raise

    async def _blocks(self) -> AsyncIterator[memoryview]:
        found = sent = 0
        try:
            async for block in blocks_of(self._source):
                found, sent = crc32c(block, found), sent + len(block)
                if sent == self._source.size:
                    require_sum(found, self._crc)
                yield block
        except StoreError as error:
            self._failure = error
            raise
