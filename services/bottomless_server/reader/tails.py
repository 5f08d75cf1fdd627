"""The tail of each stream, by its profile: whoever asks need not know which one it is."""

from typing import Any, NoReturn

from bottomless.errors import Code, Unavailable
from bottomless.model.limits import OFFSET_MAX
from bottomless_server.protocol.tail import Bounds, Located
from bottomless_server.reader.streams import StreamFacts
from bottomless_server.reader.tail import Tail, TailAnswer, TailTime


class Tails:
    def __init__(self, owned: Tail, leaderless: Tail) -> None:
        self._owned = owned
        self._leaderless = leaderless

    async def bounds(self, stream: StreamFacts) -> Bounds:
        """What is said of the stream now; raises as its own tail does."""
        return await self._of(stream).bounds(stream)

    async def chunks(
        self,
        stream: StreamFacts,
        first_offset: int,
        size: int,
        wait_ms: int = 0,
        end: int = OFFSET_MAX + 1,
    ) -> TailAnswer:
        """Chunks from the one that holds `first_offset` on; raises as its own tail does."""
        return await self._of(stream).chunks(stream, first_offset, size, wait_ms, end)

    async def time_of(self, stream: StreamFacts, offset: int) -> TailTime:
        """When the record at an offset was committed; raises as its own tail does."""
        return await self._of(stream).time_of(stream, offset)

    async def locate(self, stream: StreamFacts, timestamp: int) -> Located:
        """The first chunk of `timestamp` or later; raises as its own tail does."""
        return await self._of(stream).locate(stream, timestamp)

    def _of(self, stream: StreamFacts) -> Tail:
        return self._leaderless if stream.profile == "leaderless" else self._owned


class NoTail:
    """The tail of leaderless streams in a reader that was given no coordination store."""

    async def bounds(self, _: StreamFacts) -> Bounds:
        """Refuse.

        Raises:
            Unavailable: nothing is known of such streams here.
        """
        self._refuse()

    async def chunks(self, *_: Any, **__: Any) -> TailAnswer:
        """Refuse.

        Raises:
            Unavailable: nothing is known of such streams here.
        """
        self._refuse()

    async def time_of(self, _: StreamFacts, __: int) -> TailTime:
        """Refuse.

        Raises:
            Unavailable: nothing is known of such streams here.
        """
        self._refuse()

    async def locate(self, _: StreamFacts, __: int) -> Located:
        """Refuse.

        Raises:
            Unavailable: nothing is known of such streams here.
        """
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise Unavailable(
            "this reader was given no coordination store (BOTTOMLESS_COORDINATION_URL), where the "
            "ends of leaderless streams are",
            code=Code.COORDINATION_UNAVAILABLE,
            retryable=False,
        )
