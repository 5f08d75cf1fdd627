"""API keys in coordination.

bottomless:key:{key_id}        the key, and which object in the bucket says the same
bottomless:keys                index of the ids of all keys, those being created too
bottomless:keys:{tenant}       index of the ids of a tenant's keys
bottomless:keys-unsaved        keys whose revocation may not be in the bucket yet
bottomless:keys-tidy           keys that somebody looks at again: to sweep objects, to forget

Every change is one EXEC under WATCH of the key alone. After a crash at any moment all of it is
there or nothing, and with it the key's place in the queues. Numbers of objects are given out by
EXEC and never twice; who was given one may confirm only while nobody was given a later one. So
of all objects of a key the one with the highest number holds every change that was confirmed.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from bottomless.errors import Code, Corrupt, NotFound, Unavailable
from bottomless.formats.api_key import decode_key_record, encode_key_record
from bottomless.model.api_key import KeyId, KeyRecord
from bottomless_server.coordination.base import Changes, Coordination, Due, Member, Room, Values
from bottomless_server.stores.rebuild_step import RebuildStep
from bottomless_server.stores.restored_streams import is_restored
from bottomless_server.stores.streams import GENERATION_KEY, Streams

UNSAVED_KEY: Final = "bottomless:keys-unsaved"
TIDY_KEY: Final = "bottomless:keys-tidy"
KEYS_KEY: Final = "bottomless:keys"
_PAGE_COUNT: Final = 500

DecideKey = Callable[[KeyRecord | None], KeyRecord | None]


def key_key(key_id: KeyId) -> str:
    return f"bottomless:key:{key_id}"


def keys_index(tenant: str) -> str:
    return f"bottomless:keys:{tenant}"


def room_for(tenant: str, key_id: KeyId, count_max: int) -> Room:
    """The bound of a tenant's keys, for one that is being created."""
    return Room(keys_index(tenant), key_id.encode("ascii"), count_max)


def unsaved(key_id: KeyId, due_at: int) -> Due:
    return Due(UNSAVED_KEY, key_id.encode("ascii"), due_at)


def tidy(key_id: KeyId, due_at: int) -> Due:
    return Due(TIDY_KEY, key_id.encode("ascii"), due_at)


class ListedKeys(NamedTuple):
    """A page of a tenant's keys, in the order of their ids."""

    ids: list[KeyId]
    """All ids of the page, also of keys that are gone by now."""
    records: dict[KeyId, KeyRecord]
    unreadable: dict[KeyId, Corrupt]
    """Keys that are there, and that this release cannot read."""


