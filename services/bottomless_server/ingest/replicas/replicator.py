"""Send what lies in own logs to one other node, whose logs follow them: one of these for each node.

`node/core/sending.py` decides what is sent next; here it is done: a body over HTTP, an opening, a
read of an own log. Each ends by itself, in its own time, and says so to the core. A node that stalls
keeps what is on its way to it, and no more: four bodies, and what memory there is for all of them.

What is to be done is looked for at the end of the turn of the loop in which something was said, once,
so that the rounds of one turn share a body; and when the core says that time alone changes something.

Nothing is written here. After a crash the other logs end somewhere, and the next opening asks where.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import Final, Protocol

import structlog

from bottomless.errors import Code, StoreError
from bottomless.model.names import NodeId, StreamId
from bottomless_server.ingest.replicas.pieces import Freed
from bottomless_server.node.core.sending import Sending
from bottomless_server.node.core.sends import (
    Action,
    Event,
    Memory,
    News,
    Open,
    Part,
    Piece,
    Read,
    Send,
    Told,
)
from bottomless_server.node.core.troubles import Troubles
from bottomless_server.protocol.paths import of_stream
from bottomless_server.protocol.replica import (
    ITEMS,
    MEDIA_TYPE,
    NOWHERE,
    OPEN,
    Item,
    Opening,
    Place,
    decode_answers,
    decode_open_said,
    encode_items,
    encode_opening,
)
from bottomless_server.runtime.base.end import end_tasks

log = structlog.get_logger(__name__)

ANSWER_SECONDS: Final = 10.0
"""After so long nothing is known of a request."""
BUG_SECONDS: Final = 0.5
"""After so long it goes on, where what to do next could not be decided."""
_AWAY: Final = "away"


class Follower(Protocol):
    """The other node."""

    async def post(
        self,
        path: str,
        parts: Sequence[bytes | memoryview],
        content_type: str,
        timeout_seconds: float,
    ) -> bytes:
        """Send bytes, which lie in parts, and read the answer.

        Raises:
            StoreError: what it answered; `peer-unavailable` if it does not.
        """
        ...


class Source(Protocol):
    """The own log of one stream."""

    @property
    def epoch(self) -> int:
        """The epoch under which this node owns it."""
        ...

    def opening(self) -> Opening:
        """What is said of it when another log is opened."""
        ...

    async def read(self, end: Place | None) -> Piece | None:
        """What comes after a place, synced; None if nothing does.

        Raises:
            Freed: it does not go on from there.
            Corrupt, OSError: it cannot be read.
        """
        ...


class Replicator:
    """Sends to one node. Calls are made in the event loop, and none of them waits."""

    def __init__(
        self,
        follower: Follower,
        memory: Memory,
        monotonic: Callable[[], float],
        heard: Callable[[Event], None],
        node: NodeId,
    ) -> None:
        """`heard` is told of what the other node has; `memory` is that of all nodes together. `node` is which
        one it is, for the log."""
        self._follower = follower
        self._monotonic = monotonic
        self._heard = heard
        self._node = node
        self._troubles = Troubles()
        self._sending = Sending(memory)
        self._sources: dict[StreamId, Source] = {}
        self._under_way: set[asyncio.Task[None]] = set()
        self._sends = False
        self._will_look = False
        self._context = copy_context()
        """What is sent is sent for nobody in particular, whoever's call made it due."""
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Send from now on."""
        self._sends = True
        self._look_soon()

    async def stop(self) -> None:
        """Send nothing more; what is on its way is given up."""
        self._sends = False
        self._set_timer(None)
        await end_tasks(*self._under_way)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is sent of any stream."""
        return not self._sources

    def follow(
        self,
        stream_id: StreamId,
        source: Source,
        log_end: Place | None,
        told: Told,
        pause: float = 0.0,
    ) -> None:
        """Have the other node follow a stream under the epoch of its source, after so many seconds."""
        self._sources[stream_id] = source
        self._sending.follow(stream_id, source.epoch, log_end, told, self._monotonic(), pause)
        self._look_soon()

    def leave(self, stream_id: StreamId) -> None:
        """Send nothing more of a stream, and tell nobody of answers that still come."""
        self._sources.pop(stream_id, None)
        self._sending.leave(stream_id)

    def offer(self, stream_id: StreamId, piece: Piece) -> None:
        """Send a piece that was just written at the end of the own log, synced or not."""
        self._sending.offer(stream_id, piece, self._monotonic())
        self._look_soon()

    def tell(self, stream_id: StreamId, told: Told) -> None:
        """Have new bounds told; all that was offered can be read of the own log by now."""
        self._sending.tell(stream_id, told)
        self._look_soon()

    def silent_since(self, stream_id: StreamId) -> float | None:
        """Since when the other node owes an answer, by the monotonic clock; None: it has all."""
        return self._sending.silent_since(stream_id)

    def end_of(self, stream_id: StreamId) -> Place | None:
        """Where its log ends, as far as it said since it was opened last."""
        return self._sending.end_of(stream_id)

    def _look_soon(self) -> None:
        if self._sends and not self._will_look:
            self._will_look = True
            asyncio.get_running_loop().call_soon(self._look, context=self._context)

    def _look(self) -> None:
        self._will_look = False
        if not self._sends:
            return
        now = self._monotonic()
        try:
            for action in self._sending.next_actions(now):
                task = asyncio.create_task(self._do(action), name="replicator-action")
                self._under_way.add(task)
                task.add_done_callback(self._under_way.discard)
            again = self._sending.next_time(now)
        except Exception:
            # Nobody else would look again: who waits for this node would wait for ever.
            log.exception("a sender met a bug and goes on")
            again = now + BUG_SECONDS
        self._set_timer(None if again is None else max(again - now, 0.001))

    def _set_timer(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = None
        if seconds is not None:
            self._timer = loop.call_later(seconds, self._look, context=self._context)

    async def _do(self, action: Action) -> None:
        events: list[Event] = []
        try:
            events = await self._done(action)
        except (StoreError, OSError) as error:
            refused = isinstance(error, StoreError) and error.code is not Code.PEER_UNAVAILABLE
            self._tell(action, error, refused=refused)
            events = self._sending.failed(action, self._monotonic(), refused=refused)
            if isinstance(action, Open) and _is_failed_disk(error):
                events.append(Event(News.FAILED, action.stream_id))
        except Exception:
            log.exception("a sender met a bug")
            events = self._sending.failed(action, self._monotonic())
        self._look_soon()
        for event in events:
            self._heard(event)

    def _tell(self, action: Action, error: StoreError | OSError, *, refused: bool) -> None:
        """Log what went wrong, seldom what goes on: a node that is away is tried every two seconds."""
        if isinstance(action, Read):
            said, kind = "what another node lacks was not read", f"read:{action.stream_id}"
        elif refused and isinstance(error, StoreError):
            said, kind = "another node refuses what it is sent", error.code
        else:
            said, kind = "another node is not reached", _AWAY
        lasting = self._troubles.meet(kind, self._monotonic())
        if lasting is not None:
            log.warning(
                said,
                node=self._node,
                stream_id=None if isinstance(action, Send) else action.stream_id,
                seconds=lasting.seconds,
                attempts=lasting.times,
                error=str(error),
            )

    def _is_there(self) -> None:
        away = self._troubles.end(_AWAY, self._monotonic())
        if away is not None:
            log.info("another node is reached again", node=self._node, seconds=away.seconds)

    async def _done(self, action: Action) -> list[Event]:
        if isinstance(action, Send):
            return await self._send(action)
        source = self._sources.get(action.stream_id)
        if source is None or (isinstance(action, Open) and source.epoch != action.epoch):
            return self._sending.failed(action, self._monotonic(), refused=True)
        if isinstance(action, Read):
            return await self._read(action, source)
        return await self._open(action, source)

    async def _send(self, action: Send) -> list[Event]:
        items = [_item(part) for part in action.parts]
        parts = encode_items(items)
        answer = await self._follower.post(ITEMS, parts, MEDIA_TYPE, ANSWER_SECONDS)
        self._is_there()
        answers = decode_answers(answer, len(items))
        return self._sending.answered(action, answers, self._monotonic())

    async def _open(self, action: Open, source: Source) -> list[Event]:
        path, body = of_stream(OPEN, action.stream_id), encode_opening(source.opening())
        answer = await self._follower.post(path, [body], "application/json", ANSWER_SECONDS)
        self._is_there()
        said = decode_open_said(answer)
        return self._sending.opened(action, said.refusal, said.end, self._monotonic())

    async def _read(self, action: Read, source: Source) -> list[Event]:
        try:
            piece = await source.read(action.end)
        except Freed:
            return self._sending.was_read(action, None, self._monotonic(), freed=True)
        return self._sending.was_read(action, piece, self._monotonic())


def _is_failed_disk(error: Exception) -> bool:
    return isinstance(error, StoreError) and error.code is Code.STORAGE_FAILED


def _item(part: Part) -> Item:
    piece = part.piece
    return Item(
        part.stream_id,
        part.epoch,
        NOWHERE if piece is None else piece.place,
        *part.told,
        begins=piece is not None and piece.begins,
        before=0 if piece is None else piece.before,
        data=b"" if piece is None else piece.data,
    )
