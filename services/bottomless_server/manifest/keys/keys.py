"""API keys: created, rotated, revoked; each change in coordination and in the bucket.

A new key and a new secret become good last, so that none is that might be lost:

1. A number for an object is reserved in coordination, and nothing else changes. After a crash
   here a key that was to be created is nowhere to be seen, and is forgotten after an hour; of
   one that was to be rotated the secret before goes on.
2. The object is put under that number. After a crash here the same; only a rebuild, which
   has nothing but the bucket, would bring the new secret to life, which nobody was told, and
   with it the one before until its overlap ends.
3. One EXEC makes it so, if no later number was given out, and counts a new key among those of
   its tenant: one too many stays as after a crash before this step. Then the secret is answered.

A revocation takes effect first and is answered last, so that none that was answered is undone:

1. One EXEC revokes the key under the next number, and puts it into a queue. From here on
   nobody is let in by it, as soon as the gates ask again.
2. The object that says so is put. After a crash before it, the queue has the key, and it is
   done within seconds; if coordination is lost as well before that, a rebuild brings the key
   back, and nobody was told that it is gone.
3. One EXEC notes that it is durable. It fails where coordination was lost meanwhile: a rebuild
   might not have seen the object. Then the request is answered.

Objects are never overwritten and only the highest number counts, except that a revocation
counts whatever its number is (`keys/core/key_rebuild_decision.py`). So a put that arrives late harms nobody.
"""

import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple

from bottomless.errors import Code, Corrupt, Exists, Outcome, Unavailable
from bottomless.formats.api_key import KeyObject, encode_key_object
from bottomless.formats.checks import crc32c
from bottomless.formats.keys import ApiKeyKey, api_key_key, api_key_prefix, parse_api_key_key
from bottomless.model.api_key import (
    SECRET_SIZE,
    ApiKey,
    KeyId,
    KeyRecord,
    KeySecret,
    KeyState,
    credential,
    hash_secret,
    key_id_from,
    revoked,
    rotated,
)
from bottomless_server.coordination.base import CoordinationUnknown, Due, Room
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.common.once_more import once_more
from bottomless_server.manifest.keys.key_reconciling import reconcile_key
from bottomless_server.runtime.base.fault_points import reach
from bottomless_server.stores.keys import (
    ApiKeys,
    DecideKey,
    key_changed,
    key_not_found,
    room_for,
    tidy,
    unsaved,
)
from bottomless_server.stores.put_retries import put_object

CREATION_MS: Final = 3_600_000
"""A creation that has not ended after so long never will: far more than a put can take."""
_ATTEMPT_COUNT: Final = 4
_NO_ROOM: Final = "the tenant has as many keys as it may; revoke one that is not used"

Check = Callable[[ApiKey], None]
"""Checks whether the caller may do that with this key, and raises if not; asked again after a
conflict."""


class Issued(NamedTuple):
    """A key, and the credential that is shown once."""

    key: ApiKey
    credential: str

    def __repr__(self) -> str:
        return f"Issued(key={self.key!r})"


class _Overtaken(Exception):
    """Somebody else changed the key, or was given a later number."""


class _Taken(_Overtaken):
    """Another object has the number: coordination went back, and gives it out a second time."""


