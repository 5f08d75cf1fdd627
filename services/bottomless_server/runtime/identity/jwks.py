"""The public keys of those who sign tokens: a JWK set from a file or a URL that is configured.

A token names its key by `kid`, and nothing else that it says is followed: not `jku`, not `x5u`,
not `jwk`. The set is read again after a while, and earlier where a token names a key that is not
in it, since issuers change their keys. While it cannot be read, the keys of before are used, up
to KEEP_SECONDS old. Why PyJWT's own client and set are not used: decision 31.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import httpx
import jwt
import orjson
import structlog

from bottomless.errors import Code, Unavailable
from bottomless_server.runtime.base.cannot_start import CannotStart
from bottomless_server.runtime.base.loopback import is_loopback
from bottomless_server.runtime.base.single_flight import SingleFlight
from bottomless_server.runtime.base.token_algorithms import ALGORITHMS
from bottomless_server.runtime.identity.credential import RefusedError

log = structlog.get_logger(__name__)

SIZE_MAX: Final = 256 * 1024
KEY_COUNT_MAX: Final = 256
READ_SECONDS: Final = 5.0
AGAIN_SECONDS: Final = 5.0
"""Between two reads because of keys that are not known, or after one that failed."""
KEEP_SECONDS: Final = 24 * 3600.0
"""An issuer that is away for longer has its keys forgotten."""
RSA_BITS_MIN: Final = 2048
_NO_SUCH_URL: Final = "BOTTOMLESS_JWT_JWKS must look like file:///path or https://host/path"

Load = Callable[[], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class PublicKey:
    """One key of a set."""

    kid: str | None
    alg: str | None
    """The one algorithm that it is for, if it says so."""
    kind: str
    curve: str | None
    members: dict[str, Any]
    _made: dict[str, jwt.PyJWK] = field(default_factory=dict, compare=False)

    def suits(self, algorithm: str) -> bool:
        kind, curve = ALGORITHMS[algorithm]
        same = self.kind == kind and (curve is None or self.curve == curve)
        return same and self.alg in (None, algorithm)

    def made(self, algorithm: str) -> jwt.PyJWK:
        """The key as the library takes it."""
        key = self._made.get(algorithm)
        if key is None:
            key = self._made[algorithm] = jwt.PyJWK(self.members, algorithm)
        return key


def parse_jwks(data: bytes) -> tuple[PublicKey, ...]:
    """The usable keys of a set: those that verify, are public, and are long enough.

    Raises:
        ValueError: it is no JWK set, or has no such key.
    """
    value = orjson.loads(data)
    listed = value.get("keys") if isinstance(value, dict) else None
    if not isinstance(listed, list) or len(listed) > KEY_COUNT_MAX:
        raise ValueError("it is not a JWK set")
    keys = tuple(_key(members) for members in listed if _usable(members))
    if not keys:
        raise ValueError("no key of it can be used")
    return keys


def _usable(members: Any) -> bool:
    if not isinstance(members, dict) or "d" in members or members.get("use", "sig") != "sig":
        return False
    operations = members.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        return False
    key = _key(members)
    suited = [algorithm for algorithm in ALGORITHMS if key.suits(algorithm)]
    if not suited:
        return False
    try:
        made = key.made(suited[0])
    except (jwt.PyJWTError, ValueError, TypeError, KeyError):
        return False
    return key.kind != "RSA" or made.key.key_size >= RSA_BITS_MIN


def _key(members: dict[str, Any]) -> PublicKey:
    def text(name: str) -> str | None:
        value = members.get(name)
        return value if isinstance(value, str) else None

    return PublicKey(text("kid"), text("alg"), text("kty") or "", text("crv"), members)


class Jwks:
    """A set of keys, kept as new as it can be."""

    def __init__(
        self, load: Load, fresh_seconds: float, *, elapsed: Callable[[], float] = time.monotonic
    ) -> None:
        self._load = load
        self._fresh_seconds = fresh_seconds
        self._elapsed = elapsed
        self._keys: tuple[PublicKey, ...] = ()
        self._read_at = self._tried_at = -KEEP_SECONDS
        self._reading: SingleFlight[None, None] = SingleFlight()
        self.version = 0
        """Grows with each read that found other keys than the one before."""

    async def find(self, kid: str | None, algorithm: str) -> jwt.PyJWK:
        """The key that a token names, or the only one that it can mean.

        Raises:
            RefusedError: there is none.
            Unavailable: the set was never read, or not for too long.
        """
        self.look_ahead()
        if (found := self._found(kid, algorithm)) is None:
            await self.read_again()
            found = self._found(kid, algorithm)
        if self._elapsed() - self._read_at > KEEP_SECONDS:
            raise Unavailable(
                "tokens cannot be checked now: their issuer's keys cannot be read",
                code=Code.PEER_UNAVAILABLE,
                retry_after_seconds=AGAIN_SECONDS,
            )
        if found is None:
            raise RefusedError("no key of the issuer is the one that the token names")
        return found

    def look_ahead(self) -> None:
        """Read the set again if it is time, without waiting for it."""
        if self._elapsed() - self._read_at > self._fresh_seconds and self._may_read():
            self._reading.begin(None, self._read)

    async def read_again(self) -> None:
        """Read the set, unless that was done a moment ago."""
        if None in self._reading or self._may_read():
            await self._reading.join(None, self._read)

    async def aclose(self) -> None:
        """Give up a read that is under way."""
        await self._reading.aclose()

    def _found(self, kid: str | None, algorithm: str) -> jwt.PyJWK | None:
        suited = [key for key in self._keys if key.suits(algorithm)]
        if kid is not None:
            suited = [key for key in suited if key.kid == kid]
        return suited[0].made(algorithm) if len(suited) == 1 else None

    def _may_read(self) -> bool:
        return self._elapsed() - self._tried_at >= AGAIN_SECONDS

    async def _read(self) -> None:
        began_at = self._tried_at = self._elapsed()
        try:
            async with asyncio.timeout(READ_SECONDS):
                keys = parse_jwks(await self._load())
        except (OSError, ValueError, httpx.HTTPError) as error:
            log.warning("the JWK set cannot be read", error=type(error).__name__, why=str(error))
            return
        if keys != self._keys:
            self.version += 1
        self._keys, self._read_at = keys, began_at


def loader(url: str) -> Load:
    """How a configured set is read: `file:///path`, `https://…`, or `http://` on the loopback.

    Raises:
        CannotStart: it is none of these; or a file that holds no such set.
    """
    try:
        parts = urlsplit(url)
        httpx.URL(url)
    except (ValueError, httpx.InvalidURL) as error:
        raise CannotStart(_NO_SUCH_URL) from error
    if parts.scheme == "file" and parts.path and not parts.netloc:
        path = Path(unquote(parts.path))
        try:
            parse_jwks(_file(path))
        except (OSError, ValueError) as error:
            raise CannotStart(
                f"the JWK set of BOTTOMLESS_JWT_JWKS cannot be used: {error}"
            ) from error

        async def read() -> bytes:
            return await asyncio.to_thread(_file, path)

        return read
    plain = parts.scheme == "http" and is_loopback(parts.hostname or "")
    if (parts.scheme == "https" and parts.hostname) or plain:
        return lambda: _fetched(url)
    # Over plain HTTP whoever stands on the way could give out keys of their own.
    raise CannotStart(_NO_SUCH_URL)


def _file(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(SIZE_MAX + 1)
    if len(data) > SIZE_MAX:
        raise ValueError("it is too large")
    return data


async def _fetched(url: str) -> bytes:
    # Redirects are not followed: the one configured address is the one that is asked.
    async with (
        httpx.AsyncClient(timeout=READ_SECONDS, follow_redirects=False) as client,
        client.stream("GET", url, headers={"accept": "application/json"}) as answer,
    ):
        if answer.status_code != 200:
            raise ValueError(f"it was answered with status {answer.status_code}")
        parts: list[bytes] = []
        async for part in answer.aiter_bytes():
            parts.append(part)
            if sum(map(len, parts)) > SIZE_MAX:
                raise ValueError("it is too large")
        return b"".join(parts)
