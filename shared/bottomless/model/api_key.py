"""API keys: who may do what with a tenant's streams, and the credential that proves it.

A credential is `sk_{key id}_{secret}`. The id is no secret: it names the key in lists, logs and
look-ups. The secret is 256 random bits, so its SHA-256 says nothing about it and needs no salt
and no slow hash; nothing but that hash is kept anywhere.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple, NewType

KeyId = NewType("KeyId", str)
"""24 hex digits: 48 bits of time, so that ids sort by it, and 48 random ones."""

LABEL_SIZE_MAX: Final = 128
SCOPE_COUNT_MAX: Final = 32
SECRET_SIZE: Final = 32
"""Bytes; twice as many hex digits."""
SECRET_COUNT_MAX: Final = 4
"""Secrets of one key that are good at once: the newest, and some within their overlap."""

_KEY_ID: Final = re.compile(r"[0-9a-f]{24}", re.ASCII)


class KeyState(StrEnum):
    ACTIVE = "active"
    EXPIRED = "expired"
    REVOKED = "revoked"


class KeySecret(NamedTuple):
    """What a secret is checked against."""

    sha256: str
    until: int | None
    """When its overlap ends, in ms since 1970; None of the newest."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    key_id: KeyId
    tenant: str
    label: str
    scopes: tuple[str, ...]
    created_at: int
    """Milliseconds since 1970, like all times here."""
    created_by: str
    """The actor of the principal who created it."""
    secrets: tuple[KeySecret, ...]
    """The newest first; none of a key that is revoked."""
    rotated_at: int | None = None
    expires_at: int | None = None
    revoked_at: int | None = None

    @property
    def ends_at(self) -> int | None:
        """Since when it is good for nothing, or will be; None of one that does not end."""
        return self.expires_at if self.revoked_at is None else self.revoked_at

    def state(self, now: int) -> KeyState:
        if self.revoked_at is not None:
            return KeyState.REVOKED
        if self.expires_at is not None and self.expires_at <= now:
            return KeyState.EXPIRED
        return KeyState.ACTIVE

    def good_secrets(self, now: int) -> tuple[KeySecret, ...]:
        """What a credential may be checked against now."""
        if self.state(now) is not KeyState.ACTIVE:
            return ()
        return tuple(one for one in self.secrets if one.until is None or one.until > now)


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """What coordination holds of a key: the key, and which object says the same."""

    key: ApiKey
    generation: int
    """The generation of coordination and bucket when it was created or rebuilt; a part of object keys."""
    version: int
    """Number of the object that holds this very key; 0 while it is being created."""
    reserved: int
    """The highest number that was given to an object, whether it was put or not."""
    durable: bool
    """Whether that object is in the bucket. A key that is not durable is not good for anything:
    it is being created, or it is revoked."""


def is_consistent(record: KeyRecord) -> bool:
    """What holds of every record."""
    explained = record.durable or record.version == 0 or record.key.revoked_at is not None
    live = (record.key.revoked_at is None) == bool(record.key.secrets)
    return 0 <= record.version <= record.reserved and explained and live


def rotated(key: ApiKey, sha256: str, overlap_ms: int, now: int) -> ApiKey:
    """The key with another newest secret; those before end with the overlap, or earlier.

    An older one than the last keeps what is left of its own overlap: whoever rotates twice
    because an answer was lost does not cut off those who use the secret from before.
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
    """The key, good for nothing any more; the same if it was already."""
    if key.revoked_at is not None:
        return key
    return replace(key, secrets=(), revoked_at=now)


def key_id_from(timestamp: int, randomness: bytes) -> KeyId:
    """Make a key id of a time in ms and six random bytes."""
    assert 0 <= timestamp < 2**48
    assert len(randomness) == 6
    return KeyId(f"{timestamp:012x}{randomness.hex()}")


def parse_key_id(text: str) -> KeyId | None:
    """The id, None where it cannot be one."""
    return KeyId(text) if _KEY_ID.fullmatch(text) else None


def credential(key_id: str, secret: str) -> str:
    """What `Authorization: Bearer` takes."""
    return f"sk_{key_id}_{secret}"


def hash_secret(secret: str) -> str:
    """What is kept of the part of a credential after its second `_`."""
    return hashlib.sha256(secret.encode()).hexdigest()


def overlap_ends_at(secrets: Sequence[KeySecret], now: int) -> int | None:
    """Until when any secret but the newest is good; None where none is."""
    return max(
        (one.until for one in secrets if one.until is not None and one.until > now), default=None
    )
