"""API keys, as the manifest service knows them, remembered for some seconds.

Every request asks for one, so what manifest said is kept: it is used for at most `fresh_seconds`
and asked for again, ahead of time, after half of that. So a revoked key is refused everywhere
at most that much later, and at once where the revocation was asked for: what is known of that key
is forgotten before it is answered. While manifest does not answer, what it said is used for GRACE_SECONDS,
measured from when it was asked; after that nobody can be let in, and nobody is.

A secret that is not the one that is known may be newer than what is known: so it is asked for
before it is refused, as for a key that is not known, and a new secret is good within a moment.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest
from typing import Any, Final

from cachetools import LRUCache

from bottomless.errors import Code, NotFound, StoreError, Unavailable
from bottomless.model.api_key import KeyState
from bottomless_server.core.principal import Principal
from bottomless_server.protocol.keys import decode_key, key_path
from bottomless_server.protocol.peer import PeerPort
from bottomless_server.runtime.base.single_flight import SingleFlight
from bottomless_server.runtime.identity.credential import ApiKey, RefusedError

GRACE_SECONDS: Final = 30.0
"""How old the word of a manifest may get that does not answer."""
ASK_SECONDS: Final = 2.0
"""How long one question may take."""
PAUSE_SECONDS: Final = 1.0
"""After a question that was not answered, while there is an old answer to use."""
UNKNOWN_SECONDS: Final = 1.0
"""How long it is remembered that there is no such key."""
OTHER_SECRET_SECONDS: Final = 0.25
"""Between two questions about one key because of secrets that are not known."""
KEY_COUNT_MAX: Final = 10_000
UNKNOWN_COUNT_MAX: Final = 1_000
STRANGER_COUNT_MAX: Final = 16
"""Questions at the same time about keys that were never good here, or not with this secret: whoever
makes them up takes no place from those who are known, and sends manifest no more than that."""
STRANGER_WAIT_SECONDS: Final = 2.0


@dataclass(slots=True, eq=False)
class _KnownKey:
    """One key, as manifest described it."""

    digests: tuple[bytes, ...]
    """SHA-256 of each secret that is good; there are two for a while after a rotation."""
    principal: Principal
    asked_at: float
    """When the question was sent, as the answer may be about any moment since then."""
    refresh_at: float


class _AnotherSecretError(RefusedError):
    """The secret is none of the key, as far as is known."""


class KeyLookup:
    """Looks API keys up at the manifest service, and remembers them for some seconds."""

    def __init__(
        self,
        manifest: PeerPort,
        fresh_seconds: float,
        *,
        now: Callable[[], float] = time.time,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        """`now` gives seconds since 1970, `elapsed` seconds since whenever."""
        self._manifest = manifest
        self._fresh_seconds = fresh_seconds
        self._now = now
        self._elapsed = elapsed
        self._known: LRUCache[str, _KnownKey] = LRUCache(KEY_COUNT_MAX)
        self._unknown: LRUCache[str, float] = LRUCache(UNKNOWN_COUNT_MAX)
        self._asking: SingleFlight[str, _KnownKey | None] = SingleFlight()
        """One that was asked before its key was changed is parted: nobody remembers its answer."""
        self._strangers = asyncio.Semaphore(STRANGER_COUNT_MAX)

    def at_once(self, key: ApiKey) -> Principal | None:
        """Find the principal of a key, if it is known without asking; asks ahead of time.

        Raises:
            RefusedError: the key is not good.
        """
        known = self._known.get(key.key_id)
        elapsed = self._elapsed()
        if known is None or elapsed - known.asked_at > self._fresh_seconds:
            return None
        if elapsed >= known.refresh_at:
            self._asking.begin(key.key_id, lambda: self._load(key.key_id))
        return self._checked(known, key)

    async def principal(self, key: ApiKey) -> Principal:
        """Find the principal of a key, asking manifest if need be.

        Raises:
            RefusedError: the key is not good.
            Unavailable: manifest does not answer, and what it said is too old.
        """
        try:
            if (principal := self.at_once(key)) is not None:
                return principal
            known = await self._looked_up(key.key_id)
            if known is None:
                raise RefusedError("there is no such API key")
            return self._checked(known, key)
        except _AnotherSecretError:
            known = await self._newer(key.key_id)
            if known is None:
                raise
            return self._checked(known, key)

    def forget(self, key_id: str) -> None:
        """A key was changed here just now: nothing that was said of it before counts, and nothing
        that was asked before, whenever its answer comes."""
        self._known.pop(key_id, None)
        self._unknown.pop(key_id, None)
        self._asking.part(key_id)

    async def aclose(self) -> None:
        """Give up what is being asked."""
        await self._asking.aclose()

    def _checked(self, known: _KnownKey, key: ApiKey) -> Principal:
        digest = sha256(key.secret.encode("ascii")).digest()
        # All are compared, so that the time says nothing of which one it was.
        same = [compare_digest(digest, one) for one in known.digests]
        if not any(same):
            raise _AnotherSecretError("the secret does not belong to this API key, or is revoked")
        expires_at = known.principal.expires_at
        if expires_at is not None and self._now() >= expires_at:
            raise RefusedError("the API key has expired")
        return known.principal

    async def _looked_up(self, key_id: str) -> _KnownKey | None:
        known, elapsed = self._known.get(key_id), self._elapsed()
        if known is None:
            if elapsed - self._unknown.get(key_id, -UNKNOWN_SECONDS) < UNKNOWN_SECONDS:
                return None
            return await self._stranger(key_id)
        in_grace = elapsed - known.asked_at <= GRACE_SECONDS
        if in_grace and elapsed < known.refresh_at:
            return known
        try:
            return await self._ask(key_id)
        except StoreError:
            if in_grace:
                return known
            raise _cannot_ask() from None

    async def _newer(self, key_id: str) -> _KnownKey | None:
        """What manifest says of a key now, if what is known is not from a moment ago."""
        known = self._known.get(key_id)
        if known is not None and self._elapsed() - known.asked_at < OTHER_SECRET_SECONDS:
            return None
        try:
            return await self._stranger(key_id, known)
        except Unavailable:
            # It is not the secret that is known, and nobody says that there is another.
            return None

    async def _stranger(self, key_id: str, before: _KnownKey | None = None) -> _KnownKey | None:
        """Ask in one of the places of those who are not known; `before` is known, and too old."""
        try:
            async with asyncio.timeout(STRANGER_WAIT_SECONDS + ASK_SECONDS):
                if key_id in self._asking:
                    return await self._ask(key_id)
                async with self._strangers:
                    # Somebody else may have asked while this one waited for its place.
                    known = self._known.get(key_id)
                    if known is not None and known is not before:
                        return known
                    return await self._ask(key_id)
        except (StoreError, TimeoutError):
            raise _cannot_ask() from None

    async def _ask(self, key_id: str) -> _KnownKey | None:
        """What manifest says; the same question for all who have it meanwhile."""
        return await self._asking.join(key_id, lambda: self._load(key_id))

    async def _load(self, key_id: str) -> _KnownKey | None:
        asked_at = self._elapsed()
        try:
            answer = await self._manifest.call("GET", key_path(key_id), timeout_seconds=ASK_SECONDS)
            known = self._read(key_id, answer.body, asked_at)
        except NotFound as error:
            if error.code is Code.NOT_FOUND:
                # Nothing is served at this path: that is no manifest that knows keys.
                raise _cannot_ask() from error
            if not self._asking.is_parted(key_id):
                self._known.pop(key_id, None)
                self._unknown[key_id] = asked_at
            return None
        except StoreError:
            if (before := self._known.get(key_id)) is not None:
                before.refresh_at = self._elapsed() + PAUSE_SECONDS
            raise
        if not self._asking.is_parted(key_id):
            self._unknown.pop(key_id, None)
            self._known[key_id] = known
        return known

    def _read(self, key_id: str, body: Any, asked_at: float) -> _KnownKey:
        said = decode_key(body)
        good = said.key_id == key_id and said.state == KeyState.ACTIVE
        digests = tuple(map(bytes.fromhex, said.secret_sha256))
        principal = Principal(
            tenant=said.tenant,
            actor=f"key:{key_id}",
            scopes=said.scopes,
            expires_at=None if said.expires_at is None else said.expires_at / 1000,
        )
        refresh_at = asked_at + self._fresh_seconds / 2
        return _KnownKey(digests if good else (), principal, asked_at, refresh_at)


def _cannot_ask() -> Unavailable:
    return Unavailable(
        "credentials cannot be checked now",
        code=Code.PEER_UNAVAILABLE,
        retry_after_seconds=1,
    )
