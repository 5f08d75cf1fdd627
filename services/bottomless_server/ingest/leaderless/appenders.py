"""The port of ingest for streams without an owner: any node appends to them, and none is forwarded.

What a stream is lies in coordination. This node remembers of it whose it is, which never changes, and
the highest that it saw of its tail.

On the record's path: after front/append_requests.py, before the writer of WAL objects (writing.py).
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from bottomless.drives.base import Drive
from bottomless.errors import Code, NotFound, StoreError
from bottomless.formats.rows import Frame
from bottomless.formats.stream_record import LEADERLESS, SERVED, decode_record
from bottomless.model.names import StreamId
from bottomless_server.coordination.base import Coordination
from bottomless_server.core.not_found import stream_not_found
from bottomless_server.core.tracking.known_producers import Producer, TrackingBounds
from bottomless_server.ingest.leaderless.core.pieces import WaitingAppend
from bottomless_server.ingest.leaderless.core.remembered import KnownBounds
from bottomless_server.ingest.leaderless.known_producers import KnownProducers
from bottomless_server.ingest.leaderless.seen_tails import SEEN_COUNT_MAX
from bottomless_server.ingest.leaderless.staged_batches import StagedObjects
from bottomless_server.ingest.leaderless.staged_commits import LeaderlessCommits
from bottomless_server.ingest.leaderless.writing import Writer
from bottomless_server.ingest.ports import Staged
from bottomless_server.ingest.producers.producers import Appended, in_flight
from bottomless_server.ingest.records.conditions import Conditions, WithKey
from bottomless_server.ingest.records.intake import Append
from bottomless_server.ingest.settings import IngestSettings
from bottomless_server.node.room import MemoryRoom
from bottomless_server.stores.streams import stream_key


class LeaderlessAppenders:
    """The `Appenders` of the leaderless profile."""

    def __init__(
        self,
        coordination: Coordination,
        writer: Writer,
        producers: KnownProducers,
        batches: StagedObjects,
        commits: LeaderlessCommits,
    ) -> None:
        self.writer: Final = writer
        self.producers: Final = producers
        self.batches: Final = batches
        self.commits: Final = commits
        self.refusals: Final[Counter[str]] = Counter()
        """Appends that were refused before they came in line, by their code."""
        self._coordination = coordination
        self._tenants: OrderedDict[StreamId, str] = OrderedDict()
        """The tenant of each stream that was asked for here."""
        self._keys: set[tuple[StreamId, bytes]] = set()
        """Idempotency keys of appends that are in line here; room for bodies bounds them."""

    async def get(self, stream_id: StreamId) -> "LeaderlessAppender":
        """The appender of a stream.

        Raises:
            NotFound: there is no such stream.
            Corrupt: its tail or its record is damaged.
            Unavailable: `coordination-regressed`, or not now.
        """
        tenant = self._tenants.get(stream_id)
        if tenant is None:
            tenant = await self._look(stream_id)
            self._tenants[stream_id] = tenant
            while len(self._tenants) > SEEN_COUNT_MAX:
                self._tenants.popitem(last=False)
        return LeaderlessAppender(self, stream_id, tenant)

    def forget_elsewhere(self, stream_id: StreamId) -> None:
        """Do nothing: a leaderless stream has no owner."""

    def at_once(self, stream_id: StreamId) -> "LeaderlessAppender | None":
        """The appender of a stream that was asked for before, where there is space; None leaves it to
        `get`, also where that will refuse."""
        tenant = self._tenants.get(stream_id)
        if tenant is None:
            return None
        try:
            self.writer.require_space()
        except StoreError:
            return None
        return LeaderlessAppender(self, stream_id, tenant)

    def put(self, stream_id: StreamId, append: Append) -> asyncio.Future[Appended]:
        """Put an append in line, one of each key at a time.

        Raises:
            StoreError: it is refused now, and is not in line; outcome none.
        """
        identity, key = append.conditions.identity, None
        if isinstance(identity, WithKey):
            key = (stream_id, identity.key_hash)
            if key in self._keys:
                raise in_flight()
        answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self.writer.put(stream_id, WaitingAppend(append, partial(_settle, answer)))
        if key is not None:
            self._keys.add(key)
        answer.add_done_callback(partial(self._answered, stream_id, key))
        return answer

    def _answered(
        self,
        stream_id: StreamId,
        key: tuple[StreamId, bytes] | None,
        answer: asyncio.Future[Appended],
    ) -> None:
        if key is not None:
            self._keys.discard(key)
        if not answer.cancelled() and isinstance(answer.exception(), NotFound):
            self._tenants.pop(stream_id, None)

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count what is refused."""
        try:
            yield
        except StoreError as error:
            self.refusals[error.code] += 1
            raise

    @contextmanager
    def asking(self, stream_id: StreamId) -> Iterator[None]:
        """Forget a stream that is said to be gone: its name may be another one's by now, and the next
        request looks."""
        try:
            yield
        except NotFound as error:
            if error.code is Code.STREAM_NOT_FOUND:
                self._tenants.pop(stream_id, None)
            raise

    async def _look(self, stream_id: StreamId) -> str:
        await self.producers.look(stream_id)
        value = await self._coordination.get(stream_key(stream_id))
        if value is None:
            raise stream_not_found()
        return decode_record(value, SERVED | {LEADERLESS}).full_name.tenant


