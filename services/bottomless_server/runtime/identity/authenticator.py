"""Authentication: from the token of a request to its principal, at a cost that no append notices.

A verdict about a signed token is kept under the digest of the token, so that its signature is
checked once a minute and not once a request; one about an API key costs a digest and a compare
(keys.py). No token is kept here, nor logged.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from cachetools import LRUCache

from bottomless_server.core.principal import Principal
from bottomless_server.runtime.identity.credential import (
    API_KEY_START,
    RefusedError,
    parse_api_key,
)
from bottomless_server.runtime.identity.keys import KeyLookup

if TYPE_CHECKING:
    from bottomless_server.runtime.identity.signed_tokens import SignedTokens

VERDICT_SECONDS: Final = 60.0
VERDICT_COUNT_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class _Verdict:
    principal: Principal
    until: float
    """When the verdict ends, by the monotonic clock."""
    version: int
    """The version of the keys that it was checked with."""


class Authenticator:
    """Tells from a token who sends a request."""

    def __init__(
        self,
        keys: KeyLookup,
        tokens: "SignedTokens | None",
        *,
        now: Callable[[], float] = time.time,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        """Accept API keys, and signed tokens if there are `tokens`."""
        self._keys = keys
        self._tokens = tokens
        self._now = now
        self._elapsed = elapsed
        self._verdicts: LRUCache[bytes, _Verdict] = LRUCache(VERDICT_COUNT_MAX)

    async def principal(self, token: str) -> Principal:
        """Find the principal of a token.

        Raises:
            RefusedError: it is not good.
            Unavailable: nobody can say now.
        """
        if token.startswith(API_KEY_START):
            return await self._keys.principal(parse_api_key(token))
        if self._tokens is None:
            raise RefusedError("the token is not an API key, and no issuer of tokens is configured")
        digest = _digest_of(token)
        if (principal := self._decided(self._tokens, digest)) is not None:
            return principal
        principal = await self._tokens.principal(token)
        version, until = self._tokens.jwks.version, self._elapsed() + VERDICT_SECONDS
        self._verdicts[digest] = _Verdict(principal, until, version)
        return principal

    def at_once(self, token: str) -> Principal | None:
        """Find the principal of a token, if it is known without asking and without a signature.

        Raises:
            RefusedError: it is not good, as far as is known.
        """
        if token.startswith(API_KEY_START):
            return self._keys.at_once(parse_api_key(token))
        return None if self._tokens is None else self._decided(self._tokens, _digest_of(token))

    def forget_key(self, key_id: str) -> None:
        """An API key was changed by a request to this process."""
        self._keys.forget(key_id)

    async def aclose(self) -> None:
        await self._keys.aclose()
        if self._tokens is not None:
            await self._tokens.jwks.aclose()

    def _decided(self, tokens: "SignedTokens", digest: bytes) -> Principal | None:
        verdict = self._verdicts.get(digest)
        if verdict is None:
            return None
        tokens.jwks.look_ahead()
        if verdict.version != tokens.jwks.version or self._elapsed() >= verdict.until:
            return None
        expires_at = verdict.principal.expires_at
        if expires_at is None or self._now() >= expires_at:
            # How much later it is still good is for those to say who checked it.
            return None
        return verdict.principal


def _digest_of(token: str) -> bytes:
    return sha256(token.encode("ascii")).digest()
