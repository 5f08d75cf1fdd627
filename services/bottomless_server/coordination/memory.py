"""Coordination in memory: for tests and simulations. Nothing is durable.

Every call gives others one turn before it acts, and `transact` one more between
reading and writing, so that conflicts happen here as they do in the real store.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from bottomless_server.coordination.base import (
    Changes,
    CoordinationConflict,
    Decide,
    Due,
    Hold,
    Room,
)

T = TypeVar("T")


@dataclass(slots=True)
class _Kept:
    value: bytes
    expires_at: int | None = None


@dataclass(slots=True)
class _Stored:
    values: dict[str, _Kept] = field(default_factory=dict)
    queues: dict[str, dict[bytes, int]] = field(default_factory=dict)
    indexes: dict[str, set[bytes]] = field(default_factory=dict)
    changes: dict[str, int] = field(default_factory=dict)
    """How often each key was written, which is what WATCH compares."""


class MemoryCoordination:
    """`clock` gives milliseconds since 1970; leases run out by it."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._stored = _Stored()

    async def get(self, redis_key: str) -> bytes | None:
        await asyncio.sleep(0)
        return self._value(redis_key)

    async def get_many(self, redis_keys: Sequence[str]) -> list[bytes | None]:
        await asyncio.sleep(0)
        return [self._value(redis_key) for redis_key in redis_keys]

    async def transact(
        self,
        redis_keys: Sequence[str],
        decide: Decide[T],
        attempts: int = 16,
        room: Room | None = None,
    ) -> T:
        assert redis_keys
        keys = [*redis_keys, *([room.redis_key] if room else [])]
        for _ in range(attempts):
            await asyncio.sleep(0)
            watched = self._watched(keys)
            changes, value = decide({key: self._value(key) for key in redis_keys})
            if room is not None:
                room.check(changes, *self._filled(room))
            await asyncio.sleep(0)
            if self._watched(keys) == watched:
                self.write(changes)
                return value
        raise CoordinationConflict("others changed the same keys at every attempt")

    def write(self, changes: Changes) -> None:
        """Write at once and without conditions, as another client of the store could."""
        for redis_key, value in changes.values.items():
            self._set(redis_key, None if value is None else _Kept(value))
        self._settle(changes.settled)
        for due in changes.queued:
            queue = self._stored.queues.setdefault(due.redis_key, {})
            queue[due.member] = max(due.due_at, queue.get(due.member, due.due_at))
        for due in changes.requeued:
            queue = self._stored.queues.setdefault(due.redis_key, {})
            queue[due.member] = max(due.due_at, queue.get(due.member, due.due_at - 1) + 1)
        for redis_key, member, present in changes.members:
            index = self._stored.indexes.setdefault(redis_key, set())
            if present is not (member in index):
                index.add(member) if present else index.discard(member)
                self._note_change(redis_key)

    async def hold(self, redis_key: str, value: bytes, ttl_ms: int) -> Hold:
        await asyncio.sleep(0)
        before = self._value(redis_key)
        if before not in (None, value):
            return Hold.REFUSED
        self._set(redis_key, _Kept(value, self._clock() + ttl_ms))
        return Hold.TAKEN if before is None else Hold.RENEWED

    async def release(self, redis_key: str, value: bytes) -> None:
        await asyncio.sleep(0)
        if self._value(redis_key) == value:
            self._set(redis_key, None)

    async def due(self, redis_key: str, now: int, limit: int) -> list[Due]:
        await asyncio.sleep(0)
        queue = self._stored.queues.get(redis_key, {})
        ripe = sorted((due_at, member) for member, due_at in queue.items() if due_at <= now)
        return [Due(redis_key, member, due_at) for due_at, member in ripe[:limit]]

    async def settle(self, dues: Sequence[Due]) -> None:
        await asyncio.sleep(0)
        self._settle(dues)

    def _settle(self, dues: Sequence[Due]) -> None:
        for due in dues:
            queue = self._stored.queues.get(due.redis_key, {})
            if queue.get(due.member) == due.due_at:
                del queue[due.member]

    async def due_at(self, redis_key: str, members: Sequence[bytes]) -> list[int | None]:
        await asyncio.sleep(0)
        queue = self._stored.queues.get(redis_key, {})
        return [queue.get(member) for member in members]

    async def bring_forward(self, redis_key: str, latest: int, limit: int) -> list[Due]:
        await asyncio.sleep(0)
        queue = self._stored.queues.get(redis_key, {})
        late = sorted((due_at, member) for member, due_at in queue.items() if due_at > latest)
        found = [Due(redis_key, member, due_at) for due_at, member in late[:limit]]
        await asyncio.sleep(0)
        for due in found:
            if queue.get(due.member, latest) > latest:
                queue[due.member] = latest
        return found

    async def members(self, redis_key: str, after: bytes, limit: int) -> list[bytes]:
        await asyncio.sleep(0)
        index = self._stored.indexes.get(redis_key, set())
        return sorted(member for member in index if member > after)[:limit]

    async def member_count(self, redis_key: str) -> int:
        await asyncio.sleep(0)
        queue = self._stored.queues.get(redis_key, {})
        return len(queue) + len(self._stored.indexes.get(redis_key, ()))

    async def clock(self) -> int:
        await asyncio.sleep(0)
        return self._clock()

    async def check(self) -> None:
        """It answers; what it is given lives as long as the process, and callers know that."""

    def hurry(self, seconds: float) -> None:
        """It never makes anybody wait."""

    async def aclose(self) -> None:
        """Keep everything: a test may look at it afterwards."""

    def _value(self, redis_key: str) -> bytes | None:
        kept = self._stored.values.get(redis_key)
        if kept is None:
            return None
        if kept.expires_at is not None and kept.expires_at <= self._clock():
            self._set(redis_key, None)
            return None
        return kept.value

    def _set(self, redis_key: str, kept: _Kept | None) -> None:
        if kept is None:
            self._stored.values.pop(redis_key, None)
        else:
            self._stored.values[redis_key] = kept
        self._note_change(redis_key)

    def _note_change(self, redis_key: str) -> None:
        self._stored.changes[redis_key] = self._stored.changes.get(redis_key, 0) + 1

    def _filled(self, room: Room) -> tuple[int, bool]:
        """How many members an index has, and whether the one is among them."""
        index = self._stored.indexes.get(room.redis_key, set())
        return len(index), room.member in index

    def _watched(self, redis_keys: Sequence[str]) -> list[int]:
        for redis_key in redis_keys:
            self._value(redis_key)  # a lease that ran out is a change
        return [self._stored.changes.get(redis_key, 0) for redis_key in redis_keys]
