"""Credentials: what stands in `Authorization`, taken apart. Pure, and it keeps nothing.

What is wrong with a credential is never said to whom it is refused, since that would help to
guess one; the reason goes to the log, without a part of the credential.
"""

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from bottomless.errors import Code, Denied

TOKEN_SIZE_MAX: Final = 8 * 1024
"""Bytes; tokens of identity providers with many groups have some three thousand."""

_TOKEN: Final = re.compile(rb"[A-Za-z0-9._~+/-]+=*")
_API_KEY: Final = re.compile(r"sk_([A-Za-z0-9-]{1,64})_([A-Za-z0-9_-]{16,128})", re.ASCII)
API_KEY_START: Final = "sk_"


class ApiKey(NamedTuple):
    """An API key as its holder has it."""

    key_id: str
    secret: str

    def __repr__(self) -> str:
        return f"ApiKey(key_id={self.key_id!r})"


class RefusedError(Exception):
    """A credential is not good; the reason is for the log alone, and holds nothing of it."""


def bearer_token(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The one token of a request.

    Raises:
        Denied: there is no credential.
        RefusedError: there is one that cannot be a token.
    """
    values = [value for name, value in headers if name == b"authorization"]
    if not values:
        raise Denied(
            "a credential is needed: send the header Authorization: Bearer, with an API key or a token",
            code=Code.UNAUTHENTICATED,
        )
    scheme, _, token = values[0].partition(b" ")
    if len(values) > 1 or scheme.lower() != b"bearer":
        raise RefusedError("there must be exactly one header Authorization, of the form Bearer")
    token = token.strip(b" ")
    if len(token) > TOKEN_SIZE_MAX or not _TOKEN.fullmatch(token):
        raise RefusedError("the credential does not have the form of a token")
    return token.decode("ascii")


def parse_api_key(token: str) -> ApiKey:
    """An API key's parts.

    Raises:
        RefusedError: the credential does not have the form of an API key.
    """
    match = _API_KEY.fullmatch(token)
    if match is None:
        raise RefusedError("the credential does not have the form of an API key")
    return ApiKey(match[1], match[2])


def not_good() -> Denied:
    """The answer to a credential that is not good, whatever is wrong with it."""
    return Denied("the credential is not valid (any more)", code=Code.UNAUTHENTICATED)