class ApiKeys:
    """The records of all API keys. Holds no state of its own."""

    def __init__(self, coordination: Coordination, streams: Streams) -> None:
        self._coordination = coordination
        self._streams = streams

    async def find(self, key_id: KeyId) -> KeyRecord:
        """The record of a key that exists.

        Raises:
            NotFound: there is none, or it is being created.
            Unavailable: `coordination-regressed`: nothing is where the generation is not.
        """
        record = await self.look_at(key_id)
        if record is None or record.version == 0:
            await self._streams.check_generation()
            raise key_not_found()
        return record

    async def look_at(self, key_id: KeyId) -> KeyRecord | None:
        """Load the record under an id, also of a key that is being created; None if there is none."""
        value = await self._coordination.get(key_key(key_id))
        return None if value is None else decode_key_record(value)

    async def page(self, tenant: str, after: str, limit: int) -> list[KeyRecord]:
        """Keys of a tenant in the order of their ids, from after one: those that can be read."""
        return [*(await self.listed(tenant, after, limit)).records.values()]

    async def listed(self, tenant: str, after: str, limit: int) -> ListedKeys:
        """Keys of a tenant in the order of their ids, and beside them those that cannot be read."""
        found = await self._coordination.members(keys_index(tenant), after.encode("ascii"), limit)
        if not found:
            await self._streams.check_generation()
        page = ListedKeys([KeyId(member.decode("ascii")) for member in found], {}, {})
        values = await self._coordination.get_many([key_key(key_id) for key_id in page.ids])
        for key_id, value in zip(page.ids, values, strict=True):
            # One that was forgotten between the two reads is not there.
            if value is None:
                continue
            try:
                page.records[key_id] = decode_key_record(value)
            except Corrupt as error:
                page.unreadable[key_id] = error
        return page

    async def ids(self, after: str = "", limit: int = _PAGE_COUNT) -> list[KeyId]:
        """Ids of all tenants' keys, in their order."""
        found = await self._coordination.members(KEYS_KEY, after.encode("ascii"), limit)
        return [KeyId(member.decode("ascii")) for member in found]

    async def count(self, tenant: str) -> int:
        return await self._coordination.member_count(keys_index(tenant))

    async def change(
        self,
        key_id: KeyId,
        decide: DecideKey,
        queued: Sequence[Due] = (),
        room: Room | None = None,
    ) -> KeyRecord | None:
        """Replace what there is by what `decide` makes of it, None for nothing.

        `decide` is asked again after a conflict, and raises to leave it as it is.

        Raises:
            IndexFull: it became a key of its tenant, which has as many as `room` says.
            Unavailable: `coordination-regressed`: the store was emptied, or went back.
        """
        key = key_key(key_id)

        def change(values: Values) -> tuple[Changes, KeyRecord | None]:
            self._streams.require_generation(values[GENERATION_KEY])
            value = values[key]
            before = None if value is None else decode_key_record(value)
            after = decide(before)
            if after == before:
                return Changes(), after
            return _written(key_id, before, after, queued), after

        return await self._coordination.transact([key, GENERATION_KEY], change, room=room)

    async def restore(
        self, record: KeyRecord, step: RebuildStep, queued: Sequence[Due] = ()
    ) -> None:
        """Write a record into a coordination that has lost it; repeatable.

        Raises:
            Unavailable: the step is not what goes on, so the key may be in use.
        """
        key_id = record.key.key_id

        def change(values: Values) -> tuple[Changes, None]:
            step.require(values)
            return _written(key_id, None, record, queued), None

        await self._coordination.transact([key_key(key_id), *step.watched], change)

    async def discard(self, key_id: KeyId, step: RebuildStep) -> None:
        """Remove what coordination has of a key: a rebuild begins.

        What was restored already for its generation stays.

        Raises:
            Unavailable: the step is not what goes on, so the key may be in use.
        """
        key = key_key(key_id)

        def change(values: Values) -> tuple[Changes, None]:
            step.require(values)
            value = values[key]
            if is_restored(value, step.generation):
                return Changes(), None
            before = None
            if value is not None:
                # Of one that cannot be read the place in its tenant's index stays: it leads to nothing.
                with suppress(Corrupt):
                    before = decode_key_record(value)
            return _written(key_id, before, None, ()), None

        await self._coordination.transact([key, *step.watched], change)


def _written(
    key_id: KeyId, before: KeyRecord | None, after: KeyRecord | None, queued: Sequence[Due]
) -> Changes:
    member = key_id.encode("ascii")
    value = None if after is None else encode_key_record(after)
    members = [Member(KEYS_KEY, member, after is not None)]
    if after is not None and after.version:
        members.append(Member(keys_index(after.key.tenant), member, True))
    if after is None and before is not None:
        members.append(Member(keys_index(before.key.tenant), member, False))
    return Changes({key_key(key_id): value}, queued, members)


def key_not_found() -> NotFound:
    return NotFound("there is no such key", code=Code.KEY_NOT_FOUND)


def key_changed() -> Unavailable:
    """Make the error for a change that others kept from happening, again and again; nothing was done."""
    return Unavailable(
        "others keep changing this key", code=Code.COORDINATION_UNAVAILABLE, retry_after_seconds=1
    )
