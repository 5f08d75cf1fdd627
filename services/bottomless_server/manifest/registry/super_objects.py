"""Super objects: what the bucket says of each super stream, so that a rebuild has it and its partitions.

A change of the record is one EXEC; then the partitions follow, each by an EXEC and an object of its
own; then the next super object is put, and the oldest are deleted. After a crash before that the
record is ahead of the bucket, and the first touch in another process does the rest. The object of a
super stream that grows says what it was before: where coordination is lost then, the growth is, too.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, Protocol

import structlog
from cachetools import LRUCache

from bottomless.drives.base import ObjectExists, ObjectMissing
from bottomless.errors import NotFound, Outcome, Unavailable
from bottomless.formats.checks import crc32c
from bottomless.formats.keys import super_key as super_object_key
from bottomless.formats.super_record import encode_super_object
from bottomless.guards import guard
from bottomless.model.names import SuperId
from bottomless.model.stream import PartitionOf, StreamRecord, StreamState
from bottomless.model.super_stream import SuperRecord, SuperState
from bottomless_server.manifest.common.context import Context
from bottomless_server.runtime.base.fault_points import reach
from bottomless_server.stores.supers import Supers

log = structlog.get_logger(__name__)

_ATTEMPT_COUNT: Final = 4
_KNOWN_COUNT_MAX: Final = 10_000
"""Super streams whose object is known to be there; forgetting one costs a request."""
_KEPT_COUNT: Final = 4
"""Super objects of one super stream that stay: the newest counts."""
_PUTS_AT_ONCE: Final = 16
_PAGE_COUNT: Final = 100
"""Records of partitions that are read in one question."""


class StreamObjects(Protocol):
    """What is needed of the registry of streams."""

    generation: int

    async def ensure_object(
        self, record: StreamRecord, *, committed: bool = False
    ) -> StreamRecord: ...

    async def require_generation(self, generation: int) -> None: ...


class _Durable(NamedTuple):
    """The super object that is there."""

    crc: int
    partition_count: int
    """How many partitions it names."""


class SuperObjects:
    """Puts the object of each super stream, after those of its partitions."""

    def __init__(self, context: Context, registry: StreamObjects, supers: Supers) -> None:
        self._context = context
        self._registry = registry
        self._supers = supers
        self._known: LRUCache[SuperId, _Durable] = LRUCache(_KNOWN_COUNT_MAX)

    def is_named(self, partition: PartitionOf) -> bool:
        """Whether a super object is known to be there that names a partition."""
        known = self._known.get(partition.super_id)
        return known is not None and partition.index < known.partition_count

    @guard("the super object before its name resolves")
    async def require(self, record: SuperRecord, count: int) -> None:
        """Put a super object that is not there, and refuse where none names the first `count`
        partitions.

        Raises:
            Unavailable
        """
        try:
            await self.ensure(record)
        except Unavailable as error:
            known = self._known.get(record.super_id)
            if known is None or known.partition_count < count:
                raise
            # What is there tells a rebuild of all of them; the next one tries again.
            log.warning("a super object is not there yet", error=str(error))

    async def ensure(self, record: SuperRecord, *, committed: bool = False) -> SuperRecord:
        """Make sure that the bucket says of a super stream what its record says: first of each
        partition, then of the whole.

        Returns the record, with a higher version where the one it had was taken by an object that
        says something else. `committed` says that the record was just written on somebody's behalf.

        Raises:
            Unavailable: it is not there yet; the outcome is committed if `committed`.
        """
        try:
            for _ in range(_ATTEMPT_COUNT):
                if await self._put(record):
                    return record
                record = await self._raise_version(record)
        except Unavailable as error:
            if not committed:
                raise
            raise Unavailable(
                "this is done, but not safe from the loss of coordination yet; the same again ends it",
                code=error.code,
                outcome=Outcome.COMMITTED,
            ) from error
        raise Unavailable("the super object keeps changing")

    async def _put(self, record: SuperRecord) -> bool:
        """Whether the object of this version says what the record says; the partitions' come first."""
        data = encode_super_object(_as_object(record))
        crc, super_id = crc32c(data), record.super_id
        known = self._known.get(super_id)
        if known is not None and known.crc == crc:
            return True
        object_key = super_object_key(super_id, record.registry_version, record.tenant)
        found = await self._object(object_key)
        if found is None:
            if record.state is not SuperState.DELETING:
                await self._put_partitions(record)
            await reach("manifest.super.before-object")
            try:
                await self._context.drive.put(object_key, [data], crc)
            except ObjectExists:
                found = await self._object(object_key)
            else:
                await reach("manifest.super.after-object")
            await self._retire_older(record)
        if found not in (None, data):
            return False
        self._known[super_id] = _Durable(crc, len(record.partitions))
        return True

    async def _retire_older(self, record: SuperRecord) -> None:
        """Delete objects that newer ones have replaced. The newest few stay, for a rebuild that is
        just reading them; what a crash leaves goes with the super stream."""
        last = record.registry_version - _KEPT_COUNT
        older = [
            super_object_key(record.super_id, version, record.tenant)
            for version in range(max(1, last - _KEPT_COUNT), last + 1)
        ]
        if older:
            failed = await self._context.drive.delete(older)
            if failed:
                log.warning("older super objects are left", count=len(failed))

    async def _object(self, object_key: str) -> bytes | None:
        try:
            return bytes(await self._context.drive.get(object_key))
        except ObjectMissing:
            return None

    async def _put_partitions(self, record: SuperRecord) -> None:
        """Put the registry object of each partition that is not being deleted, with the configuration
        that the super stream has.

        Raises:
            Unavailable: one of them is not there yet, or has no record any more.
            Corrupt: the record of a partition cannot be read.
        """
        room = asyncio.Semaphore(_PUTS_AT_ONCE)

        async def put(one: StreamRecord) -> None:
            async with room:
                try:
                    if one.config != record.config:
                        one = await self._supers.follow(one)
                    await self._registry.ensure_object(one)
                except NotFound:
                    # It goes with its super stream, which is being deleted.
                    return

        count = 0
        async for records in partition_records(self._context, record):
            active = [one for one in records if one.state is StreamState.ACTIVE]
            await _all(*(put(one) for one in active))
            count += len(records)
        require_all(count, len(record.partitions))

    async def _raise_version(self, record: SuperRecord) -> SuperRecord:
        def decide(current: SuperRecord) -> SuperRecord:
            if current.registry_version != record.registry_version:
                return current
            return replace(current, registry_version=current.registry_version + 1)

        return await self._supers.update(record.super_id, decide)


