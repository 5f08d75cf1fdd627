"""Sources of bytes, for puts: they count what is read, fail and change as a test says."""

import asyncio

from bottomless.errors import StoreError


class Bytes:
    """A source of bytes in memory."""

    def __init__(self, data: bytes, size: int | None = None) -> None:
        """`size` is what it claims, if not the truth."""
        self.data = data
        self.size = len(data) if size is None else size
        self.reads: list[tuple[int, int]] = []
        self.failures: dict[int, StoreError] = {}
        """Raised by reads that begin there, once each."""
        self.held_from: int | None = None
        """Reads from there on do not end."""
        self.held = asyncio.Event()
        self.largest = 0
        """The most bytes that were asked for at once."""

    async def read_into(self, position: int, buffer: memoryview) -> None:
        await asyncio.sleep(0)
        self.reads.append((position, len(buffer)))
        self.largest = max(self.largest, len(buffer))
        if self.held_from is not None and position >= self.held_from:
            self.held.set()
            await asyncio.Event().wait()
        if error := self.failures.pop(position, None):
            raise error
        buffer[:] = self.data[position : position + len(buffer)]

    def starts_at(self, position: int) -> int:
        """How many reads began there."""
        return sum(start == position for start, _ in self.reads)
