"""A source as the body of one PUT: sent block by block, and never to its end where it is not right.

The PUT says how many bytes come and which CRC-32C they have; both stand in the signed head. The
last block is sent only when all bytes together have that sum. So a source that fails, or gives
other bytes, ends a request whose body is too short, which no store takes for an object.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from bottomless.drives.base import DriveAmbiguous, Source
from bottomless.errors import StoreError
from bottomless.formats.checks import crc32c
from bottomless.guards import guard
from bottomless_server.drives.checked_parts import blocks_of, require_sum


class SentSource:
    """What the library is given as a body, and what its HTTP client iterates over."""

    def __init__(self, source: Source, crc: int) -> None:
        self._source = source
        self._crc = crc
        self._failure: StoreError | None = None
        self._whole = False
        """Whether its last bytes were handed on, in the request that was sent last."""

    def seek(self, position: int) -> None:
        """Begin anew, as each iteration does: the library sends again what was redirected."""
        assert position == 0

    def read(self, *_: object) -> bytes:
        """The library takes nothing for a body that cannot be read; it is never called."""
        raise NotImplementedError

    def __aiter__(self) -> AsyncIterator[memoryview]:
        return self._blocks()

    @contextmanager
    def judged(self) -> Iterator[None]:
        """Raise what befell the source, whatever the client made of a body that ended early.

        Nothing is stored then: the store waits for bytes that do not come. One that says it has
        them all the same is not believed.

        Raises:
            DriveAmbiguous: the store said so before it had all bytes, or anybody had summed them.
            StoreError: what the source raised.
        """
        try:
            yield
        except StoreError:
            if self._failure is not None:
                raise self._failure from None
            raise
        require_whole(self._whole)

    async def _blocks(self) -> AsyncIterator[memoryview]:
        found = sent = 0
        self._whole = not self._source.size
        try:
            async for block in blocks_of(self._source):
                found, sent = crc32c(block, found), sent + len(block)
                if sent == self._source.size:
                    require_sum(found, self._crc)
                    # Not after it was sent: the answer may be here before the client asks for more.
                    self._whole = True
                yield block
        except StoreError as error:
            self._failure = error
            raise


@guard("an answer to a put before all its bytes were sent")
def require_whole(whole: bool) -> None:
    """Refuse the word of a store that it has an object of which it cannot have all bytes.

    Raises:
        DriveAmbiguous
    """
    if not whole:
        raise DriveAmbiguous("the object store says that it has an object before it has its bytes")
