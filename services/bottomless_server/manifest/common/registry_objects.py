"""The registry object of each stream: what of its record outlives coordination, in the bucket.

The record is changed first, and then the object is put under the next version, if absent; only when it
is there the older one goes into the delete queue. After a crash between the two the record is ahead of
the bucket, and whoever needs the object next puts it. After a crash before the older one is queued it
stays until the stream is swept: the newest counts, so it does no harm.

What the object says is compared by its checksum and not by the version alone: a claim changes the home
without asking here, and is noticed so.

The drives of a stream are the exception to "later": on a drive that the object does not name no object
of the stream may be put, since a rebuild would not look for it there, nor a deletion after that.
"""

from dataclasses import replace
from typing import Final

from cachetools import LRUCache

from bottomless.drives.base import Drive, ObjectExists
from bottomless.errors import Unavailable
from bottomless.formats.checks import crc32c
from bottomless.formats.keys import registry_key
from bottomless.formats.stream_record import decode_record, encode_registry
from bottomless.guards import guard
from bottomless.model.names import StreamId
from bottomless.model.stream import StreamRecord
from bottomless_server.coordination.base import Changes, Coordination, Values
from bottomless_server.manifest.common.trusted_time import TrustedTime
from bottomless_server.manifest.settings import ManifestSettings
from bottomless_server.stores.streams import Streams, delete_later, stream_key

_ATTEMPT_COUNT: Final = 4
_OLDER_COUNT_MAX: Final = 4
"""Older registry objects that are looked after when a new one is put: crashes leave some."""
_KNOWN_COUNT_MAX: Final = 100_000
"""Streams whose object is known to be there; forgetting one costs a request."""


class RegistryObjects:
    """Puts registry objects, and knows which are there. One for all streams of a process."""

    def __init__(
        self,
        drive: Drive,
        coordination: Coordination,
        streams: Streams,
        time: TrustedTime,
        settings: ManifestSettings,
    ) -> None:
        self._drive = drive
        self._coordination = coordination
        self._streams = streams
        self._time = time
        self._settings = settings
        self._known: LRUCache[StreamId, int] = LRUCache(_KNOWN_COUNT_MAX)
        """Checksum of the registry object that is there."""

    async def ensure(self, record: StreamRecord) -> StreamRecord:
        """Make sure that the bucket says of a stream what its record says.

        Returns the record, with a higher version where the one it had was taken by an object
        that says something else.

        Raises:
            Unavailable: it is not there yet; the same again is right.
            NotFound: the stream is gone.
        """
        for _ in range(_ATTEMPT_COUNT):
            if await self._put(record):
                return record
            record = await self._raise_version(record)
        raise Unavailable("the registry object keeps changing")

    async def _put(self, record: StreamRecord) -> bool:
        """Whether the object of this version says what the record says."""
        data = encode_registry(record)
        crc = crc32c(data)
        if self._known.get(record.stream_id) == crc:
            return True
        object_key = registry_key(record.stream_id, record.registry_version, record.tenant)
        try:
            await self._drive.put(object_key, [data], crc)
        except ObjectExists:
            if await self._drive.get(object_key) != data:
                return False
        else:
            await self._retire_older(record)
        self._known[record.stream_id] = crc
        return True

    async def _raise_version(self, record: StreamRecord) -> StreamRecord:
        def decide(current: StreamRecord) -> StreamRecord:
            if current.registry_version != record.registry_version:
                return current
            return replace(current, registry_version=current.registry_version + 1)

        return await self._streams.update(record.stream_id, decide)

    async def _retire_older(self, record: StreamRecord) -> None:
        """Queue the objects that the new one replaces, now that it is durable."""
        newest = record.registry_version
        due_at = self._time.latest() + self._settings.manifest_root_grace_ms
        older = [
            delete_later(registry_key(record.stream_id, version, record.tenant), due_at)
            for version in range(max(1, newest - _OLDER_COUNT_MAX), newest)
        ]
        if older:
            key = stream_key(record.stream_id)

            def unless_overtaken(values: Values) -> tuple[Changes, None]:
                # The number of a process of before a rebuild is another record's by now.
                value = values[key]
                if value is None:
                    return Changes(), None
                now = decode_record(value, self._streams.served)
                same = now.registry_version == newest
                return Changes(queued=older if same else []), None

            await self._coordination.transact([key], unless_overtaken)


@guard("the drives of a stream, in the bucket before anything is on them")
async def note_drives(objects: RegistryObjects, record: StreamRecord) -> None:
    """Have the bucket say on which drives a stream may have fragments, before one is put there.

    Raises:
        Unavailable: it does not yet, and nothing may be put; the same again is right.
        NotFound: the stream is gone.
    """
    if record.drives:
        said = await objects.ensure(record)
        # A record of before the loss of coordination: the rebuilt one need not know these drives.
        if not set(record.drives) <= set(said.drives):
            raise Unavailable("coordination was rebuilt while drives were noted")
