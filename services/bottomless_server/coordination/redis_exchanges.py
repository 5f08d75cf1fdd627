"""Connections to Redis or Valkey, and exchanges on them: redis-py's connections, not its client.

Who takes a connection has it alone until the replies to all that was sent have come. If that ends in any
other way, the connection is closed, so that no late reply can reach another caller.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Self

from redis.asyncio.connection import AbstractConnection, BlockingConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from bottomless_server.coordination.base import CoordinationUnavailable
from bottomless_server.coordination.redis_commands import Command
from bottomless_server.coordination.silence import Silence

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


class RedisExchanges:
    """Made by `connect`. Connections open when they are needed."""

    def __init__(
        self, pool: BlockingConnectionPool, connects: "_Connects", answer_seconds: float
    ) -> None:
        self._pool = pool
        self._connects = connects
        self._answer_seconds = answer_seconds
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
    def connect(cls, url: str, answer_seconds: float = ANSWER_SECONDS) -> Self:
        """Prepare for `redis://`, `rediss://` or `unix:///path?db=0`.

        `answer_seconds` is how long the answer to what was sent is waited for.

        Raises:
            ValueError: the url cannot be read. Its sentence may hold a part of a password.
        """
        connects = _Connects()
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
        return cls(pool, connects, answer_seconds)

    @property
    def connected_count(self) -> int:
        """Connections that were opened so far."""
        # A server that ends ends its connections, and redis-py opens another without a word.
        return self._connects.count

    def hurry(self, seconds: float) -> None:
        """Wait for the server no longer than so from now on, in all that waits now or will."""
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
        """Close all connections."""
        await self._pool.aclose()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[AbstractConnection]:
        """One connection; closed, not reused, unless the block ends without an exception.

        Raises:
            CoordinationUnavailable: none could be had.
        """
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
            raise unavailable(error) from error
        finally:
            self._waiting -= 1

    async def look(self, connection: AbstractConnection, commands: Sequence[Command]) -> list[Any]:
        """Replies to commands that change nothing: not waited for where the store is silent.

        Raises:
            RedisError: the connection is of no use any more.
            OSError: no reply came in time.
        """
        async with self._in_time(self._answer_seconds) as wait:
            with self._silence.ending(wait):
                return await self._replies(connection, commands)

    async def exchange(
        self, connection: AbstractConnection, commands: Sequence[Command]
    ) -> list[Any]:
        """Replies to commands that may change something: who gives up does not know what became of it.

        Raises:
            RedisError: the connection is of no use any more.
            OSError: no reply came in time.
        """
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


class _Connects:
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


def unless_refused(replies: list[Any]) -> list[Any]:
    """Return replies of which none is a refusal.

    Raises:
        ResponseError: the first that is one.
    """
    for reply in replies:
        if isinstance(reply, ResponseError):
            raise reply
    return replies


def unavailable(error: Exception) -> CoordinationUnavailable:
    """What a caller hears of a failure that has changed nothing."""
    if isinstance(error, ResponseError):
        # It answers, and will answer the same again: a right is missing, or a key is not ours.
        return CoordinationUnavailable("the coordination store refused a command", retryable=False)
    return CoordinationUnavailable("the coordination store does not answer")