async def partition_records(
    context: Context, record: SuperRecord
) -> AsyncIterator[Sequence[StreamRecord]]:
    """The records of the partitions of a super stream that there are, some at a time.

    Raises:
        Corrupt: one of them cannot be read.
    """
    stream_ids = [one.stream_id for one in record.partitions]
    for start in range(0, len(stream_ids), _PAGE_COUNT):
        page = await context.streams.load_many(stream_ids[start : start + _PAGE_COUNT])
        for error in page.unreadable.values():
            raise error
        yield page.records


@guard("all partitions before the super object")
def require_all(count: int, wanted: int) -> None:
    """Refuse to name partitions of which there is no record, and so perhaps no registry object either:
    coordination was lost just now, or all of it is being deleted, or a rebuild has not found them.

    Raises:
        Unavailable: fewer were found than are wanted.
    """
    if count < wanted:
        raise Unavailable(
            f"{wanted - count} of {wanted} partitions of the super stream are gone from coordination. "
            "If a rebuild did not bring them back, their registry objects are lost: the super stream is "
            "used as it is, and can be deleted, but not be changed"
        )


def _as_object(record: SuperRecord) -> SuperRecord:
    """A record as its object says it: growth is known to coordination alone until it is over."""
    growing = record.state is SuperState.GROWING
    return replace(record, state=SuperState.ACTIVE) if growing else record


async def _all(*puts: Awaitable[None]) -> None:
    """Wait until all have ended, and raise what the first of them raised."""
    for result in await asyncio.gather(*puts, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
