"""Bring API keys back from the bucket, after coordination was lost: a part of a rebuild.

Of each key an object of the new generation is put, then its record is written; so an object that
a process of before the loss puts late is of an older generation than what counts. After a
crash between the two the same again finds that object, and comes to the same. Nothing is
served before the rebuild has ended, so all of it may be done again from the beginning. Objects
of the new generation count only then: until then they are read so as not to use their numbers.
"""

import asyncio
from typing import Final, NamedTuple

import structlog

from bottomless.drives.base import ObjectMissing
from bottomless.errors import Corrupt, Unavailable
from bottomless.formats.api_key import KeyObject, decode_key_object, encode_key_object
from bottomless.formats.checks import crc32c
from bottomless.formats.keys import (
    API_KEYS_PREFIX,
    ApiKeyKey,
    api_key_key,
    api_key_prefix,
    parse_api_key_key,
)
from bottomless.model.api_key import ApiKey, KeyId, KeyRecord
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.keys.core.key_rebuild_decision import FoundKeyObject, rebuild_key
from bottomless_server.runtime.base.fault_points import reach
from bottomless_server.stores.keys import TIDY_KEY, UNSAVED_KEY, ApiKeys, tidy
from bottomless_server.stores.put_retries import put_object
from bottomless_server.stores.rebuild_step import RebuildStep

log = structlog.get_logger(__name__)

QUEUES: Final = (UNSAVED_KEY, TIDY_KEY)
"""The queues that a rebuild empties."""


_AT_ONCE: Final = 16
"""Keys that one step brings back: each is some requests to the store."""


class Restored(NamedTuple):
    """The keys that one step brought back, and those that it could not."""

    after: str
    """The last key that was looked at; empty where there was none any more."""
    keys: int
    unreadable_keys: int


async def discard_keys(context: Context, after: str, step: RebuildStep) -> str:
    """Forget one page of the keys that an older coordination knows, those after an id.

    Returns the last id that was looked at, empty where there was none any more.
    """
    records = ApiKeys(context.coordination, context.streams)
    page = await records.ids(after)
    for key_id in page:
        await records.discard(key_id, step)
    return page[-1] if page else ""


async def restore_keys(context: Context, after: str, step: RebuildStep) -> Restored:
    """Bring back some keys, those after an id in their order.

    Raises:
        DriveUnavailable, DriveRefused, DriveAmbiguous: the same again is right.
        Unavailable: the step is not what goes on.
    """
    page = await _page(context, after)
    done = await asyncio.gather(*(_restore(context, key_id, step) for key_id in page))
    return Restored(page[-1] if page else "", done.count(True), done.count(False))


async def _restore(context: Context, key_id: KeyId, step: RebuildStep) -> bool | None:
    """Bring back one key; False if nothing of it can be read, None if there is no such key."""
    found = await find_objects(context, key_id)
    await step.check(context.coordination)
    agreed = step.generation - 1
    if all(one.place.generation > agreed for one in found):
        # A rebuild that was given up has made a copy, and since then the key was forgotten.
        return None
    record = rebuild_key(found, agreed, step.generation, context.clock())
    if record is None:
        log.error("an API key cannot be read, and is lost", key_id=key_id)
        return False
    try:
        await put_key(context, record)
    except Corrupt as error:
        # Whether this is still what goes on is asked before another number is taken.
        raise Unavailable("an object of an API key was put at this moment") from error
    await reach("manifest.rebuild.after-key-object")
    records = ApiKeys(context.coordination, context.streams)
    await records.restore(record, step, [tidy(key_id, context.clock())])
    return True


async def find_objects(context: Context, key_id: KeyId) -> list[FoundKeyObject]:
    """Every object of a key, and what it says."""
    listing = context.drive.list(api_key_prefix(key_id))
    places = [place async for facts in listing if (place := parse_api_key_key(facts.object_key))]
    return [FoundKeyObject(place, await _read(context, place)) for place in places]


async def put_key(context: Context, record: KeyRecord) -> None:
    """Put the object that a record names, if it is not there."""
    key, generation, version = record.key, record.generation, record.version
    data = encode_key_object(KeyObject(generation, version, key))
    await put_object(
        context.drive,
        api_key_key(key.key_id, generation, version),
        [data],
        crc32c(data),
        deadline_seconds=context.settings.manifest_put_seconds,
    )


async def _page(context: Context, after: str) -> list[KeyId]:
    """The ids of the first keys after an id, in their order."""
    # "/" is the byte after ".", which ends the id in the keys of its objects.
    start = f"{API_KEYS_PREFIX}{after}/" if after else ""
    page: list[KeyId] = []
    async for facts in context.drive.list(API_KEYS_PREFIX, start):
        place = parse_api_key_key(facts.object_key)
        if place is None or page[-1:] == [place.key_id]:
            continue
        if len(page) == _AT_ONCE:
            break
        page.append(place.key_id)
    return page


async def _read(context: Context, place: ApiKeyKey) -> ApiKey | None:
    """Read an object of a key; None where it is damaged or not what its key says."""
    object_key = api_key_key(*place)
    try:
        stored = decode_key_object(bytes(await context.drive.get(object_key)))
    except (ObjectMissing, Corrupt):
        log.exception("an object of an API key cannot be read", object_key=object_key)
        return None
    if (stored.key.key_id, stored.generation, stored.version) != place:
        log.error("an object of an API key is not what its key says", object_key=object_key)
        return None
    return stored.key
