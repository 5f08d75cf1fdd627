"""Page tokens of lists: where the next page begins, sealed so that none can be made up or read.

A token holds a name of the list, which may be one that its reader must not know of: a list shows
only what the credential may see. All that makes the list the one it is (tenant, prefix, state)
is sealed with it, so that it goes on with no other: the same token with another prefix, or of
another tenant, is refused.
"""

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from typing import Final

import orjson
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from bottomless.errors import Code, Fault, InvalidRequest

SECRET_SIZE: Final = 32


def encode_page_token(scope: Sequence[str], after: str, secret: bytes) -> str:
    """A token for the page that begins after `after`, of the list that `scope` names."""
    # Without a nonce: the same page has the same token, which says no more than that it is so.
    sealed = AESSIV(secret).encrypt(orjson.dumps([after]), [orjson.dumps(list(scope))])
    return urlsafe_b64encode(sealed).decode("ascii").rstrip("=")


def decode_page_token(text: str, scope: Sequence[str], secret: bytes) -> str:
    """Where the page begins that a token asks for.

    Raises:
        InvalidRequest: it was not made for this list, or not by us.
    """
    try:
        sealed = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
        # The scope is not sent: whoever asks says it again.
        body = AESSIV(secret).decrypt(sealed, [orjson.dumps(list(scope))])
    except (UnicodeEncodeError, binascii.Error, InvalidTag, ValueError) as error:
        raise _bad_token() from error
    (after,) = orjson.loads(body)
    return str(after)


def _bad_token() -> InvalidRequest:
    sentence = "the page token was not made for this list"
    fault = Fault(Code.BAD_PARAMETER, sentence, parameter="page_token")
    return InvalidRequest(sentence, faults=[fault])
