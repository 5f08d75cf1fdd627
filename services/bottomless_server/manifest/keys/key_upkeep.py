"""Look after API keys: bring revocations into the bucket, sweep old objects, forget the ended.

A revocation that could not be made durable while its request waited is tried again here, until
it is. At the start, and every ten minutes, what the bucket knows is held against coordination
(`key_reconciling.py`). Everything else is done when a key is looked at, which is soon after each change and once
a day while it has an end. With what is left by a crash at each step:

- Objects under lower numbers than the one that coordination names go. Any of them may be
  left, and goes at the next look: the highest number counts.
- A key that ended long ago: its objects go, the newest last, so that what is left after a crash
  never says less than that it ended; then its record. The key stays due until that is done.
- A key whose creation was cut off: a number is given out, so that it can never be confirmed any
  more; then its object goes, then its record.
"""

from dataclasses import replace
from typing import Final

import structlog

from bottomless.errors import StoreError
from bottomless.formats.keys import ApiKeyKey, api_key_key, api_key_prefix, parse_api_key_key
from bottomless.model.api_key import KeyId, KeyRecord
from bottomless_server.coordination.base import Changes, Due
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.failing_deletes import queue_later
from bottomless_server.manifest.keys.key_reconciling import RECONCILE_MS, reconcile_keys
from bottomless_server.manifest.keys.keys import CREATION_MS, Keys
from bottomless_server.runtime.base.endless import endless
from bottomless_server.stores.keys import TIDY_KEY, UNSAVED_KEY, key_key, tidy

log = structlog.get_logger(__name__)

_PASS_COUNT: Final = 64
_FOREVER: Final = 2**52
"""Later than anything is queued for."""
_LOOK_MS: Final = 86_400_000
"""How often a key with an end is looked at: the queue of looks knows no earlier time than it has,
and a key can come to its end earlier than it was to."""


class KeyUpkeep:
    def __init__(self, context: Context, keys: Keys) -> None:
        self._context = context
        self._keys = keys
        self._reconcile_at: int | None = None
        """When to reconcile next, by `Context.elapsed`; None before the first time."""

    async def run(self) -> None:
        """Make passes for ever."""
        await endless("manifest-keys", self._pass_once)

    async def _pass_once(self) -> float:
        try:
            await self.make_pass()
        except StoreError as error:
            log.warning("API keys cannot be looked after", error=str(error))
        return self._context.settings.manifest_key_interval_ms / 1000

    async def make_pass(self) -> None:
        """Do what is due now; what fails stays due, and keeps nothing else from being done.

        Raises:
            StoreError: the first that something met.
        """
        coordination, now = self._context.coordination, self._context.clock()
        met: list[StoreError] = []
        elapsed = self._context.elapsed()
        if self._reconcile_at is None or self._reconcile_at <= elapsed:
            try:
                await reconcile_keys(self._context)
                self._reconcile_at = elapsed + RECONCILE_MS
            except StoreError as error:
                met.append(error)
        # What is not in the bucket yet is tried whatever the time: who entered it may have had
        # another clock, and a loss of coordination would make a revoked key good again.
        for queue, until, work in (
            (UNSAVED_KEY, _FOREVER, self._save),
            (TIDY_KEY, now, self._look_at),
        ):
            dues, failed = await coordination.due(queue, until, _PASS_COUNT), list[Due]()
            for due in dues:
                try:
                    await work(due)
                except StoreError as error:
                    met.append(error)
                    failed.append(due)
            if len(dues) == _PASS_COUNT:
                # Those that fail may not be every page for ever.
                later = now + self._context.settings.manifest_key_interval_ms
                await queue_later(coordination, [due._replace(due_at=later) for due in failed])
        if met:
            raise met[0]

    async def _save(self, due: Due) -> None:
        key_id = KeyId(due.member.decode("ascii"))
        record = await self._keys.records.look_at(key_id)
        if record is not None and record.key.revoked_at is not None and not record.durable:
            await self._keys.revoke(key_id, lambda _: None)
        await self._context.coordination.settle([due])

    async def _look_at(self, due: Due) -> None:
        key_id, now = KeyId(due.member.decode("ascii")), self._context.clock()
        record = await self._keys.records.look_at(key_id)
        if record is None:
            await self._context.coordination.settle([due])
            return
        if record.version == 0 and record.key.created_at + CREATION_MS <= now:
            await self._context.time.require()
            await self._forget(await self._cut_off(record))
            return
        if not record.durable:
            await self._look_again(key_id, now + CREATION_MS)
            return
        ends_at, keep_ms = record.key.ends_at, self._context.settings.manifest_key_keep_ms
        if ends_at is not None and ends_at + keep_ms <= now:
            # It goes for ever, so the time has to be a believed one.
            if ends_at + keep_ms <= await self._context.time.require():
                await self._forget(record)
            return
        known = ApiKeyKey(key_id, record.generation, record.version)
        await self._delete([one for one in await self._objects(key_id) if one < known])
        if ends_at is None:
            await self._context.coordination.settle([due])
        else:
            await self._look_again(key_id, min(now + _LOOK_MS, ends_at + keep_ms))

    async def _cut_off(self, record: KeyRecord) -> KeyRecord:
        """Make sure that a creation which did not end never will."""

        def cut(before: KeyRecord | None) -> KeyRecord | None:
            return replace(record, reserved=record.reserved + 1) if before == record else before

        after = await self._keys.records.change(record.key.key_id, cut)
        return record if after is None else after

    async def _forget(self, record: KeyRecord) -> None:
        key_id = record.key.key_id
        objects = await self._objects(key_id)
        await self._delete(objects[:-1])
        await self._delete(objects[-1:])
        await self._keys.records.change(key_id, lambda before: None if before == record else before)
        log.info("an API key that ended was forgotten", key_id=key_id)

    async def _objects(self, key_id: KeyId) -> list[ApiKeyKey]:
        """The objects of a key, the oldest first."""
        listing = self._context.drive.list(api_key_prefix(key_id))
        found = [parse_api_key_key(facts.object_key) async for facts in listing]
        return sorted(one for one in found if one is not None)

    async def _delete(self, objects: list[ApiKeyKey]) -> None:
        if objects:
            failed = await self._context.drive.delete([api_key_key(*one) for one in objects])
            for error in failed.values():
                raise error

    async def _look_again(self, key_id: KeyId, due_at: int) -> None:
        again = Changes(queued=[tidy(key_id, due_at)])
        await self._context.coordination.transact([key_key(key_id)], lambda _: (again, None))
