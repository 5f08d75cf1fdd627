"""Page tokens of lists: where the next page begins, signed so that none can be made up.

A token holds all that makes the list the one it is (tenant, prefix, state), so that it goes
on with no other: the same token with another prefix, or of another tenant, is refused.
"""

import binascii
import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from typing import Final

import orjson

from bottomless.errors import Code, Fault, InvalidRequest

SECRET_SIZE: Final = 32
_SIGNATURE_SIZE: Final = 16


def encode_page_token(scope: Sequence[str], after: str, secret: bytes) -> str:
    """A token for the page behind `after`, of the list that `scope` says."""
    body = orjson.dumps([after])
    signed = _signature(scope, body, secret) + body
    return urlsafe_b64encode(signed).decode("ascii").rstrip("=")


def decode_page_token(text: str, scope: Sequence[str], secret: bytes) -> str:
    """Where the page begins that a token asks for.

    Raises:
        InvalidRequest: it was not made for this list, or not by us.
    """
    try:
        raw = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
    except (UnicodeEncodeError, binascii.Error) as error:
        raise _bad_token() from error
    signature, body = raw[:_SIGNATURE_SIZE], raw[_SIGNATURE_SIZE:]
    if not hmac.compare_digest(signature, _signature(scope, body, secret)):
        raise _bad_token()
    (after,) = orjson.loads(body)
    return str(after)


def _signature(scope: Sequence[str], body: bytes, secret: bytes) -> bytes:
    # The scope is signed and not sent: whoever asks says it again.
    signed = orjson.dumps(list(scope)) + body
    return hmac.new(secret, signed, hashlib.sha256).digest()[:_SIGNATURE_SIZE]


def _bad_token() -> InvalidRequest:
    sentence = "the page token was not made for this list"
    fault = Fault(Code.BAD_PARAMETER, sentence, parameter="page_token")
    return InvalidRequest(sentence, faults=[fault])
