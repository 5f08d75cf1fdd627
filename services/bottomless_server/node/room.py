"""Reserve memory for the bodies of appends, and make appends wait where there is none.

Queues reserve it for publishes, and for what receives answer, in the same way.

A request reserves its Content-Length, so that a body that was begun can be received whole. But a
reservation is not yet memory: a client that declares much and sends little would keep others out
until HTTP's own time limits end it. So a client that stalls loses the unreceived part of its
reservation as soon as another request waits. It gets room again as its bytes come, if there is
any.

The order in which requests wait is decided in core/admission.py.

On the record's path: beside ingest/front/append_requests.py, before ingest/records/intake.py.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from typing import Final

from starlette.types import Message, Receive

from bottomless.errors import Overloaded
from bottomless.model.limits import KIB
from bottomless_server.node.core.admission import Admission, Ticket
from bottomless_server.node.pulse import wait_for

STALL_SECONDS: Final = 0.25
_PROGRESS_BYTES: Final = 64 * KIB
"""A body that received fewer bytes than this in `STALL_SECONDS` counts as stalled."""


class MemoryRoom:
    """Memory for the bodies of appends in a process, for all streams together."""

    def __init__(
        self,
        admission: Admission,
        monotonic: Callable[[], float],
        wait_seconds: float,
        what: str = "appends",
    ) -> None:
        """`what` waits for room here, in words for whoever is refused."""
        self._what = what
        self.admission = admission
        self.monotonic = monotonic
        self._wait_seconds = wait_seconds
        self._waiting: dict[Ticket, asyncio.Event] = {}
        self._receiving: set[BodyReservation] = set()

    @asynccontextmanager
    async def hold(
        self, owner: Hashable, size: int, wait_seconds: float | None = None
    ) -> AsyncIterator[None]:
        """Hold room for so many bytes of a stream that are here, or are read by ourselves.

        Raises:
            Overloaded: there was none within the deadline.
        """
        held = BodyReservation(self, owner)
        await held.take(size, wait_seconds)
        try:
            yield
        finally:
            held.give_back()

    @asynccontextmanager
    async def body(self, owner: Hashable, size: int) -> AsyncIterator["BodyReservation"]:
        """Hold room for a body that may have so many bytes; what it still holds at the end goes back.

        Raises:
            Overloaded: there was none within the deadline.
        """
        body = BodyReservation(self, owner)
        await body.take(size)
        self._receiving.add(body)
        try:
            yield body
        finally:
            body.end()

    def nothing_yet(self, owner: Hashable) -> "BodyReservation":
        """Room of which the size is not known yet: `take` and `give_back` it."""
        return BodyReservation(self, owner)

    def body_at_once(self, owner: Hashable, size: int) -> "BodyReservation | None":
        """Hold room for a body as `body` does, until `end`; None if that would wait."""
        body = BodyReservation(self, owner)
        if not body.take_at_once(size):
            return None
        self._receiving.add(body)
        return body

    def end_receiving(self, body: "BodyReservation") -> None:
        """Note that nothing more of this body will come."""
        self._receiving.discard(body)

    def give_back(self, owner: Hashable, size: int) -> None:
        """Make room free again, for requests that wait."""
        self.admission.give_back(owner, size)
        self._grant()

    async def take(
        self, owner: Hashable, size: int, own: int = 0, wait_seconds: float | None = None
    ) -> None:
        """Return when there was room, in one's turn; it is taken then.

        Raises:
            Overloaded: there was none within the deadline.
        """
        if self.admission.take(owner, size, own):
            return
        ticket = self.admission.issue_ticket(owner, size, own)
        turn = self._waiting[ticket] = asyncio.Event()
        self._grant()
        try:
            await self._wait(turn, self._wait_seconds if wait_seconds is None else wait_seconds)
        except BaseException:
            if ticket.granted:
                self.admission.give_back(owner, size)
            else:
                self.admission.leave(ticket)
            self._grant()
            raise
        finally:
            del self._waiting[ticket]

    async def _wait(self, turn: asyncio.Event, wait_seconds: float) -> None:
        begun, waited = self.monotonic(), 0.0
        while not turn.is_set():
            if self._reclaim_from_stalled():
                continue
            left = wait_seconds - max(waited, self.monotonic() - begun)
            if left <= 0:
                raise Overloaded(f"too many {self._what} are waiting", retry_after_seconds=1)
            step = min(left, STALL_SECONDS)
            if not await wait_for(turn, step):
                waited += step

    def _grant(self) -> None:
        for ticket in self.admission.grant():
            self._waiting[ticket].set()

    def _reclaim_from_stalled(self) -> bool:
        """Take the unreceived part from a body that stalls; returns whether there was one."""
        now = self.monotonic()
        return any(body.release_unreceived() for body in self._receiving if body.is_stalled(now))


class BodyReservation:
    """The room of one body."""

    def __init__(self, room: MemoryRoom, owner: Hashable) -> None:
        self._room = room
        self._owner = owner
        self._held = 0
        self._received = 0
        self._progress = (0, room.monotonic())
        """How many bytes were received when it last made progress, and when that was."""

    def noting(self, receive: Receive) -> Receive:
        """Wrap the `receive` of the body, so that what comes beyond what is held waits for room.

        While it waits the connection is not read, and the client's time does not run. It raises
        Overloaded if there was no room within the deadline.
        """

        async def noted() -> Message:
            message = await receive()
            self._note(len(message.get("body", b"")))
            if self._received > self._held:
                await self.take(self._received - self._held)
            if not message.get("more_body", False):
                self._room.end_receiving(self)
                self.release_unreceived()
            return message

        return noted

    def note_at_once(self, size: int) -> bool:
        """Note so many bytes more that came, as `noting` does; False if that would wait for room."""
        self._note(size)
        missing = self._received - self._held
        return missing <= 0 or self.take_at_once(missing)

    def end(self) -> None:
        """Give all of it back: the request has ended, or what came of it is not kept here."""
        self._room.end_receiving(self)
        self.give_back()

    def _note(self, size: int) -> None:
        self._received += size
        if self._received - self._progress[0] >= _PROGRESS_BYTES:
            self._progress = (self._received, self._room.monotonic())

    def is_stalled(self, now: float) -> bool:
        """Whether something is to come and nothing has come for `STALL_SECONDS`."""
        return self._held > self._received and now - self._progress[1] >= STALL_SECONDS

    def release_unreceived(self) -> bool:
        """Give back the room of bytes that were not received yet; returns whether there was any."""
        rest = self._held - self._received
        if rest <= 0:
            return False
        self._give_back(rest)
        return True

    async def take(self, size: int, wait_seconds: float | None = None) -> None:
        """Reserve more room.

        Raises:
            Overloaded: there was none within the deadline.
        """
        await self._room.take(self._owner, size, self._held, wait_seconds)
        self._held += size
        self._progress = (self._received, self._room.monotonic())

    def take_at_once(self, size: int) -> bool:
        """Reserve more room; False if that would wait."""
        if not self._room.admission.take(self._owner, size, self._held):
            return False
        self._held += size
        self._progress = (self._received, self._room.monotonic())
        return True

    def give_back(self) -> None:
        """Give back all of it: these bytes are not needed any more."""
        self._give_back(self._held)

    def _give_back(self, size: int) -> None:
        self._held -= size
        self._room.give_back(self._owner, size)
