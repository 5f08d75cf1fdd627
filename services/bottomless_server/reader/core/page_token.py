"""Page tokens of the fragment list: where the next page begins, signed so that none can be made up."""

import binascii
import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final, NamedTuple

import orjson

from bottomless.errors import InvalidRequest
from bottomless.model.names import StreamId

_SIGNATURE_SIZE: Final = 16


class PageToken(NamedTuple):
    """A list is pinned to one stream and one end; it walks by offset through newer manifests."""

    stream_id: StreamId
    end_offset: int
    next_offset: int


def encode_token(token: PageToken, tenant: str, secret: bytes) -> str:
    """A token that goes on with a list for this tenant alone."""
    body = orjson.dumps([token.stream_id, token.end_offset, token.next_offset])
    return urlsafe_b64encode(_signature(tenant, body, secret) + body).decode("ascii").rstrip("=")


def decode_token(text: str, tenant: str, secret: bytes) -> PageToken:
    """Read a token that `encode_token` made for this tenant with the same secret.

    Raises:
        InvalidRequest: anybody else made it, or for anybody else.
    """
    try:
        raw = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
    except (UnicodeEncodeError, binascii.Error) as error:
        raise _bad_token() from error
    signature, body = raw[:_SIGNATURE_SIZE], raw[_SIGNATURE_SIZE:]
    if not hmac.compare_digest(signature, _signature(tenant, body, secret)):
        raise _bad_token()
    stream_id, end_offset, next_offset = orjson.loads(body)
    return PageToken(StreamId(stream_id), end_offset, next_offset)


def _signature(tenant: str, body: bytes, secret: bytes) -> bytes:
    # The tenant is signed and not sent; no tenant has a NUL, so the two cannot run together.
    signed = tenant.encode("ascii") + b"\0" + body
    return hmac.new(secret, signed, hashlib.sha256).digest()[:_SIGNATURE_SIZE]


def _bad_token() -> InvalidRequest:
    return InvalidRequest(
        "the page token was not made by this service, or by one since restarted: begin the list "
        "anew, at the offset that it had come to"
    )
