"""Decide what an API key was, from what its objects in the bucket say: a part of a rebuild.

A rebuild has only the bucket, and some objects may be damaged. A key that was revoked must never
come back, so whatever is in doubt is decided against the key.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from bottomless.formats.keys import ApiKeyKey
from bottomless.model.api_key import ApiKey, KeyRecord, revoked


class FoundKeyObject(NamedTuple):
    """One object of a key in the bucket."""

    place: ApiKeyKey
    key: ApiKey | None
    """The key as the object describes it; None where it cannot be read."""


def rebuild_key(
    objects: Sequence[FoundKeyObject], agreed: int, generation: int, now: int
) -> KeyRecord | None:
    """The record of a key in a generation; None where no object of it can be read.

    Only objects up to the generation on which bucket and coordination `agreed` count: one above it
    is the copy that a rebuild made which has not ended, or never did.

    A revocation counts whatever its number is. A newest object that cannot be read may have
    been one, so the key is revoked: an operator can make another, and cannot take back what
    was done with a key that should be dead.
    """
    believed = [found for found in objects if found.place.generation <= agreed]
    ranked = sorted(believed, key=lambda found: found.place)
    readable = [found.key for found in ranked if found.key is not None]
    if not readable:
        return None
    dead = [key for key in readable if key.revoked_at is not None]
    if dead:
        key = dead[-1]
    elif ranked[-1].key is None:
        key = revoked(readable[-1], now)
    else:
        key = ranked[-1].key
    # Numbers begin anew in each generation, so what a process of an older one puts meanwhile changes
    # none of them; an attempt that found the same before is met under its own number.
    there = {one.place.version: one.key for one in objects if one.place.generation == generation}
    newest = max(there, default=0)
    number = newest if newest and there[newest] == key else newest + 1
    return KeyRecord(replace(key), generation, number, number, durable=True)
