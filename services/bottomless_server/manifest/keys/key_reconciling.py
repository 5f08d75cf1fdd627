"""Notice that coordination went back, by what the bucket knows of API keys.

A Valkey that was restored from a backup of the same generation knows keys as they were then: some
that were revoked since would be good again, and secrets that were replaced. But every change that
was confirmed is in the bucket, under a number that was given out by coordination first; so an
object with a number that coordination never gave out tells of a change that it has lost.

Such a key becomes what its objects say, as in a rebuild: an object is put where none says so yet,
then one EXEC writes the record, unless somebody changed it meanwhile. After a crash between the
two the next look does the same again.

Objects of a later generation than the one on which bucket and coordination agree tell of no change:
a rebuild that did not end has left them, as copies of what was.

A key whose record this release cannot read (a later one wrote it, or it is damaged) is left as it
is, counted and told. It ends nothing for the keys after it: one of them may be revoked, and good
until it is looked at.
"""

from collections.abc import AsyncIterator
from typing import Final

import structlog

from bottomless.errors import Corrupt
from bottomless.formats.keys import API_KEYS_PREFIX, ApiKeyKey, parse_api_key_key
from bottomless.model.api_key import KeyId, KeyRecord
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.keys.core.key_rebuild_decision import rebuild_key
from bottomless_server.manifest.keys.key_rebuild import find_objects, put_key
from bottomless_server.stores.keys import ApiKeys, tidy

log = structlog.get_logger(__name__)

RECONCILE_MS: Final = 600_000
"""How often the bucket is asked: it costs one request for each thousand keys."""


async def reconcile_keys(context: Context) -> int:
    """Let coordination know what only the bucket knows; how many keys that were.

    Raises:
        Unavailable: not now.
    """
    count = unreadable = 0
    async for newest in _newest_objects(context):
        try:
            count += await reconcile_key(context, newest)
        except Corrupt as error:
            unreadable += 1
            log.warning("an API key cannot be read", key_id=newest.key_id, error=str(error))
    context.counts.unreadable_keys = unreadable
    return count


async def _newest_objects(context: Context) -> AsyncIterator[ApiKeyKey]:
    """The object with the highest number of each key that the bucket knows."""
    newest: ApiKeyKey | None = None
    agreed = context.streams.generation or 0
    async for facts in context.drive.list(API_KEYS_PREFIX):
        place = parse_api_key_key(facts.object_key)
        if place is None or place.generation > agreed:
            continue
        if newest is not None and newest.key_id != place.key_id:
            yield newest
        newest = place
    if newest is not None:
        yield newest


async def reconcile_key(context: Context, known: ApiKeyKey, *, foreign: bool = False) -> bool:
    """Look at one key, of which an object is known; whether coordination knew less.

    `known` was seen before this looks, so its number was given out before. `foreign` says that
    its bytes are not those that coordination would have put there.

    Raises:
        Corrupt: this release cannot read what coordination says of it.
        Unavailable
    """
    records, key_id = ApiKeys(context.coordination, context.streams), known.key_id
    held = await records.look_at(key_id)
    if held is not None and not foreign and known[1:] <= (held.generation, held.reserved):
        return False
    # Not older than what coordination says now: it was given out in this generation.
    generation = context.streams.generation or 0
    found = await find_objects(context, key_id)
    record = rebuild_key(found, generation, generation, context.clock())
    if record is None:
        return False
    log.critical("coordination went back: the bucket knows an API key better", key_id=key_id)
    await put_key(context, record)
    return await _write(records, key_id, held, record, context.clock())


async def _write(
    records: ApiKeys, key_id: KeyId, held: KeyRecord | None, record: KeyRecord, now: int
) -> bool:
    def take(before: KeyRecord | None) -> KeyRecord | None:
        return record if before == held else before

    return await records.change(key_id, take, [tidy(key_id, now)]) == record
