"""The registry: which streams exist, under which names, configured how.

A stream is created in two steps, in this order:

1. One EXEC enters the name and the record, both or neither. From here on it exists.
2. The registry object `stream.json` is put, if absent; a rebuild after the loss of
   coordination starts from it.

After a crash between the two the stream exists without its object; the next PUT, GET or
first touch in this process puts it. The other order would leave objects of streams that
nobody can find, and a rebuild would bring them to life. An EXEC without a reply is made
again: either it kills the first attempt, or it meets it, and the id tells whose it was.
"""

import secrets
from collections import OrderedDict
from typing import Final, NamedTuple

import structlog

from bottomless.coordination.base import CoordinationUnknown
from bottomless.drives.base import ObjectExists
from bottomless.errors import Exists, NotFound, Outcome, Unavailable
from bottomless.formats.checks import crc32c
from bottomless.formats.keys import registry_key
from bottomless.formats.stream_record import encode_registry
from bottomless.model.config import StreamConfig, config_differences
from bottomless.model.names import TENANT_DEFAULT, StreamId, StreamName, stream_id_from
from bottomless.model.stream import StreamRecord, StreamState
from bottomless.stores.streams import stream_not_found
from bottomless_server.manifest.context import Context

log = structlog.get_logger(__name__)

_ATTEMPT_COUNT: Final = 4
_KNOWN_COUNT_MAX: Final = 100_000
"""Streams whose object is known to be there; forgetting one costs a request."""


class Declared(NamedTuple):
    record: StreamRecord
    created: bool


class Registry:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._known: OrderedDict[StreamId, None] = OrderedDict()
        self.generation = 0
        """Of coordination and bucket, as the start found it."""

    async def declare(self, name: StreamName, config: StreamConfig) -> Declared:
        """Create a stream, or find that it exists with this very configuration.

        Raises:
            Exists: with `differences`, pointers to the members that differ.
            Unavailable: the outcome says whether it may exist now; the same again is safe.
        """
        for _ in range(_ATTEMPT_COUNT):
            declared = await self._find(name, config) or await self._create(name, config)
            if declared is not None:
                await self._ensure_object(declared.record, declared.created)
                return declared
        raise Unavailable("the name keeps changing", outcome=Outcome.UNKNOWN)

    async def find(self, name: StreamName) -> StreamRecord:
        """The record behind a name.

        Raises:
            NotFound
        """
        return await self.load(await self._context.streams.find(name))

    async def load(self, stream_id: StreamId) -> StreamRecord:
        """The record of a stream that is not being deleted; mends what a crash left undone.

        Raises:
            NotFound
        """
        record = await self._context.streams.load(stream_id)
        if record.state is not StreamState.ACTIVE:
            raise stream_not_found()
        try:
            await self._ensure_object(record, created=False)
        except Unavailable as error:
            # Reading the registry does not need the object; the next one tries again.
            log.warning("a registry object is not there yet", error=str(error))
        return record

    async def _find(self, name: StreamName, config: StreamConfig) -> Declared | None:
        try:
            record = await self._context.streams.load(await self._context.streams.find(name))
        except NotFound:
            return None
        differences = config_differences(config, record.config)
        if differences:
            raise Exists(
                "the stream exists with another configuration",
                facts={"stream_id": record.stream_id, "differences": differences},
            )
        return Declared(record, created=False)

    async def _create(self, name: StreamName, config: StreamConfig) -> Declared | None:
        now = self._context.clock()
        record = StreamRecord(
            stream_id=stream_id_from(now, secrets.token_bytes(10)),
            name=name,
            tenant=TENANT_DEFAULT,
            state=StreamState.ACTIVE,
            created_at=now,
            config=config,
            generation=self.generation,
        )
        try:
            await self._context.streams.create(record)
        except Exists:
            return None
        except CoordinationUnknown:
            return await self._create_again(record)
        return Declared(record, created=True)

    async def _create_again(self, record: StreamRecord) -> Declared | None:
        try:
            await self._context.streams.create(record)
        except Exists:
            # Ours, if the first attempt did arrive; it cannot arrive any more otherwise.
            found = await self._context.streams.find(record.name)
            return Declared(record, created=True) if found == record.stream_id else None
        return Declared(record, created=True)

    async def _ensure_object(self, record: StreamRecord, created: bool) -> None:
        if record.stream_id in self._known:
            self._known.move_to_end(record.stream_id)
            return
        data = encode_registry(record)
        object_key = registry_key(record.stream_id, record.tenant)
        try:
            await self._context.drive.put(object_key, [data], crc32c(data))
        except ObjectExists:
            pass  # as it should be
        except Unavailable as error:
            if not created:
                raise
            raise Unavailable(
                "the stream exists, but is not safe from the loss of coordination yet",
                code=error.code,
                outcome=Outcome.COMMITTED,
            ) from error
        self._known[record.stream_id] = None
        if len(self._known) > _KNOWN_COUNT_MAX:
            self._known.popitem(last=False)