class Keys:
    """The API keys of all tenants. Holds no state of its own."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.records = ApiKeys(context.coordination, context.streams)

    async def create(
        self, *, tenant: str, label: str, scopes: tuple[str, ...], ends_at: int | None, actor: str
    ) -> Issued:
        """Make a key; when this returns it is good, and stays so if coordination is lost.

        Raises:
            Overloaded: `quota-exceeded`.
            Unavailable: there is no such key, or one whose secret nobody knows.
        """
        now, secret = self._context.time.passed(), secrets.token_hex(SECRET_SIZE)
        key_id = key_id_from(now, bytes.fromhex(self._context.new_uid())[-6:])
        room = room_for(tenant, key_id, self._context.settings.manifest_tenant_key_count_max)
        await self._context.quotas.check(room, _NO_ROOM)
        key = ApiKey(
            key_id=key_id,
            tenant=tenant,
            label=label,
            scopes=scopes,
            created_at=now,
            created_by=actor,
            secrets=(KeySecret(hash_secret(secret), None),),
            expires_at=ends_at,
        )
        generation = self._context.streams.generation or 0
        begun = KeyRecord(key, generation, version=0, reserved=1, durable=False)

        def begin(before: KeyRecord | None) -> KeyRecord:
            if before not in (None, begun):
                raise key_changed()
            return begun

        await self._change(key_id, begin, [tidy(key_id, now + CREATION_MS)])
        try:
            await self._confirm(begun, key, room)
        except _Overtaken as error:
            raise key_changed() from error
        return Issued(key, credential(key.key_id, secret))

    async def rotate(self, key_id: KeyId, overlap_ms: int, check: Check) -> Issued:
        """Give a key another secret; the one before stays good for the overlap.

        Raises:
            NotFound
            Exists: `key-not-active`.
            Unavailable: the secret before goes on, at least for the overlap.
        """
        for _ in range(_ATTEMPT_COUNT):
            now, secret = self._context.time.passed(), secrets.token_hex(SECRET_SIZE)

            def reserve(before: KeyRecord | None, now: int = now) -> KeyRecord:
                record = _found(before)
                check(record.key)
                if record.key.state(now) is not KeyState.ACTIVE:
                    raise key_not_active()
                return replace(record, reserved=record.reserved + 1)

            reserved = await self._change(key_id, reserve)
            assert reserved is not None
            planned = rotated(reserved.key, hash_secret(secret), overlap_ms, now)
            try:
                await self._confirm(reserved, planned)
            except _Taken:
                place = ApiKeyKey(key_id, reserved.generation, reserved.reserved)
                await reconcile_key(self._context, place, foreign=True)
            except _Overtaken:
                continue
            else:
                return Issued(planned, credential(key_id, secret))
        raise key_changed()

    async def revoke(self, key_id: KeyId, check: Check) -> ApiKey:
        """Make a key good for nothing, for ever; the same again changes nothing.

        Raises:
            NotFound
            Unavailable: `committed`: it is good for nothing, but a rebuild would not know it yet;
                `unknown` where coordination itself may be lost.
        """
        floor = 0
        for _ in range(_ATTEMPT_COUNT):
            now = self._context.time.passed()

            def revoke(before: KeyRecord | None, now: int = now, floor: int = floor) -> KeyRecord:
                record = _found(before)
                check(record.key)
                if record.key.revoked_at is not None and record.version > floor:
                    return record
                number = max(record.reserved, floor) + 1
                key = revoked(record.key, now)
                return KeyRecord(key, record.generation, number, number, durable=False)

            keep_until = now + self._context.settings.manifest_key_keep_ms
            queued = [unsaved(key_id, now), tidy(key_id, keep_until)]
            record = _found(await self._change(key_id, revoke, queued))
            await reach("manifest.keys.after-revocation")
            try:
                return (await self.save(record)).key
            except _Taken:
                floor = await self._highest(key_id, record.generation)
            except _Overtaken:
                continue
            except Unavailable as error:
                raise _not_safe_yet(error) from error
        raise key_changed()

    async def save(self, record: KeyRecord) -> KeyRecord:
        """Make a revocation durable; it returns what coordination says then.

        Raises:
            NotFound: the key was forgotten.
            Unavailable: not now.
        """
        assert record.key.revoked_at is not None
        if record.durable:
            return record
        await self._put(record, record.key)
        await reach("manifest.keys.after-revocation-object")

        def note(before: KeyRecord | None) -> KeyRecord:
            found = _found(before)
            if found.key.revoked_at is not None and found.durable:
                return found
            if found != record:
                raise _Overtaken
            return replace(record, durable=True)

        return _found(await self._change(record.key.key_id, note))

    async def _confirm(self, reserved: KeyRecord, key: ApiKey, room: Room | None = None) -> None:
        """Put the object of a reserved number, and make the key what it says.

        Of creations at once the last ones may find here that there is no `room` any more: to
        others that is a creation that ended by a crash before its third step.
        """
        await reach("manifest.keys.after-reserve")
        await self._put(reserved, key)
        await reach("manifest.keys.after-object")
        number = reserved.reserved
        confirmed = KeyRecord(key, reserved.generation, number, number, durable=True)

        def confirm(before: KeyRecord | None) -> KeyRecord:
            if before not in (reserved, confirmed):
                raise _Overtaken
            return confirmed

        # Then the object before may go, or the key has come to its end.
        look_at = self._context.time.passed() + CREATION_MS
        queued = [tidy(key.key_id, look_at)]
        if room is None:
            await self._change(key.key_id, confirm, queued)
            return
        async with self._context.quotas.entering(room, _NO_ROOM):
            await self._change(key.key_id, confirm, queued, room)

    async def _change(
        self,
        key_id: KeyId,
        decide: DecideKey,
        queued: list[Due] | None = None,
        room: Room | None = None,
    ) -> KeyRecord | None:
        """Change a record, again where the reply was lost.

        The second attempt either finds what the first one did, or changes the record so that
        the first one, if it still arrives, fails at its WATCH.
        """
        try:
            return await self.records.change(key_id, decide, queued or (), room)
        except CoordinationUnknown as lost:
            again = self.records.change(key_id, decide, queued or (), room)
            return await once_more(lost, again)

    async def _put(self, record: KeyRecord, key: ApiKey) -> None:
        """Put the object of the record's reserved number."""
        data = encode_key_object(KeyObject(record.generation, record.reserved, key))
        try:
            await put_object(
                self._context.drive,
                api_key_key(key.key_id, record.generation, record.reserved),
                [data],
                crc32c(data),
                deadline_seconds=self._context.settings.manifest_put_seconds,
            )
        except Corrupt as error:
            raise _Taken from error

    async def _highest(self, key_id: KeyId, generation: int) -> int:
        """The highest number of the key's objects in a generation."""
        listing = self._context.drive.list(api_key_prefix(key_id))
        found = [parse_api_key_key(facts.object_key) async for facts in listing]
        return max(
            (one.version for one in found if one and one.generation == generation), default=0
        )


def key_not_active() -> Exists:
    return Exists("the key is expired or revoked", code=Code.KEY_NOT_ACTIVE)


def _not_safe_yet(error: Unavailable) -> Unavailable:
    """The answer for a revocation that only coordination may have yet."""
    # Where coordination itself may be lost, so may be what it was told.
    lost = error.code in (Code.COORDINATION_UNAVAILABLE, Code.COORDINATION_REGRESSED)
    return Unavailable(
        "the key is revoked, but not safe from the loss of coordination yet",
        code=error.code,
        retryable=error.retryable,
        outcome=Outcome.UNKNOWN if lost else Outcome.COMMITTED,
    )


def _found(record: KeyRecord | None) -> KeyRecord:
    if record is None or record.version == 0:
        raise key_not_found()
    return record
