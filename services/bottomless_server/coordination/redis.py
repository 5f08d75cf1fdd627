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

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from itertools import groupby
from typing import Any, Final, Self, TypeAlias, TypeVar

from redis.asyncio.connection import AbstractConnection, BlockingConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

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

T = TypeVar("T")

Word: TypeAlias = str | bytes | int
Command: TypeAlias = tuple[Word, ...]

CONNECTION_COUNT_MAX: Final = 16
"""Transactions at the same time; more wait, for at most the connect timeout."""
ANSWER_SECONDS: Final = 10.0
"""Longer than any fsync that is worth waiting for."""
CONNECT_SECONDS: Final = 5.0
SILENT_SECONDS: Final = 4.0
"""After so long without a word from the store, to anybody in this process, nobody waits for it whose call
has changed nothing: whoever asked for something is to hear of it within seconds."""
FIRST_WORD_SECONDS: Final = 10.0
"""How long silence is borne before the first word of all: the process starts then, nobody waits for an
answer of it, and a store that starts beside it on a slow machine is no reason to end."""
_LATE_SECONDS: Final = 0.5
"""A timer that fires so late tells that this process stood still: the store may have answered."""
CONFLICT_COUNT_MAX: Final = 16

_SETTLE: Final = """
for place, queue in ipairs(KEYS) do
    local member, due_at = ARGV[2 * place - 1], ARGV[2 * place]
    local queued = redis.call('ZSCORE', queue, member)
    if queued and tonumber(queued) == tonumber(due_at) then
        redis.call('ZREM', queue, member)
    end
end
"""
_HOLD: Final = """
local before = redis.call('GET', KEYS[1])
if not before or before == ARGV[1] then
    redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
end
return before
"""
_SETTLE_COUNT: Final = 256
"""Members of one run of it: nobody else is served meanwhile."""

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

    def __init__(
        self,
        pool: BlockingConnectionPool,
        connects: "Connects",
        answer_seconds: float,
        *,
        accept_unsafe: bool = False,
    ) -> None:
        self._pool = pool
        self._connects = connects
        self._answer_seconds = answer_seconds
        self._accept_unsafe = accept_unsafe
        self._silence = Silence(
            min(SILENT_SECONDS, answer_seconds), min(FIRST_WORD_SECONDS, answer_seconds)
        )
        connects.heard = self._silence.hear
        self._deadline: float | None = None
        self._waits: set[asyncio.Timeout] = set()
        """Timeouts of calls that wait for the server, so that `hurry` reaches them."""
        self._idle: list[AbstractConnection] = []
        """Connections that nobody uses, and that the pool believes to be in use: to give one back to it
        and to take it out again costs more than a command does."""
        self._waiting = 0
        """How many wait for the pool."""

    @classmethod
    def connect(
        cls, url: str, *, accept_unsafe: bool = False, answer_seconds: float = ANSWER_SECONDS
    ) -> Self:
        """Prepare for `redis://`, `rediss://` or `unix:///path?db=0`; connections open when needed."""
        connects = Connects()
        pool = BlockingConnectionPool.from_url(
            url,
            redis_connect_func=connects.connected,
            max_connections=CONNECTION_COUNT_MAX,
            timeout=CONNECT_SECONDS,
            # Given one, redis-py writes under `asyncio.wait_for`, which of Python 3.11 loses a
            # cancellation that comes when the write is done: a task that was to end goes on.
            # The limit is `_in_time` instead.
            socket_timeout=None,
            socket_connect_timeout=CONNECT_SECONDS,
            retry=Retry(NoBackoff(), 0),
            # RESP2: no pushed messages between replies, no move to another address.
            protocol=2,
            health_check_interval=0,
        )
        return cls(pool, connects, answer_seconds, accept_unsafe=accept_unsafe)

    @property
    def connected_count(self) -> int:
        # A server that ends ends its connections, and redis-py opens another without a word.
        return self._connects.count

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
            return _commands(changes), value

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
        # In one exchange instead of two: leases are renewed all the time, and the rule is the port's.
        (before,) = await self._run_script(("EVAL", _HOLD, 1, redis_key, value, ttl_ms))
        return _hold_of(_bytes_or_none(before), value)

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
        for command in _settling(dues):
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
        if self._deadline is not None:
            return
        self._deadline = asyncio.get_running_loop().time() + seconds
        for wait in self._waits:
            ends = wait.when()
            assert ends is not None
            # Not earlier than it would be anyhow: one that is over already cannot be set any more.
            if self._deadline < ends:
                wait.reschedule(self._deadline)

    async def aclose(self) -> None:
        await self._pool.aclose()

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
        async with self._connection() as connection:
            try:
                replies = await self._exchange(connection, [command])
            except (RedisError, OSError) as error:
                raise CoordinationUnknown("the coordination store did not answer") from error
            try:
                return _unless_refused(replies)
            except ResponseError as error:
                raise _unavailable(error) from error

    async def _ask(self, *commands: Command) -> list[Any]:
        """Replies to commands that only read."""
        async with self._connection() as connection:
            try:
                return _unless_refused(await self._look(connection, commands))
            except (RedisError, OSError) as error:
                raise _unavailable(error) from error

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
        async with self._connection() as connection:
            try:
                replies = await self._look(connection, [("WATCH", *redis_keys), *reads])
                _unless_refused(replies)
            except (RedisError, OSError) as error:
                raise _unavailable(error) from error
            # What this raises ends the attempt; the connection is then closed, which
            # also ends the watch, cheaper to get right than UNWATCH.
            writes, value = decide(replies[1:])
            # redis-py would connect anew here, and a new connection watches nothing.
            if not connection.is_connected:
                raise CoordinationUnavailable("the connection was closed")
            try:
                replies = await self._exchange(connection, [("MULTI",), *writes, ("EXEC",)])
            except (RedisError, OSError) as error:
                raise CoordinationUnknown("the coordination store did not answer EXEC") from error
            return _executed(replies), value

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[AbstractConnection]:
        """One connection; closed, not reused, unless the block ends without an exception."""
        connection = await self._taken()
        try:
            yield connection
        except BaseException:
            await asyncio.shield(connection.disconnect(nowait=True))
            await asyncio.shield(self._pool.release(connection))
            raise
        if self._waiting:
            await asyncio.shield(self._pool.release(connection))
        else:
            self._idle.append(connection)

    async def _taken(self) -> AbstractConnection:
        """A connection that is open: one that lies idle, or the pool's next one.

        Raises:
            CoordinationUnavailable
        """
        while self._idle:
            connection = self._idle.pop()
            if await _is_usable(connection):
                return connection
            await asyncio.shield(self._pool.release(connection))
        self._waiting += 1
        try:
            # A place in the pool, the connection, and what redis-py says and asks first.
            async with self._in_time(2 * CONNECT_SECONDS + self._answer_seconds) as wait:
                with self._silence.ending(wait):
                    taken: AbstractConnection = await self._pool.get_connection()  # type: ignore[no-untyped-call]
                    return taken
        except (RedisError, OSError) as error:
            raise _unavailable(error) from error
        finally:
            self._waiting -= 1

    async def _look(self, connection: AbstractConnection, commands: Sequence[Command]) -> list[Any]:
        """Replies to commands that change nothing: not waited for where the store is silent."""
        async with self._in_time(self._answer_seconds) as wait:
            with self._silence.ending(wait):
                return await self._replies(connection, commands)

    async def _exchange(
        self, connection: AbstractConnection, commands: Sequence[Command]
    ) -> list[Any]:
        """Replies to commands that may change something: who gives up does not know what became of it."""
        async with self._in_time(self._answer_seconds):
            return await self._replies(connection, commands)

    async def _replies(
        self, connection: AbstractConnection, commands: Sequence[Command]
    ) -> list[Any]:
        """Send commands at once and read all their replies; a refusal is a reply like others."""
        try:
            await connection.send_packed_command(connection.pack_commands(commands))
        except RuntimeError as error:
            # What uvloop says of a connection that the other side has reset meanwhile.
            raise ConnectionResetError("the connection is closed") from error
        replies: list[Any] = []
        for _ in commands:
            try:
                replies.append(await connection.read_response())
            except ResponseError as error:
                replies.append(error)
        self._silence.hear()
        return replies

    @asynccontextmanager
    async def _in_time(self, seconds: float) -> AsyncIterator[asyncio.Timeout]:
        """Wait for the server no longer than so, and than `hurry` allows; the TimeoutError is an
        OSError."""
        ends = asyncio.get_running_loop().time() + seconds
        if self._deadline is not None:
            ends = min(ends, self._deadline)
        async with asyncio.timeout_at(ends) as wait:
            self._waits.add(wait)
            try:
                yield wait
            finally:
                self._waits.discard(wait)


