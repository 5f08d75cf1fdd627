"""Coordination in memory: for tests and simulations. Nothing is durable.

Every call gives others one turn before it acts, and `transact` one more between
reading and writing, so that conflicts happen here as they do in the real store.
"""

import asyncio
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

from bottomless_server.coordination.base import (
    Changes,
    CoordinationConflict,
    Decide,
    Due,
    Hold,
    Room,
    StoreRun,
)

T = TypeVar("T")
_DAY_MS: Final = 86_400_000


@dataclass(slots=True)
class Kept:
    """A value, and when it runs out, in milliseconds since 1970."""

    value: bytes
    expires_at: int | None = None


@dataclass(slots=True)
class Stored:
    """All that coordination in memory holds."""

    values: dict[str, Kept] = field(default_factory=dict)
    queues: dict[str, dict[bytes, int]] = field(default_factory=dict)
    indexes: dict[str, set[bytes]] = field(default_factory=dict)
    changes: dict[str, int] = field(default_factory=dict)
    """How often each key was written, which is what WATCH compares."""


class Watched(NamedTuple):
    """What a WATCH with its reads has found, for the EXEC that follows."""

    values: dict[str, bytes | None]
    room: Room | None
    filled: tuple[int, bool]
    """How many members the index of `room` has, and whether the one is among them."""
    redis_keys: list[str]
    writes: list[int]
    """How often each of the keys had been written."""

    def check(self, changes: Changes) -> None:
        """Refuse changes that need more of `room` than there is, as the room itself does."""
        if self.room is not None:
            self.room.check(changes, *self.filled)


