"""The streams whose logs follow those of other nodes: found for what arrives, opened, let go.

Each stream has one task, which does all that is done with its files. Here is the table of them. It
is bounded: beyond that the one that was used least recently is closed, and its owner opens it again.
What is on disk after a crash is said in followed_stream.py and opening.py.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from bottomless.errors import Overloaded
from bottomless.model.limits import MIB
from bottomless.model.names import StreamId
from bottomless_server.ingest.replicas.context import Arrived, FollowingContext
from bottomless_server.ingest.replicas.followed_stream import FollowedStream
from bottomless_server.node.core.following import Held, OpenRefusal
from bottomless_server.protocol.replica import (
    NOWHERE,
    Answer,
    Item,
    Opening,
    Place,
    Taken,
    chunks_of,
)
from bottomless_server.runtime.base.end import end_tasks
from bottomless_server.runtime.base.endless import endless
from bottomless_server.runtime.base.on_loop import in_thread

TICK_SECONDS: Final = 1.0
"""How often streams are asked whether their files need looking after."""
IDLE_MS: Final = 600_000
"""After so long without a word of its owner a stream is closed; nobody may be its owner any more."""
_INLINE_SIZE: Final = MIB
"""Chunks of so many bytes are verified without a hop into a thread, which takes longer than their sums."""


class Following:
    """The followed streams of a process."""

    def __init__(
        self, context: FollowingContext, *, stream_count_max: int, open_log_count_max: int
    ) -> None:
        """`open_log_count_max` streams keep their file handles."""
        self._context = context
        self._stream_count_max = stream_count_max
        self._open_log_count_max = open_log_count_max
        self._streams: OrderedDict[StreamId, FollowedStream] = OrderedDict()
        """In the order of their last use."""
        self._closing: dict[StreamId, asyncio.Task[None]] = {}
        self.is_held_back: Callable[[StreamId], bool] = _is_free
        """Tells of a stream that it must not be followed now: this node is about to own it."""
        self._stopping = False
        self._ticking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look after files from now on. No stream is opened before its owner asks."""
        self._ticking = asyncio.create_task(
            endless("ingest-replicas", self._tick), name="ingest-replicas"
        )

    async def stop(self) -> None:
        """Finish what is under way and close all files."""
        self._stopping = True
        if self._ticking is not None:
            await end_tasks(self._ticking)
        for stream_id in list(self._streams):
            self._let_go(stream_id)
        await asyncio.gather(*self._closing.values())

    def in_use(self, stream_id: StreamId) -> bool:
        """Whether files of a stream may be open here."""
        return stream_id in self._streams or stream_id in self._closing

    def find(self, stream_id: StreamId) -> FollowedStream | None:
        """A stream that is followed now."""
        return self._streams.get(stream_id)

    @property
    def count(self) -> int:
        """How many streams are followed now."""
        return len(self._streams)

    def heard(self) -> Iterator[tuple[StreamId, int]]:
        """The streams that are followed, each with the time in ms at which its owner was heard last."""
        return ((stream_id, stream.used_at) for stream_id, stream in self._streams.items())

    async def open(self, stream_id: StreamId, opening: Opening) -> OpenRefusal | Place | None:
        """Open the log of a stream for its owner; returns where it ends, None of an empty one.

        Raises:
            StoreError: as `FollowedStream.open`; `overloaded` also where too many are followed, and
                while the stream is held back.
        """
        if self.is_held_back(stream_id):
            raise Overloaded("this node may be the owner of the stream", retry_after_seconds=1)
        while (closing := self._closing.get(stream_id)) is not None:
            await asyncio.shield(closing)
        return await self._used(stream_id).open(opening)

    async def held(self, stream_id: StreamId) -> Held:
        """What lies here of a stream, synced; nothing of one that this node never followed.

        Raises:
            Unavailable: `storage-failed`: it cannot be read, or is damaged.
            Overloaded: too much waits, or the stream is about to be this node's own.
        """
        if self.is_held_back(stream_id) or stream_id in self._closing:
            raise Overloaded("this node may be the owner of the stream", retry_after_seconds=1)
        stream = self._streams.get(stream_id)
        if stream is None:
            self._make_room()
            # Nobody sent anything: whoever watches its owner must not take this for a word of it.
            stream = self._streams[stream_id] = FollowedStream(self._context, stream_id, used_at=0)
        return await stream.find()

    async def take(self, items: Sequence[Item]) -> list[Answer]:
        """Take the items of a body; returns an answer for each, once what is taken is synced.

        Raises:
            Corrupt: a chunk is damaged; nothing of the body was taken.
            Overloaded: too much waits.
        """
        arrived = await self._verified(items)
        by_stream: dict[StreamId, list[int]] = {}
        for number, one in enumerate(arrived):
            by_stream.setdefault(one.item.stream_id, []).append(number)
        answers = [Answer(Taken.NOT_OPEN, NOWHERE)] * len(items)

        async def take_of(stream_id: StreamId, numbers: Sequence[int]) -> None:
            stream = self._streams.get(stream_id)
            if stream is None:
                return
            self._streams.move_to_end(stream_id)
            taken = await stream.take([arrived[number] for number in numbers])
            for number, answer in zip(numbers, taken, strict=True):
                answers[number] = answer

        if len(by_stream) == 1:
            # Mostly: what a busy stream has to say comes alone, and needs no task.
            await take_of(*by_stream.popitem())
        else:
            await asyncio.gather(*(take_of(*each) for each in by_stream.items()))
        return answers

    async def let_go(self, stream_id: StreamId) -> None:
        """Follow a stream no more; returns when its files are closed, and durable as they were told."""
        if stream_id in self._streams:
            self._let_go(stream_id)
        if (closing := self._closing.get(stream_id)) is not None:
            await asyncio.shield(closing)

    async def _verified(self, items: Sequence[Item]) -> list[Arrived]:
        if sum(len(one.data) for one in items) <= _INLINE_SIZE:
            return _with_chunks(items)
        return await in_thread(self._context.executor, _with_chunks, items)

    def _used(self, stream_id: StreamId) -> FollowedStream:
        stream = self._streams.get(stream_id)
        if stream is None:
            self._make_room()
            stream = self._streams[stream_id] = FollowedStream(self._context, stream_id)
        self._streams.move_to_end(stream_id)
        return stream

    def _make_room(self) -> None:
        if self._stopping:
            raise Overloaded("this node is about to stop", retry_after_seconds=1)
        if len(self._streams) + len(self._closing) < self._stream_count_max:
            return
        for stream_id, stream in self._streams.items():
            if stream.is_idle:
                self._let_go(stream_id)
                return
        raise Overloaded("too many replicas are in use here", retry_after_seconds=1)

    def _let_go(self, stream_id: StreamId) -> None:
        closing = self._close(stream_id, self._streams.pop(stream_id))
        self._closing[stream_id] = asyncio.create_task(closing, name=f"replica-end-{stream_id}")

    async def _close(self, stream_id: StreamId, stream: FollowedStream) -> None:
        try:
            await stream.close()
        finally:
            # Here, and not in a callback of the task: whoever asks between its end and the callback
            # would wait for what has ended, which gives way to nobody, the callback included.
            del self._closing[stream_id]

    async def _tick(self) -> float:
        now = self._context.clocks.elapsed()
        opened = 0
        for stream_id, stream in reversed(list(self._streams.items())):
            if stream.is_idle and now - stream.used_at >= IDLE_MS:
                self._let_go(stream_id)
                continue
            stream.tick()
            opened += stream.is_open
            if opened > self._open_log_count_max and stream.is_idle:
                stream.rest()
        return TICK_SECONDS


def _is_free(_: StreamId) -> bool:
    return False


def _with_chunks(items: Sequence[Item]) -> list[Arrived]:
    return [Arrived(one, chunks_of(one)) for one in items]
