"""Page tokens of lists: where the next page begins, sealed so that none can be made up or read.

A token holds a place of the list, which may be a name that its reader must not know of: a list
shows only what the credential may see. All that makes the list the one it is (tenant, prefix,
state) is sealed with it, so that it goes on with no other: the same token with another prefix, or
of another tenant, is refused.
"""

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from typing import Any, Final

import orjson
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from bottomless.errors import Code, Fault, InvalidRequest

SECRET_SIZE: Final = 32

_OTHER_LIST: Final = (
    "the page token was not made for this list; begin the list anew, without a token"
)


def seal(scope: Sequence[str], place: Sequence[str | int], secret: bytes) -> str:
    """A token for the page that begins at `place`, of the list that `scope` names.

    `secret` has SECRET_SIZE bytes.
    """
    # Without a nonce: the same page has the same token, which says no more than that it is so.
    sealed = AESSIV(secret).encrypt(orjson.dumps(list(place)), [orjson.dumps(list(scope))])
    return urlsafe_b64encode(sealed).decode("ascii").rstrip("=")


def unseal(text: str, scope: Sequence[str], secret: bytes, refusal: str = _OTHER_LIST) -> list[Any]:
    """The place that `seal` was given for this list, with the same secret.

    Raises:
        InvalidRequest: the token was not made for this list, or not by us; `refusal` says so.
    """
    try:
        sealed = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
        # The scope is not sent: whoever asks says it again.
        body = AESSIV(secret).decrypt(sealed, [orjson.dumps(list(scope))])
    except (UnicodeEncodeError, binascii.Error, InvalidTag, ValueError) as error:
        fault = Fault(Code.BAD_PARAMETER, refusal, parameter="page_token")
        raise InvalidRequest(refusal, faults=[fault]) from error
    place: list[Any] = orjson.loads(body)
    return place
