"""API keys: what a tenant's programs may do with its streams, and the credential that proves it.

A credential is `sk_{key id}_{secret}`. The id is no secret: it names the key in lists, logs and
look-ups. The secret is 256 random bits, so its SHA-256 reveals nothing about it and needs no salt
and no slow hash; nothing but that hash is kept anywhere.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple, NewType

KeyId = NewType("KeyId", str)
"""24 hex digits: 48 bits of time, so that ids sort by it, and 48 random bits."""

LABEL_SIZE_MAX: Final = 128
SCOPE_COUNT_MAX: Final = 32
SECRET_SIZE: Final = 32
"""Bytes of a secret; in text it has twice as many hex digits."""
SECRET_COUNT_MAX: Final = 4
"""Secrets of one key that are valid at once: the newest, and older ones within their overlap."""

_KEY_ID: Final = re.compile(r"[0-9a-f]{24}", re.ASCII)


class KeyState(StrEnum):
    """Whether an API key is in use, has expired, or was revoked."""

    ACTIVE = "active"
    EXPIRED = "expired"
    REVOKED = "revoked"


class KeySecret(NamedTuple):
    """The hash that a secret is checked against, and how long it is valid."""

    sha256: str
    until: int | None
    """When its overlap ends (exclusive), in ms since 1970; None for the newest secret."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key: whose it is, what it allows, and when. Times are in ms since 1970."""

    key_id: KeyId
    tenant: str
    label: str
    scopes: tuple[str, ...]
    created_at: int
    """Milliseconds since 1970, as are all times of a key."""
    created_by: str
    """The actor of the principal that created it."""
    secrets: tuple[KeySecret, ...]
    """The newest first; empty for a key that is revoked."""
    rotated_at: int | None = None
    """When it last got a new secret; None if never."""
    expires_at: int | None = None
    """When it stops being valid by itself; None if never."""
    revoked_at: int | None = None
    """When it was revoked; None if it was not."""

    @property
    def ends_at(self) -> int | None:
        """When the key stopped or will stop being valid, in ms since 1970; None if it never
        does.
        """
        return self.expires_at if self.revoked_at is None else self.revoked_at

    def state(self, now: int) -> KeyState:
        """Tell the state of the key at `now`, in ms since 1970; at `expires_at` it has expired."""
        if self.revoked_at is not None:
            return KeyState.REVOKED
        if self.expires_at is not None and self.expires_at <= now:
            return KeyState.EXPIRED
        return KeyState.ACTIVE

    def good_secrets(self, now: int) -> tuple[KeySecret, ...]:
        """List the secrets valid at `now` (ms since 1970); empty unless the key is active."""
        if self.state(now) is not KeyState.ACTIVE:
            return ()
        return tuple(one for one in self.secrets if one.until is None or one.until > now)


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """What coordination holds about a key: the key, and which object in the bucket says the same."""

    key: ApiKey
    generation: int
    """The generation of coordination and bucket when it was created or rebuilt; a part of object keys."""
    version: int
    """Number of the object that holds exactly this key; 0 while the key is being created."""
    reserved: int
    """The highest number that was given to an object, whether it was put or not."""
    durable: bool
    """Whether that object is in the bucket. A key that is not durable lets nobody in: it is being
    created, or it is revoked.
    """


def is_consistent(record: KeyRecord) -> bool:
    """Check what must hold of every key record: its numbers fit, and only a live key has secrets."""
    explained = record.durable or record.version == 0 or record.key.revoked_at is not None
    live = (record.key.revoked_at is None) == bool(record.key.secrets)
    return 0 <= record.version <= record.reserved and explained and live


def rotated(key: ApiKey, sha256: str, overlap_ms: int, now: int) -> ApiKey:
    """Make a copy of the key with a new newest secret; older secrets end after the overlap.

    `overlap_ms` is in ms, `now` in ms since 1970. A secret that is already in its overlap ends no
    later than before. So rotating twice because an answer was lost does not cut off those who still
    use the secret from before.
    """
    ends_at = now + overlap_ms
    older = [
        KeySecret(one.sha256, ends_at if one.until is None else min(one.until, ends_at))
        for one in key.good_secrets(now)
    ]
    kept = [one for one in older if one.until is not None and one.until > now]
    secrets = (KeySecret(sha256, None), *kept[: SECRET_COUNT_MAX - 1])
    return replace(key, secrets=secrets, rotated_at=now)


def revoked(key: ApiKey, now: int) -> ApiKey:
    """Make a revoked copy of the key, without secrets; a revoked key is returned as it is."""
    if key.revoked_at is not None:
        return key
    return replace(key, secrets=(), revoked_at=now)


def key_id_from(timestamp: int, randomness: bytes) -> KeyId:
    """Make a key id from a time in ms since 1970, below 2^48, and six random bytes."""
    assert 0 <= timestamp < 2**48
    assert len(randomness) == 6
    return KeyId(f"{timestamp:012x}{randomness.hex()}")


def parse_key_id(text: str) -> KeyId | None:
    """Check that a text is a key id of 24 hex digits; None if it is not."""
    return KeyId(text) if _KEY_ID.fullmatch(text) else None


def credential(key_id: str, secret: str) -> str:
    """Join key id and secret to the credential that `Authorization: Bearer` takes."""
    return f"sk_{key_id}_{secret}"


def hash_secret(secret: str) -> str:
    """Hash a secret, the part of a credential after its second `_`: its SHA-256 in hex."""
    return hashlib.sha256(secret.encode()).hexdigest()


def overlap_ends_at(secrets: Sequence[KeySecret], now: int) -> int | None:
    """Tell when the last older secret ends that is valid at `now`, in ms since 1970; None if none
    is.
    """
    return max(
        (one.until for one in secrets if one.until is not None and one.until > now), default=None
    )
