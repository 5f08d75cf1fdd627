"""Parts of an import: the records of RabbitMQ's chunks, as bodies of appends with their numbers.

A part's number is RabbitMQ's offset of its last message. So the stream itself says how far an import
has come, and the next run begins after that, however large its parts are.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

from bottomless.cli.rabbitmq_files import Chunk, Segments
from bottomless.errors import Corrupt, InvalidRequest
from bottomless.guards import guard
from bottomless.model.limits import ARROW_RECORD_COUNT_MAX

if TYPE_CHECKING:
    from bottomless.formats.amqp_record import Taking

_RECORD_COUNT_MAX: Final = ARROW_RECORD_COUNT_MAX // 2
_NO_CODEC: Final = "plain"

T = TypeVar("T")
P = TypeVar("P")


class ImportPart(NamedTuple):
    """Records that are appended together."""

    body: bytes
    number: int
    """RabbitMQ's offset of the last message that it covers."""
    record_count: int
    input_size: int
    """Bytes of the segments that were read for it."""


@dataclass(slots=True)
class Seen:
    """What an import has met in the segments."""

    first_offset: int | None = None
    """RabbitMQ's offset of the first message that was read."""
    next_offset: int | None = None
    first_timestamp: int | None = None
    last_timestamp: int | None = None
    message_count: int = 0
    left_out: int = 0
    """Messages that make no record, where they may be left out."""
    codecs: Counter[str] = field(default_factory=Counter)
    """Messages by the codec of their sub-entry; `plain` are those in none."""

    def note(self, chunk: Chunk) -> None:
        header = chunk.header
        if self.first_offset is None:
            self.first_offset, self.first_timestamp = header.chunk_id, header.timestamp
        self.next_offset, self.last_timestamp = header.next_offset, header.timestamp
        for codec, messages in chunk.entries:
            name = _NO_CODEC if codec is None else f"sub-entries, {codec.name.lower()}"
            self.codecs[name] += len(messages)
            self.message_count += len(messages)

    def facts(self) -> dict[str, Any]:
        """What is shown of it."""
        from bottomless.model.offset_spec import format_timestamp  # noqa: PLC0415

        times = (self.first_timestamp, self.last_timestamp)
        first, last = (None if time is None else format_timestamp(time) for time in times)
        return {
            "messages": self.message_count,
            "first_offset": self.first_offset,
            "next_offset": self.next_offset,
            "first_timestamp": first,
            "last_timestamp": last,
            "codecs": dict(sorted(self.codecs.items())),
        }


class Cutter:
    """Cuts the chunks of segments into parts: whole chunks, but where one is larger than a part."""

    def __init__(
        self, segments: Segments, taking: "Taking", size: int, *, skip_unfit: bool = False
    ) -> None:
        """Make one whose parts have about `size` bytes.

        With `skip_unfit` messages that make no record are left out and counted.
        """
        from bottomless.formats.amqp_record import Collected  # noqa: PLC0415

        self._segments = segments
        self._size = size
        self._skip_unfit = skip_unfit
        self.collected: Collected = Collected(taking)
        self.seen = Seen()
        self._input_size = 0
        self._start = 0
        self._last = -1
        """RabbitMQ's offset of the last message that is in a part, or is collected for the next one."""

    def parts(self, start: int) -> Iterator[ImportPart]:
        """Make the parts from RabbitMQ's offset `start` on.

        Raises:
            Corrupt: a segment is damaged; every message before it was given.
            InvalidRequest: a message makes no record; every message before it was given.
        """
        self._start, self._last = start, start - 1
        try:
            yield from self._whole_parts(start)
        except (Corrupt, InvalidRequest):
            # Else what is before the damage, and less than a part, could never be imported.
            if len(self.collected):
                yield self._part()
            raise
        if len(self.collected):
            yield self._part()

    def _whole_parts(self, start: int) -> Iterator[ImportPart]:
        for chunk in self._segments.chunks(start):
            self._input_size += chunk.header.size
            self.seen.note(chunk)
            offset = chunk.header.chunk_id
            for entries in chunk.entries:
                first, offset = offset, offset + len(entries.messages)
                yield from self._full_parts(entries.messages, first, chunk.header.timestamp)
            if self.collected.size >= self._size // 2:
                yield self._part()

    def _full_parts(
        self, messages: list[bytes], first: int, timestamp: int
    ) -> Iterator[ImportPart]:
        """Collect messages from the start on; `first` is the offset of the first one that is given."""
        number = max(self._start - first, 0)
        while number < len(messages):
            added = self.collected.add_alike(
                messages, number, timestamp, size_max=self._size, count_max=_RECORD_COUNT_MAX
            )
            if not added:
                self._add(messages[number], first + number, timestamp)
                added = 1
            number += added
            self._last = first + number - 1
            if self._is_full():
                yield self._part()

    def _is_full(self) -> bool:
        return self.collected.size >= self._size or len(self.collected) >= _RECORD_COUNT_MAX

    def _add(self, message: bytes, offset: int, timestamp: int) -> None:
        try:
            self.collected.add(message, offset, timestamp)
        except InvalidRequest as error:
            if self._skip_unfit:
                self.seen.left_out += 1
                return
            error.facts["rabbitmq_offset"] = offset
            raise

    def _part(self) -> ImportPart:
        from bottomless.client.tables import frames_body  # noqa: PLC0415

        count, read = len(self.collected), self._input_size
        self._input_size = 0
        return ImportPart(frames_body(self.collected.take()), self._last, count, read)


@guard("one append of an import at a time")
def in_turn(parts: Iterable[P], append: Callable[[P], T]) -> Iterator[tuple[P, T]]:
    """Append parts one after the other, each once the one before is stored.

    A part that a later number overtook would count as a repeat, and its records were lost.
    """
    for part in parts:
        yield part, append(part)


def one_ahead(parts: Iterator[P]) -> Iterator[P]:
    """Give what an iterator gives; while each is used, a thread has the iterator make the next one.

    Raises:
        Exception: what the iterator raised, after all that it gave before.
    """
    end = object()
    with ThreadPoolExecutor(1, thread_name_prefix="next-part") as maker:
        following = maker.submit(next, parts, end)
        while (part := following.result()) is not end:
            following = maker.submit(next, parts, end)
            yield cast("P", part)