class MemoryCoordination:
    """`clock` gives milliseconds since 1970; leases run out by it.

    What a store has beside its protocol is here as methods that act at once, without a turn for
    others: `write`, the two halves of a transaction, a look at what is stored, the loss of
    everything, and a backup that is put back.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._stored = Stored()
        self.connected_count = 1
        self.used_share = 0.0
        """What `fullness` says."""
        self._run_count = 1
        self._runs_since: int | None = None
        """When this run began, by the clock; None of the first one, which has run for a day."""

    async def get(self, redis_key: str) -> bytes | None:
        await asyncio.sleep(0)
        return self.peek(redis_key)

    async def get_many(self, redis_keys: Sequence[str]) -> list[bytes | None]:
        await asyncio.sleep(0)
        return [self.peek(redis_key) for redis_key in redis_keys]

    async def transact(
        self,
        redis_keys: Sequence[str],
        decide: Decide[T],
        attempts: int = 16,
        room: Room | None = None,
    ) -> T:
        assert redis_keys
        for _ in range(attempts):
            await asyncio.sleep(0)
            watched = self.watch(redis_keys, room)
            changes, value = decide(watched.values)
            watched.check(changes)
            await asyncio.sleep(0)
            if self.execute(watched, changes):
                return value
        raise CoordinationConflict("others changed the same keys at every attempt")

    def watch(self, redis_keys: Sequence[str], room: Room | None = None) -> Watched:
        """Do the first half of a transaction: WATCH, and the reads."""
        keys = [*redis_keys, *([room.redis_key] if room else [])]
        values = {key: self.peek(key) for key in redis_keys}
        return Watched(
            values, room, self._filled(room) if room else (0, False), keys, self._writes(keys)
        )

    def execute(self, watched: Watched, changes: Changes) -> bool:
        """Do the second half, EXEC: all of the changes, or none if what was watched has changed.
        Returns which."""
        if self._writes(watched.redis_keys) != watched.writes:
            return False
        self.write(changes)
        return True

    def write(self, changes: Changes) -> None:
        """Write at once and without conditions, as another client of the store could."""
        for redis_key, value in changes.values.items():
            self._set(redis_key, None if value is None else Kept(value))
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
        before = self.peek(redis_key)
        if before not in (None, value):
            return Hold.REFUSED
        self._set(redis_key, Kept(value, self._clock() + ttl_ms))
        return Hold.TAKEN if before is None else Hold.RENEWED

    async def release(self, redis_key: str, value: bytes) -> None:
        await asyncio.sleep(0)
        if self.peek(redis_key) == value:
            self._set(redis_key, None)

    async def remaining(self, redis_keys: Sequence[str]) -> list[int | None]:
        await asyncio.sleep(0)
        return [self._remaining(redis_key) for redis_key in redis_keys]

    def _remaining(self, redis_key: str) -> int | None:
        if self.peek(redis_key) is None:
            return None
        expires_at = self._stored.values[redis_key].expires_at
        assert expires_at is not None, "the key is no lease"
        return expires_at - self._clock()

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

    async def fullness(self) -> float:
        await asyncio.sleep(0)
        return self.used_share

    async def run(self) -> StoreRun:
        await asyncio.sleep(0)
        up_ms = _DAY_MS if self._runs_since is None else self._clock() - self._runs_since
        return StoreRun(f"run-{self._run_count}", up_ms)

    async def check(self) -> None:
        """It answers; what it is given lives as long as the process, and callers know that."""

    def hurry(self, seconds: float) -> None:
        """It never makes anybody wait."""

    async def aclose(self) -> None:
        """Keep everything: a test may look at it afterwards."""

    def lose(self) -> None:
        """Lose everything, as at FLUSHALL: whoever watched a key that was there is told."""
        stored = self._stored
        for redis_key in {**stored.values, **stored.indexes}:
            self._note_change(redis_key)
        stored.values.clear()
        stored.queues.clear()
        stored.indexes.clear()

    def copy(self) -> Stored:
        """Copy all that is stored, for `put_back`."""
        return deepcopy(self._stored)

    def put_back(self, copy: Stored) -> None:
        """Hold what was copied, and nothing else, as after the restore of a backup: by another run
        of the store. Whoever watched a key has lost the connection."""
        before = self._stored.changes
        self._stored = deepcopy(copy)
        for redis_key, count in before.items():
            self._stored.changes[redis_key] = count + 1
        self.start_anew()

    def start_anew(self) -> None:
        """Go on as another run of the store, with all that it holds."""
        self.connected_count += 1
        self._run_count += 1
        self._runs_since = self._clock()

    def share(self, other: "MemoryCoordination") -> None:
        """Hold what another one holds from now on, as two connections to one store do. It ends where
        a copy is put back."""
        self._stored = other._stored  # noqa: SLF001 it is of this class

    def peek_queue(self, redis_key: str) -> dict[bytes, int]:
        """Return the members of a queue, and when each is due."""
        return dict(self._stored.queues.get(redis_key, {}))

    def peek_members(self, redis_key: str) -> list[bytes]:
        """Return the members of an index in the order of their bytes."""
        return sorted(self._stored.indexes.get(redis_key, ()))

    def peek(self, redis_key: str) -> bytes | None:
        """Return the value of a key, or None where there is none."""
        kept = self._stored.values.get(redis_key)
        if kept is None:
            return None
        if kept.expires_at is not None and kept.expires_at <= self._clock():
            self._set(redis_key, None)
            return None
        return kept.value

    def _set(self, redis_key: str, kept: Kept | None) -> None:
        if kept is None:
            self._stored.values.pop(redis_key, None)
            self._stored.queues.pop(redis_key, None)
            self._stored.indexes.pop(redis_key, None)
        else:
            self._stored.values[redis_key] = kept
        self._note_change(redis_key)

    def _note_change(self, redis_key: str) -> None:
        self._stored.changes[redis_key] = self._stored.changes.get(redis_key, 0) + 1

    def _filled(self, room: Room) -> tuple[int, bool]:
        """How many members an index has, and whether the one is among them."""
        index = self._stored.indexes.get(room.redis_key, set())
        return len(index), room.member in index

    def _writes(self, redis_keys: Sequence[str]) -> list[int]:
        for redis_key in redis_keys:
            self.peek(redis_key)  # a lease that ran out is a change
        return [self._stored.changes.get(redis_key, 0) for redis_key in redis_keys]
