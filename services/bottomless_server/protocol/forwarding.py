"""The headers of a request that one node passes on to the node that owns its stream.

The request itself stays as it came. These stand beside it, since the credential was looked at
where it was shown and stays there. Contract: openapi/internal.yaml, its description.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

TENANT: Final = b"bottomless-forwarded-tenant"
"""Its presence on the internal listener says that a request was passed on."""
ACTOR: Final = b"bottomless-forwarded-actor"

UNDELIVERED: Final = b"bottomless-forwarded-undelivered"
"""On a request that gives messages back: nobody was given them, so it is as if they had not been taken."""

FORWARDED_HEADERS: Final = frozenset({TENANT, ACTOR, UNDELIVERED})
"""None of them is taken over from a client."""


class ForwardedFor(NamedTuple):
    """The principal of a request, at the node where it came in."""

    tenant: str
    actor: str | None
    """None where nobody was asked who they are."""


def encode_forwarded(asked: ForwardedFor) -> list[tuple[str, str]]:
    headers = [(TENANT.decode(), quote(asked.tenant))]
    if asked.actor is not None:
        headers.append((ACTOR.decode(), quote(asked.actor)))
    return headers


def decode_forwarded(headers: Mapping[bytes, bytes]) -> ForwardedFor | None:
    """Read who asked from headers whose names are lowercase; None if nobody passed the request on."""
    tenant, actor = headers.get(TENANT), headers.get(ACTOR)
    if tenant is None:
        return None
    return ForwardedFor(_text(tenant), None if actor is None else _text(actor))


def _text(value: bytes) -> str:
    return unquote(value.decode("latin-1"))
