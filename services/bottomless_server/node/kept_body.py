"""The body of a request that is passed on, kept while it is small, so that it can be sent once more."""

from collections.abc import Hashable
from types import TracebackType
from typing import Final, Self

from starlette.types import Message, Receive

from bottomless.model.limits import KIB
from bottomless_server.node.room import MemoryRoom

KEPT_SIZE_MAX: Final = 64 * KIB
"""Bytes of a body that are kept; of a larger one nothing is."""


class KeptBody:
    """Receives a body, and gives it once more from its beginning as long as all that came is kept.

    What is kept has room like any other body in memory. Where that is full at the moment, nothing is
    kept, and nobody waits.
    """

    def __init__(self, receive: Receive, room: MemoryRoom, owner: Hashable) -> None:
        """Room is taken in the name of `owner`, and given back at the end of the block."""
        self._receive = receive
        self._room = room.nothing_yet(owner)
        self._messages: list[Message] | None = []
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._messages = None
        self._room.give_back()

    @property
    def is_kept(self) -> bool:
        """Whether all that came so far is here, so that `again` gives the whole body."""
        return self._messages is not None

    async def receive(self) -> Message:
        """Receive the next part, and keep it if that is possible."""
        message = await self._receive()
        self._keep(message)
        return message

    def again(self) -> Receive:
        """Receive from the beginning: first what is kept, then what has not come yet."""
        assert self._messages is not None, "a body is given once more only if all of it is kept"
        kept = iter(self._messages)

        async def receive() -> Message:
            message = next(kept, None)
            return await self._receive() if message is None else message

        return receive

    def _keep(self, message: Message) -> None:
        if self._messages is None:
            return
        size = len(message.get("body", b""))
        self._size += size
        fits = message["type"] == "http.request" and self._size <= KEPT_SIZE_MAX
        if fits and self._room.take_at_once(size):
            self._messages.append(message)
        else:
            self._messages = None
            self._room.give_back()
