"""Signed tokens (JWT): checked by PyJWT against the keys of one configured issuer.

Algorithms come from an allow-list of asymmetric ones (base/token_algorithms.py), so that neither
`none` nor a public key that is taken for a shared secret gets anywhere; `iss`, `aud`, `exp` and
`sub` are required.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jwt

from bottomless.errors import InvalidRequest
from bottomless.model.limits import TIMESTAMP_MAX
from bottomless.model.names import parse_tenant
from bottomless_server.core.principal import Principal
from bottomless_server.runtime.identity.credential import RefusedError
from bottomless_server.runtime.identity.jwks import Jwks

_ACTOR_SIZE_MAX = 256


@dataclass(frozen=True, slots=True)
class TokenRules:
    """The rules for tokens: which are accepted, and which claims say what
    (base/identity_settings.py).
    """

    issuer: str
    audience: str
    algorithms: tuple[str, ...]
    tenant: str | None
    """The tenant of all tokens; else each names its own."""
    tenant_claim: str
    scope_claim: str
    leeway_seconds: float


class SignedTokens:
    """The tokens of one issuer."""

    def __init__(self, rules: TokenRules, jwks: Jwks) -> None:
        self.rules = rules
        self.jwks = jwks

    async def principal(self, token: str) -> Principal:
        """Find the principal of a signed token.

        Raises:
            RefusedError: the token is not good.
            Unavailable: the issuer's keys cannot be read.
        """
        try:
            header = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError, RecursionError) as error:
            raise RefusedError("the credential does not have the form of a signed token") from error
        algorithm, kid = header.get("alg"), header.get("kid")
        if algorithm not in self.rules.algorithms:
            raise RefusedError("the algorithm of the token is not allowed here")
        if "crit" in header:
            raise RefusedError("the token has extensions that are not known here")
        if kid is not None and not isinstance(kid, str):
            raise RefusedError("the kid of the token must be text")
        return self._read(self._verified(token, await self.jwks.find(kid, algorithm), algorithm))

    def _verified(self, token: str, key: jwt.PyJWK, algorithm: str) -> Mapping[str, Any]:
        rules = self.rules
        try:
            return jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=rules.audience,
                issuer=rules.issuer,
                leeway=rules.leeway_seconds,
                options={"require": ["iss", "aud", "exp", "sub"]},
            )
        except (jwt.PyJWTError, ValueError, ArithmeticError, RecursionError) as error:
            # The kind of the error, since its sentence may repeat a part of the token.
            raise RefusedError(f"the token is refused: {type(error).__name__}") from error

    def _read(self, claims: Mapping[str, Any]) -> Principal:
        tenant = self.rules.tenant or claims.get(self.rules.tenant_claim)
        if not isinstance(tenant, str):
            raise RefusedError("the token names no tenant")
        try:
            tenant = parse_tenant(tenant)
        except InvalidRequest as error:
            raise RefusedError("the tenant of the token is not a valid name") from error
        if not _is_unicode(claims["sub"]):
            raise RefusedError("the subject of the token must be Unicode")
        return Principal(
            tenant=tenant,
            actor=f"sub:{claims['sub'][:_ACTOR_SIZE_MAX]}",
            scopes=_scopes(claims.get(self.rules.scope_claim)),
            expires_at=_seconds(claims["exp"]),
        )


def _scopes(claim: Any) -> tuple[str, ...]:
    """Scopes of a claim: a text with spaces between them, or a list."""
    words = claim.split() if isinstance(claim, str) else claim
    if not isinstance(words, list):
        return ()
    return tuple(word for word in words if isinstance(word, str) and _is_unicode(word))


def _is_unicode(text: str) -> bool:
    """JSON can say half of a character, which no answer and no object can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _seconds(claim: Any) -> float:
    try:
        seconds = float(claim)
    except OverflowError:
        seconds = math.inf
    if seconds > TIMESTAMP_MAX / 1000:
        raise RefusedError("the token ends later than any time that can be told")
    return seconds
