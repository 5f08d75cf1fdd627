"""The segments of a RabbitMQ stream in a directory: its chunks in order, checked, one at a time.

A directory is read as it lies: nothing in it is changed, and what a node that still runs adds meanwhile
may be read or not. A chunk at the end of the last segment of which less is there than it says was
never whole; anywhere else that is damage.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from bottomless.errors import Code, Corrupt, InvalidRequest
from bottomless.formats.osiris import (
    CHUNK_HEADER_SIZE,
    SEGMENT_HEADER_SIZE,
    ChunkHeader,
    ChunkKind,
    Entries,
    check_segment_header,
    decode_chunk_header,
    entries_of,
    verify_data,
)

_NAME_SIZE: Final = 20
"""Digits of a segment's name, which is the offset of its first message."""


class Chunk(NamedTuple):
    """A chunk whose data is verified, and its entries; of chunks without messages there are none."""

    header: ChunkHeader
    entries: list[Entries]


class Segments:
    """The segments of one stream."""

    def __init__(self, directory: Path) -> None:
        """Find the segments of a directory.

        Raises:
            InvalidRequest: there is none.
        """
        found = (path for path in directory.glob("*.segment") if len(path.stem) == _NAME_SIZE)
        self.paths = sorted(path for path in found if path.stem.isdecimal() and path.is_file())
        if not self.paths:
            raise InvalidRequest(
                "the directory holds no segment of a RabbitMQ stream: it is the one with files "
                "named 00000000000000000000.segment; for classic queues there is `bottomless "
                "queue-store import-rabbitmq`",
                code=Code.VALIDATION_FAILED,
            )
        self.first_offset = int(self.paths[0].stem)
        """RabbitMQ's offset of the first message that is there."""
        self.size = sum(path.stat().st_size for path in self.paths)
        """Bytes of all segments, when they were found."""
        self.torn_size = 0
        """Bytes at the end that were never a whole chunk; known when all is read."""

    def chunks(self, start: int) -> Iterator[Chunk]:
        """Read the chunks that hold an offset from `start` on, or a later one, in order.

        Raises:
            Corrupt: a segment is damaged; the error names its file and the byte.
        """
        first = self._first_needed(start)
        expected: int | None = None
        for path in self.paths[first:]:
            begins = int(path.stem)
            if expected is not None and begins != expected:
                raise Corrupt(
                    f"messages {expected} to {begins - 1} are missing: no segment before "
                    f"{path.name} has them"
                )
            expected = begins
            with path.open("rb") as file:
                for chunk in self._of_file(file, path, begins, start):
                    expected = chunk.header.next_offset
                    yield chunk

    def _first_needed(self, start: int) -> int:
        """The last segment that begins at `start` or before it."""
        before = [number for number, path in enumerate(self.paths) if int(path.stem) <= start]
        return before[-1] if before else 0

    def _of_file(self, file: BinaryIO, path: Path, expected: int, start: int) -> Iterator[Chunk]:
        position = 0
        try:
            head = file.read(SEGMENT_HEADER_SIZE)
            if self._is_torn(path, head, SEGMENT_HEADER_SIZE):
                return
            check_segment_header(head)
            position = len(head)
            while head := file.read(CHUNK_HEADER_SIZE):
                if self._is_torn(path, head, CHUNK_HEADER_SIZE):
                    return
                header = decode_chunk_header(head)
                rest = file.read(header.size - len(head))
                if self._is_torn(path, head + rest, header.size):
                    return
                yield _checked(header, rest, expected, needed=header.next_offset > start)
                expected = header.next_offset
                position += header.size
        except Corrupt as error:
            sentence = f"{path.name}, from byte {position} on: {error.message}"
            raise Corrupt(sentence, facts=error.facts) from error

    def _is_torn(self, path: Path, data: bytes, size: int) -> bool:
        """Whether the end of the last segment is reached.

        Raises:
            Corrupt: it is another segment.
        """
        if len(data) == size:
            return False
        if path != self.paths[-1]:
            raise Corrupt("it ends within a chunk, and is not the last segment")
        self.torn_size = len(data)
        return True


def _checked(header: ChunkHeader, rest: bytes, expected: int, *, needed: bool) -> Chunk:
    if header.chunk_id != expected:
        raise Corrupt(f"a chunk begins with message {header.chunk_id}, not {expected}")
    data = rest[header.filter_size : header.filter_size + header.data_size]
    verify_data(header, data)
    if not needed or header.kind is not ChunkKind.USER:
        return Chunk(header, [])
    return Chunk(header, list(entries_of(header, data)))
