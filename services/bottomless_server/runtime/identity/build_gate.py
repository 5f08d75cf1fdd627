"""Build the gate of a process, which checks credentials, from its settings.

What checks signed tokens is loaded where an issuer is configured: its libraries take a thirtieth of
a start, and 12 MiB.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from bottomless_server.runtime.base.cannot_start import CannotStart
from bottomless_server.runtime.base.settings import CommonSettings
from bottomless_server.runtime.identity.audit import Audit
from bottomless_server.runtime.identity.authenticator import Authenticator
from bottomless_server.runtime.identity.gate import Gate
from bottomless_server.runtime.identity.keys import KeyLookup
from bottomless_server.runtime.peers.internal_secret import secret_to_send
from bottomless_server.runtime.peers.peers import Peer

if TYPE_CHECKING:
    from bottomless_server.runtime.identity.signed_tokens import SignedTokens


@asynccontextmanager
async def build_gate(settings: CommonSettings, manifest_url: str | None) -> AsyncIterator[Gate]:
    """Build the gate, and end it afterwards; `manifest_url` is where API keys are asked for.

    Raises:
        CannotStart: the settings do not say what is needed, or contradict each other.
    """
    tokens = _signed_tokens(settings)
    audit = Audit(settings.audit_file)
    check_seconds = settings.identity_fresh_seconds / 2
    if tokens is None and (idle := _token_settings(settings)):
        raise CannotStart(f"{idle[0]} is set, and BOTTOMLESS_JWT_ISSUER is not")
    if not settings.identity:
        if tokens is not None:
            raise CannotStart("BOTTOMLESS_JWT_… is set, and BOTTOMLESS_IDENTITY is not")
        yield Gate(None, audit, check_seconds=check_seconds)
        return
    if manifest_url is None:
        raise CannotStart("BOTTOMLESS_IDENTITY needs BOTTOMLESS_MANIFEST_URL")
    secret = secret_to_send(settings)
    async with Peer(manifest_url, name="manifest", secret=secret) as manifest:
        authenticator = Authenticator(KeyLookup(manifest, settings.identity_fresh_seconds), tokens)
        try:
            yield Gate(authenticator, audit, check_seconds=check_seconds)
        finally:
            await authenticator.aclose()


def _token_settings(settings: CommonSettings) -> list[str]:
    """Settings of tokens that say something, and would do nothing without an issuer."""
    fields = type(settings).model_fields
    names = [name for name in fields if name.startswith("jwt_")]
    told = [name for name in names if getattr(settings, name) != fields[name].default]
    return [f"BOTTOMLESS_{name.upper()}" for name in told]


def _signed_tokens(settings: CommonSettings) -> "SignedTokens | None":
    issuer, audience, url = settings.jwt_issuer, settings.jwt_audience, settings.jwt_jwks
    if issuer is None and audience is None and url is None:
        return None
    if issuer is None or audience is None or url is None:
        raise CannotStart(
            "signed tokens need BOTTOMLESS_JWT_ISSUER, BOTTOMLESS_JWT_AUDIENCE and "
            "BOTTOMLESS_JWT_JWKS, all three"
        )
    from bottomless_server.runtime.identity.jwks import Jwks, loader  # noqa: PLC0415
    from bottomless_server.runtime.identity.signed_tokens import (  # noqa: PLC0415
        SignedTokens,
        TokenRules,
    )

    rules = TokenRules(
        issuer=issuer,
        audience=audience,
        algorithms=tuple(settings.jwt_algorithms.split(",")),
        tenant=settings.jwt_tenant,
        tenant_claim=settings.jwt_tenant_claim,
        scope_claim=settings.jwt_scope_claim,
        leeway_seconds=settings.jwt_leeway_seconds,
    )
    return SignedTokens(rules, Jwks(loader(url), settings.jwt_jwks_seconds))