class Silence:
    """Knows when the store was heard of last, and ends waits for one that says nothing."""

    def __init__(self, seconds: float, first_seconds: float) -> None:
        """`first_seconds`: how long it may be silent before it has said anything."""
        self._seconds = seconds
        self._first_seconds = first_seconds
        self._heard_at: float | None = None

    def hear(self) -> None:
        """Note that the store has said something."""
        self._heard_at = asyncio.get_running_loop().time()

    @contextmanager
    def ending(self, wait: asyncio.Timeout) -> Iterator[None]:
        """End a wait, for the length of a block, once the store has been silent for too long.

        A store that is slow with one answer, and not with others, is waited for on.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        timer: list[asyncio.TimerHandle] = []

        def borne_from(began: float) -> float:
            heard_at = self._heard_at
            if heard_at is None:
                return began + self._first_seconds
            return max(began, heard_at) + self._seconds

        def look(due: float) -> None:
            now = loop.time()
            until = borne_from(now if now - due > _LATE_SECONDS else began)
            if until > now:
                timer[0] = loop.call_at(until, look, until)
            elif not wait.expired():
                ends = wait.when()
                wait.reschedule(now if ends is None else min(ends, now))

        first = borne_from(began)
        timer.append(loop.call_at(first, look, first))
        try:
            yield
        finally:
            timer[0].cancel()


class Connects:
    """Counts the connections of one pool."""

    def __init__(self) -> None:
        self.count = 0
        self.heard: Callable[[], None] | None = None
        """Told of each connection that the store has welcomed."""

    async def connected(self, connection: AbstractConnection) -> None:
        """Say what redis-py says first on a new connection, and count it before anything is asked."""
        self.count += 1
        await connection.on_connect()
        if self.heard is not None:
            self.heard()


async def _is_usable(connection: AbstractConnection) -> bool:
    """Whether a connection that lay idle is as it was: the server has not ended it, and nothing is
    there to be read, which would be taken for the reply to what is sent next."""
    try:
        return connection.is_connected and not await connection.can_read()
    except (RedisError, OSError):
        return False


def _unless_refused(replies: list[Any]) -> list[Any]:
    for reply in replies:
        if isinstance(reply, ResponseError):
            raise reply
    return replies


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


def _settling(dues: Sequence[Due]) -> list[Command]:
    commands: list[Command] = []
    for start in range(0, len(dues), _SETTLE_COUNT):
        page = dues[start : start + _SETTLE_COUNT]
        members = [word for due in page for word in (due.member, due.due_at)]
        keys = [due.redis_key for due in page]
        commands.append(("EVAL", _SETTLE, len(keys), *keys, *members))
    return commands


def _commands(changes: Changes) -> list[Command]:
    """What writes these changes: few commands, since each is a reply to read, and a step of EXEC."""
    present: list[Word] = []
    for key, value in changes.values.items():
        if value is not None:
            present += (key, value)
    absent = [key for key, value in changes.values.items() if value is None]
    commands: list[Command] = []
    if present:
        commands.append(("MSET", *present))
    if absent:
        commands.append(("DEL", *absent))
    commands += _settling(changes.settled)
    queued = _by_key((due.redis_key, (due.due_at, due.member)) for due in changes.queued)
    # GT: a member that is queued again waits for the later time.
    commands += [("ZADD", key, "GT", *words) for key, words in queued.items()]
    for due in changes.requeued:
        # Together: its time, or one later than it is queued for, whichever is later.
        commands.append(("ZADD", due.redis_key, "GT", due.due_at - 1, due.member))
        commands.append(("ZINCRBY", due.redis_key, 1, due.member))
    # One score for all members of an index: Redis then orders them by their bytes.
    for there, members in groupby(changes.members, lambda one: one.present):
        if there:
            words_of = _by_key((one.redis_key, (0, one.member)) for one in members)
            commands += [("ZADD", key, *words) for key, words in words_of.items()]
        else:
            words_of = _by_key((one.redis_key, (one.member,)) for one in members)
            commands += [("ZREM", key, *words) for key, words in words_of.items()]
    return commands


def _by_key(pairs: Iterable[tuple[str, tuple[Word, ...]]]) -> dict[str, list[Word]]:
    """The words of one command for each key, in the order in which they come."""
    found: dict[str, list[Word]] = {}
    for key, words in pairs:
        found.setdefault(key, []).extend(words)
    return found


def _hold_of(before: Any, value: bytes) -> Hold:
    if before is None:
        return Hold.TAKEN
    return Hold.RENEWED if before == value else Hold.REFUSED


def _bytes_or_none(value: Any) -> bytes | None:
    assert value is None or isinstance(value, bytes)
    return value


def _unavailable(error: Exception) -> CoordinationUnavailable:
    if isinstance(error, ResponseError):
        # It answers, and will answer the same again: a right is missing, or a key is not ours.
        return CoordinationUnavailable("the coordination store refused a command", retryable=False)
    return CoordinationUnavailable("the coordination store does not answer")
