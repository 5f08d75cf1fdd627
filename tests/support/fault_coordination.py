"""Coordination at the far end of a wire. Where nothing befalls its calls it is the one in memory:
it passes the same contract tests.

WATCH with its reads is one way, EXEC another: the reply of an EXEC may be lost, and an EXEC may
arrive after its caller gave up, or died. Then it still changes everything or nothing, as what it
watched says.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from bottomless_server.coordination.base import (
    Changes,
    CoordinationConflict,
    CoordinationUnavailable,
    CoordinationUnknown,
    Decide,
    Due,
    Hold,
    Room,
    StoreRun,
)
from bottomless_server.coordination.memory import MemoryCoordination, Watched
from support.wire import Lost, Wire

_T = TypeVar("_T")


class FaultCoordination(MemoryCoordination):
    def __init__(self, clock: Callable[[], int], wire: Wire) -> None:
        super().__init__(clock)
        self._wire = wire
        self.on_write: Callable[[], None] | None = None
        """Called after each change, before anything else happens."""

    def write(self, changes: Changes) -> None:
        super().write(changes)
        if self.on_write is not None:
            self.on_write()

    async def get(self, redis_key: str) -> bytes | None:
        return await self._read("get", lambda: MemoryCoordination.get(self, redis_key))

    async def get_many(self, redis_keys: Sequence[str]) -> list[bytes | None]:
        return await self._read("get", lambda: MemoryCoordination.get_many(self, redis_keys))

    async def transact(
        self,
        redis_keys: Sequence[str],
        decide: Decide[_T],
        attempts: int = 16,
        room: Room | None = None,
    ) -> _T:
        assert redis_keys

        async def watch() -> Watched:
            return self.watch(redis_keys, room)

        for _ in range(attempts):
            watched = await self._read("watch", watch)
            changes, value = decide(watched.values)
            watched.check(changes)
            if await self._arrive(watched, changes):
                return value
        raise CoordinationConflict("others changed the same keys at every attempt")

    async def _arrive(self, watched: Watched, changes: Changes) -> bool:
        async def execute() -> bool:
            return self.execute(watched, changes)

        return await self._change("exec", execute)

    async def hold(self, redis_key: str, value: bytes, ttl_ms: int) -> Hold:
        return await self._change(
            "hold", lambda: MemoryCoordination.hold(self, redis_key, value, ttl_ms)
        )

    async def release(self, redis_key: str, value: bytes) -> None:
        await self._change("release", lambda: MemoryCoordination.release(self, redis_key, value))

    async def remaining(self, redis_keys: Sequence[str]) -> list[int | None]:
        return await self._read("remaining", lambda: MemoryCoordination.remaining(self, redis_keys))

    async def due(self, redis_key: str, now: int, limit: int) -> list[Due]:
        return await self._read("due", lambda: MemoryCoordination.due(self, redis_key, now, limit))

    async def settle(self, dues: Sequence[Due]) -> None:
        await self._change("settle", lambda: MemoryCoordination.settle(self, dues))

    async def due_at(self, redis_key: str, members: Sequence[bytes]) -> list[int | None]:
        return await self._read("due", lambda: MemoryCoordination.due_at(self, redis_key, members))

    async def bring_forward(self, redis_key: str, latest: int, limit: int) -> list[Due]:
        return await self._change(
            "settle", lambda: MemoryCoordination.bring_forward(self, redis_key, latest, limit)
        )

    async def members(self, redis_key: str, after: bytes, limit: int) -> list[bytes]:
        return await self._read(
            "members", lambda: MemoryCoordination.members(self, redis_key, after, limit)
        )

    async def member_count(self, redis_key: str) -> int:
        return await self._read("members", lambda: MemoryCoordination.member_count(self, redis_key))

    async def clock(self) -> int:
        return await self._read("clock", lambda: MemoryCoordination.clock(self))

    async def fullness(self) -> float:
        return await self._read("fullness", lambda: MemoryCoordination.fullness(self))

    async def run(self) -> StoreRun:
        return await self._read("run", lambda: MemoryCoordination.run(self))

    async def check(self) -> None:
        await self._read("check", lambda: MemoryCoordination.check(self))

    async def _read(self, route: str, work: Callable[[], Awaitable[_T]]) -> _T:
        try:
            return await self._wire.carry(f"coordination.{route}", work)
        except Lost as lost:
            raise CoordinationUnavailable("the coordination store does not answer") from lost

    async def _change(self, route: str, work: Callable[[], Awaitable[_T]]) -> _T:
        try:
            return await self._wire.carry(f"coordination.{route}", work)
        except Lost as lost:
            if lost.may_have_happened:
                raise CoordinationUnknown("the reply was lost") from lost
            raise CoordinationUnavailable("the coordination store does not answer") from lost
