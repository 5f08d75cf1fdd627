"""Settings of identity: who is let in, how they are known, and where the audit goes.

A part of those that every service has (runtime/base/settings.py): the gate stands before each of them.
What they mean together is in docs/identity.md.
"""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from bottomless.errors import InvalidRequest
from bottomless.model.names import parse_tenant
from bottomless_server.runtime.base.token_algorithms import ALGORITHMS
from bottomless_server.runtime.base.units import WithUnits


def _algorithms(text: str) -> str:
    if not text or not set(text.split(",")) <= ALGORITHMS.keys():
        raise ValueError(f"must be some of {','.join(ALGORITHMS)}, with commas between them")
    return text


def _tenant(text: str) -> str:
    try:
        return parse_tenant(text)
    except InvalidRequest as error:
        raise ValueError(error.message) from None


class IdentitySettings(WithUnits):
    identity: bool = False
    """Ask everybody who they are."""
    allow_unauthenticated: bool = False
    """Allow serving on an address that other machines can reach although identity is off."""
    identity_fresh_seconds: Annotated[float, Field(gt=0, le=10)] = 10.0
    """How long the manifest's word about an API key is used; twice in this time the credential of
    an answer that stays open is checked again."""

    jwt_issuer: str | None = None
    """`iss` of the signed tokens that are taken; with the next two, or none of the three."""
    jwt_audience: str | None = None
    """What `aud` must hold."""
    jwt_jwks: str | None = None
    """Where the issuer's public keys are: `file:///path` or `https://…`."""
    jwt_jwks_seconds: Annotated[float, Field(gt=0, le=86_400)] = 300.0
    """How often they are read again."""
    jwt_algorithms: Annotated[str, AfterValidator(_algorithms)] = "RS256,PS256,ES256,EdDSA"
    """The algorithms that are allowed; only asymmetric ones can be."""
    jwt_tenant_claim: str = "tenant"
    """The claim that names the tenant."""
    jwt_tenant: Annotated[str, AfterValidator(_tenant)] | None = None
    """The tenant of all tokens, whatever they claim."""
    jwt_scope_claim: str = "scope"
    """The claim that has the scopes: text with spaces between them, or a list."""
    jwt_leeway_seconds: Annotated[float, Field(ge=0, le=300)] = 10.0
    """What the clocks of issuer and service may differ."""

    audit_file: Path | None = None
    """A file for the audit, beside the log."""
