"""Page tokens of the fragment list: of which stream, up to where, and where the next page begins."""

from typing import Final, NamedTuple

from bottomless.model.names import StreamId
from bottomless_server.core.sealed_token import seal, unseal

_LIST: Final = "fragments"
_REFUSAL: Final = (
    "the page token was not made by this service, or by one since restarted: begin the list "
    "anew, at the offset that it had come to"
)


class PageToken(NamedTuple):
    """A list is pinned to one stream and one end; it walks by offset through newer manifests."""

    stream_id: StreamId
    end_offset: int
    next_offset: int


def encode_token(token: PageToken, tenant: str, secret: bytes) -> str:
    """A token that goes on with a list for this tenant alone."""
    return seal((_LIST, tenant), token, secret)


def decode_token(text: str, tenant: str, secret: bytes) -> PageToken:
    """Read a token that `encode_token` made for this tenant with the same secret.

    Raises:
        InvalidRequest: anybody else made it, or for anybody else, or a release that signed tokens
            and did not seal them.
    """
    stream_id, end_offset, next_offset = unseal(text, (_LIST, tenant), secret, _REFUSAL)
    return PageToken(StreamId(stream_id), end_offset, next_offset)