def known_bounds(settings: IngestSettings) -> KnownBounds:
    """Bounds of what a leaderless stream knows, for its commits and for whoever asks about it."""
    tracking = TrackingBounds(
        producer_count_max=settings.ingest_producer_count_max,
        append_count_max=settings.ingest_producer_append_count_max,
        key_count_max=settings.ingest_key_count_max,
        keep_ms=settings.ingest_key_keep_ms,
    )
    return KnownBounds(tracking, settings.ingest_producer_keep_ms)


def leaderless_appenders(
    settings: IngestSettings,
    coordination: Coordination,
    drive: Drive,
    writer: Writer,
    room: MemoryRoom,
    read_clock: Callable[[], int],
    *,
    put_seconds: float,
) -> LeaderlessAppenders:
    """Make the appenders of a node around its writer. `read_clock` tells the time in ms since 1970, or
    raises `clock-skew`; `put_seconds` is how long a put is tried."""
    bounds = known_bounds(settings)
    producers = KnownProducers(coordination, writer, bounds, read_clock)
    batches = StagedObjects(
        drive, read_clock, keep_ms=settings.ingest_staged_keep_ms, put_seconds=put_seconds
    )
    commits = LeaderlessCommits(
        batches,
        producers,
        writer,
        room,
        bounds,
        group_size_max=settings.group_bytes_max,
        commit_size_max=settings.ingest_staged_stream_bytes_max,
    )
    return LeaderlessAppenders(coordination, writer, producers, batches, commits)


def _settle(answer: asyncio.Future[Appended], said: Appended | StoreError) -> None:
    if answer.done():
        # Nobody waits any more.
        return
    if isinstance(said, StoreError):
        answer.set_exception(said)
    else:
        answer.set_result(said)


class LeaderlessAppender:
    """The `Appender` of one stream that nobody owns."""

    __slots__ = ("_all", "_tenant", "stream_id")

    durability: Final = "object-store"
    replica_count: Final = None

    def __init__(self, appenders: LeaderlessAppenders, stream_id: StreamId, tenant: str) -> None:
        self._all = appenders
        self._tenant = tenant
        self.stream_id: Final = stream_id

    @property
    def next_offset(self) -> int:
        return self._all.writer.seen.of(self.stream_id).next_offset

    def require_space(self) -> None:
        with self._all.counting():
            self._all.writer.require_space()

    async def append(self, append: Append) -> Appended:
        return await self.put(append)

    def put(self, append: Append) -> asyncio.Future[Appended]:
        with self._all.counting():
            return self._all.put(self.stream_id, append)

    async def stage(self, frames: Sequence[Frame]) -> Staged:
        with self._all.asking(self.stream_id):
            # Else an object would be put that no deletion of the stream looks for any more.
            await self._all.producers.look(self.stream_id)
            return await self._all.batches.stage(self.stream_id, self._tenant, frames)

    async def commit(self, conditions: Conditions, staged_ids: Sequence[str]) -> Appended:
        with self._all.counting(), self._all.asking(self.stream_id):
            return await self._all.commits.commit(
                self.stream_id, self._tenant, conditions, staged_ids
            )

    async def list_producers(self, after: str, count: int) -> list[tuple[str, Producer]]:
        with self._all.asking(self.stream_id):
            return await self._all.producers.listed(self.stream_id, after, count)

    async def find_producer(self, producer_id: str) -> Producer | None:
        with self._all.asking(self.stream_id):
            return await self._all.producers.find(self.stream_id, producer_id)

    async def raise_epoch(self, producer_id: str) -> None:
        with self._all.asking(self.stream_id):
            await self._all.producers.raise_epoch(self.stream_id, producer_id)

    async def forget_producer(self, producer_id: str) -> None:
        with self._all.asking(self.stream_id):
            await self._all.producers.forget(self.stream_id, producer_id)
