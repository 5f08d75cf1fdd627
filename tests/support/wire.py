"""The way between a caller and a store, on which things get lost, late or slow.

What is carried runs beside its caller and not in it: a request that was sent arrives even if
whoever sent it is dead by then, and a reply is lost without undoing anything.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context
from enum import StrEnum
from typing import Final, NamedTuple, Protocol, TypeVar

_T = TypeVar("_T")


class Mishap(StrEnum):
    NONE = "nothing"
    LOSE_REQUEST = "the request is lost"
    LOSE_REPLY = "the reply is lost"
    LATE_REQUEST = "the request arrives after its caller has given up"


class Passage(NamedTuple):
    """What befalls one request and its reply."""

    mishap: Mishap = Mishap.NONE
    there_seconds: float = 0.0
    back_seconds: float = 0.0
    silence_seconds: float = 0.0
    """After so long a caller takes its reply for lost."""


class Weather(Protocol):
    """Decides what befalls a request; `route` says whose and which, like `drive.put`."""

    def passage(self, route: str, /) -> Passage: ...


class Calm:
    """Nothing is ever lost, and nothing takes time."""

    def passage(self, _: str) -> Passage:
        return _NOTHING


_NOTHING: Final = Passage()


class Lost(Exception):
    """No reply came."""

    def __init__(self, *, may_have_happened: bool) -> None:
        super().__init__("no reply came")
        self.may_have_happened = may_have_happened


class Wire:
    def __init__(self, weather: Weather | None = None) -> None:
        self._weather: Weather = weather or Calm()
        self._carried: set[asyncio.Task[None]] = set()

    async def carry(self, route: str, work: Callable[[], Awaitable[_T]]) -> _T:
        """Do `work` at the other end, and bring back what came of it.

        Raises:
            Lost: no reply came; whatever else is what `work` raised.
        """
        passage = self._weather.passage(route)
        if passage.mishap is Mishap.LOSE_REQUEST:
            await asyncio.sleep(passage.silence_seconds)
            raise Lost(may_have_happened=False)
        reply: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        self._send(passage, work, reply)
        if passage.mishap is not Mishap.NONE:
            await asyncio.sleep(passage.silence_seconds)
            raise Lost(may_have_happened=True)
        try:
            return await reply
        finally:
            # An error refers to this frame, and the reply to the error: see simulation/tables.py.
            del reply

    def _send(
        self,
        passage: Passage,
        work: Callable[[], Awaitable[_T]],
        reply: "asyncio.Future[_T]",
    ) -> None:
        # In a context of its own: whoever ends what runs in the caller's does not end this.
        task = asyncio.get_running_loop().create_task(
            self._deliver(passage, work, reply), context=Context()
        )
        self._carried.add(task)
        task.add_done_callback(self._carried.discard)

    async def _deliver(
        self,
        passage: Passage,
        work: Callable[[], Awaitable[_T]],
        reply: "asyncio.Future[_T]",
    ) -> None:
        late = passage.silence_seconds if passage.mishap is Mishap.LATE_REQUEST else 0.0
        if passage.there_seconds + late:
            await asyncio.sleep(passage.there_seconds + late)
        try:
            result = await work()
        except Exception as error:  # noqa: BLE001 it is the caller's, whatever it is
            await asyncio.sleep(passage.back_seconds)
            if passage.mishap is Mishap.NONE and not reply.done():
                reply.set_exception(error)
            del reply
            return
        await asyncio.sleep(passage.back_seconds)
        if passage.mishap is Mishap.NONE and not reply.done():
            reply.set_result(result)
