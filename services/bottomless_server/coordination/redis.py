"""Coordination in Redis or Valkey, over redis-py's connections but not its client.

Why not its pipelines? They turn a connection that broke while keys were watched
into the error that means "others changed them", and may reconnect and send again.
Here one attempt is one connection from WATCH to the reply of EXEC: an error before
EXEC is sent changed nothing; after it nobody knows, and the caller hears so. Either
way that connection is closed, so that no late reply can reach another caller. What pipelines do
was tried, see decision 30.

On the server after a crash of this process: before EXEC arrived, nothing of the
transaction; after it, all of it, synced before the reply (`appendfsync always`).
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Self, TypeVar

from redis.exceptions import RedisError, ResponseError

from bottomless_server.coordination.base import (
    CoordinationConflict,
    CoordinationUnavailable,
    CoordinationUnknown,
    Decide,
    Due,
    Hold,
    Room,
    StoreRun,
)
from bottomless_server.coordination.redis_commands import (
    Command,
    hold_of,
    holding,
    settling,
    writing,
)
from bottomless_server.coordination.redis_exchanges import (
    ANSWER_SECONDS,
    RedisExchanges,
    unavailable,
    unless_refused,
)

T = TypeVar("T")

CONFLICT_COUNT_MAX: Final = 16

_WANTED: Final = {
    "appendonly": "yes",
    "appendfsync": "always",
    "maxmemory-policy": "noeviction",
}
"""Settings without which an answered write can be lost."""


def sure_age_ms(told_seconds: int) -> int:
    """How long a run has been there at least, in ms, of which Valkey tells so many seconds. It takes one
    time of day in whole seconds from another, so a second of that may be none; and what is below zero
    comes of a clock that was set back."""
    return 1_000 * max(0, told_seconds - 1)


class RedisCoordination:
    """Made by `connect`. Calls may run at the same time."""

    def __init__(self, exchanges: RedisExchanges, *, accept_unsafe: bool = False) -> None:
        self._exchanges = exchanges
        self._accept_unsafe = accept_unsafe

    @classmethod
    def connect(
        cls, url: str, *, accept_unsafe: bool = False, answer_seconds: float = ANSWER_SECONDS
    ) -> Self:
        """Prepare for `redis://`, `rediss://` or `unix:///path?db=0`; connections open when needed."""
        return cls(RedisExchanges.connect(url, answer_seconds), accept_unsafe=accept_unsafe)

    @property
    def connected_count(self) -> int:
        return self._exchanges.connected_count

    async def get(self, redis_key: str) -> bytes | None:
        (value,) = await self._ask(("GET", redis_key))
        return _bytes_or_none(value)

    async def get_many(self, redis_keys: Sequence[str]) -> list[bytes | None]:
        if not redis_keys:
            return []
        (values,) = await self._ask(("MGET", *redis_keys))
        return [_bytes_or_none(value) for value in values]

    async def transact(
        self,
        redis_keys: Sequence[str],
        decide: Decide[T],
        attempts: int = 16,
        room: Room | None = None,
    ) -> T:
        assert redis_keys

        def commands(replies: list[Any]) -> tuple[list[Command], T]:
            values = [_bytes_or_none(value) for value in replies[0]]
            changes, value = decide(dict(zip(redis_keys, values, strict=True)))
            if room is not None:
                count, score = replies[1:]
                room.check(changes, count, score is not None)
            return writing(changes), value

        watched: list[str] = [*redis_keys]
        reads: list[Command] = [("MGET", *redis_keys)]
        if room is not None:
            watched.append(room.redis_key)
            reads += [("ZCARD", room.redis_key), ("ZSCORE", room.redis_key, room.member)]
        for _ in range(attempts):
            written, value = await self._attempt(watched, reads, commands)
            if written:
                return value
        raise CoordinationConflict("others changed the same keys at every attempt")

    async def hold(self, redis_key: str, value: bytes, ttl_ms: int) -> Hold:
        (before,) = await self._run_script(holding(redis_key, value, ttl_ms))
        return hold_of(_bytes_or_none(before), value)

    async def release(self, redis_key: str, value: bytes) -> None:
        def decide(replies: list[Any]) -> tuple[list[Command], None]:
            writes: list[Command] = [("DEL", redis_key)] if replies[0] == value else []
            return writes, None

        await self._until_written([redis_key], [("GET", redis_key)], decide)

    async def remaining(self, redis_keys: Sequence[str]) -> list[int | None]:
        if not redis_keys:
            return []
        left = await self._ask(*(("PTTL", redis_key) for redis_key in redis_keys))
        # -2 is of a key that is absent, -1 of one that never runs out.
        assert -1 not in left, "a key is no lease"
        return [None if ms == -2 else int(ms) for ms in left]

    async def due(self, redis_key: str, now: int, limit: int) -> list[Due]:
        (found,) = await self._ask(
            ("ZRANGEBYSCORE", redis_key, "-inf", now, "WITHSCORES", "LIMIT", 0, limit)
        )
        return [
            Due(redis_key, member, int(float(score)))
            for member, score in zip(found[::2], found[1::2], strict=True)
        ]

    async def settle(self, dues: Sequence[Due]) -> None:
        # Not by WATCH: others write into a queue all the time, and each of their members would
        # be a conflict with all of ours.
        for command in settling(dues):
            await self._run_script(command)

    async def due_at(self, redis_key: str, members: Sequence[bytes]) -> list[int | None]:
        if not members:
            return []
        (scores,) = await self._ask(("ZMSCORE", redis_key, *members))
        return [None if score is None else int(float(score)) for score in scores]

    async def bring_forward(self, redis_key: str, latest: int, limit: int) -> list[Due]:
        (found,) = await self._ask(
            ("ZRANGEBYSCORE", redis_key, f"({latest}", "+inf", "WITHSCORES", "LIMIT", 0, limit)
        )
        late = [
            Due(redis_key, member, int(float(score)))
            for member, score in zip(found[::2], found[1::2], strict=True)
        ]
        # XX: it may have been settled meanwhile. A lost reply costs nothing: it may be done twice.
        moves: list[Command] = [("ZADD", redis_key, "XX", "LT", latest, due.member) for due in late]
        if moves:
            await self._ask(*moves)
        return late

    async def members(self, redis_key: str, after: bytes, limit: int) -> list[bytes]:
        start = b"(" + after if after else b"-"
        (found,) = await self._ask(("ZRANGEBYLEX", redis_key, start, "+", "LIMIT", 0, limit))
        return list(found)

    async def member_count(self, redis_key: str) -> int:
        (count,) = await self._ask(("ZCARD", redis_key))
        return int(count)

    async def clock(self) -> int:
        ((seconds, microseconds),) = await self._ask(("TIME",))
        return int(seconds) * 1000 + int(microseconds) // 1000

    async def fullness(self) -> float:
        told = await self._info("memory")
        limit = int(told["maxmemory"])
        return int(told["used_memory"]) / limit if limit else 0.0

    async def run(self) -> StoreRun:
        told = await self._info("server")
        return StoreRun(told["run_id"], sure_age_ms(int(told["uptime_in_seconds"])))

    async def _info(self, section: str) -> dict[str, str]:
        (told,) = await self._ask(("INFO", section))
        return dict(line.partition(":")[::2] for line in told.decode("utf-8").split("\r\n"))

    async def check(self) -> None:
        if self._accept_unsafe:
            await self._ask(("PING",))
            return
        found = await self._ask(*(("CONFIG GET", name) for name in _WANTED))
        for (name, wanted), pair in zip(_WANTED.items(), found, strict=True):
            value = pair[1].decode("ascii", "replace") if len(pair) == 2 else "unknown"
            if value != wanted:
                raise CoordinationUnavailable(
                    "the coordination store can lose what it answered",
                    retryable=False,
                    facts={"setting": name, "value": value, "wanted": wanted},
                )

    def hurry(self, seconds: float) -> None:
        self._exchanges.hurry(seconds)

    async def aclose(self) -> None:
        await self._exchanges.aclose()

    async def _until_written(
        self,
        redis_keys: Sequence[str],
        reads: Sequence[Command],
        decide: Callable[[list[Any]], tuple[list[Command], T]],
    ) -> T:
        for _ in range(CONFLICT_COUNT_MAX):
            written, value = await self._attempt(redis_keys, reads, decide)
            if written:
                return value
        raise CoordinationUnavailable("others changed the same key at every attempt")

    async def _run_script(self, command: Command) -> list[Any]:
        """Run what changes its keys at one moment, whoever else writes them; its reply."""
        async with self._exchanges.connection() as connection:
            try:
                replies = await self._exchanges.exchange(connection, [command])
            except (RedisError, OSError) as error:
                raise CoordinationUnknown("the coordination store did not answer") from error
            try:
                return unless_refused(replies)
            except ResponseError as error:
                raise unavailable(error) from error

    async def _ask(self, *commands: Command) -> list[Any]:
        """Replies to commands that only read."""
        async with self._exchanges.connection() as connection:
            try:
                return unless_refused(await self._exchanges.look(connection, commands))
            except (RedisError, OSError) as error:
                raise unavailable(error) from error

    async def _attempt(
        self,
        redis_keys: Sequence[str],
        reads: Sequence[Command],
        decide: Callable[[list[Any]], tuple[list[Command], T]],
    ) -> tuple[bool, T]:
        """Watch, read, decide, write; False if the keys changed in between. With it what `decide`
        gave beside its writes.

        EXEC is sent also where nothing is to be written: it tells whether what was read
        at one time was true at one time.
        """
        async with self._exchanges.connection() as connection:
            try:
                replies = await self._exchanges.look(connection, [("WATCH", *redis_keys), *reads])
                unless_refused(replies)
            except (RedisError, OSError) as error:
                raise unavailable(error) from error
            # What this raises ends the attempt; the connection is then closed, which
            # also ends the watch, cheaper to get right than UNWATCH.
            writes, value = decide(replies[1:])
            # redis-py would connect anew here, and a new connection watches nothing.
            if not connection.is_connected:
                raise CoordinationUnavailable("the connection was closed")
            try:
                replies = await self._exchanges.exchange(
                    connection, [("MULTI",), *writes, ("EXEC",)]
                )
            except (RedisError, OSError) as error:
                raise CoordinationUnknown("the coordination store did not answer EXEC") from error
            return _executed(replies), value


def _executed(replies: list[Any]) -> bool:
    """Whether EXEC wrote; False where a watched key had changed."""
    done = replies[-1]
    if isinstance(done, ResponseError):
        # Refused as a whole: out of memory, read-only, no right to one of the commands.
        refusal = next(reply for reply in replies if isinstance(reply, ResponseError))
        raise CoordinationUnavailable("the coordination store refused to write") from refusal
    if done is None:
        return False
    failed = [reply for reply in done if isinstance(reply, Exception)]
    # A command that fails inside EXEC does not undo the others: a key holds another type.
    assert not failed, failed
    return True


def _bytes_or_none(value: Any) -> bytes | None:
    assert value is None or isinstance(value, bytes)
    return value
