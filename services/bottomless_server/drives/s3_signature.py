"""The signature of a GET to S3, by AWS Signature Version 4.

Only what a GET without a query needs. Headers that are not signed may be sent beside these.
"""

import hashlib
import hmac
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, Protocol
from urllib.parse import quote

EMPTY_SHA256: Final = hashlib.sha256(b"").hexdigest()
"""A GET has no body, and its signature says so."""
_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_KEY_COUNT_MAX: Final = 16
"""Signing keys kept: one for each day, region and secret, of which few are in use at once."""


class Credentials(Protocol):
    """What signs; botocore's frozen credentials are such."""

    @property
    def access_key(self) -> str: ...
    @property
    def secret_key(self) -> str: ...
    @property
    def token(self) -> str | None: ...


def path_of(object_key: str) -> str:
    """The part of a URL's path that names an object; S3 signs it as it is sent, encoded once."""
    return quote(object_key, safe="/~")


def signed_get(
    host: str,
    path: str,
    headers: Mapping[str, str],
    credentials: Credentials,
    region: str,
    moment: str,
) -> dict[str, str]:
    """The headers of a GET of `path`, `headers` among them, with what authorizes it.

    `host` and `path` are as they are sent. Names of headers are in lower case; `moment` is the
    time in UTC as `20130524T000000Z`. The host stands in the signature and is not returned.
    """
    sent = {**headers, "x-amz-content-sha256": EMPTY_SHA256, "x-amz-date": moment}
    if credentials.token:
        sent["x-amz-security-token"] = credentials.token
    named = sorted({**sent, "host": host}.items())
    names = ";".join(name for name, _ in named)
    lines = "".join(f"{name}:{' '.join(value.split())}\n" for name, value in named)
    request = f"GET\n{path}\n\n{lines}\n{names}\n{EMPTY_SHA256}"
    day = moment[:8]
    scope = f"{day}/{region}/s3/aws4_request"
    text = f"{_ALGORITHM}\n{moment}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    key = signing_key(credentials.secret_key, day, region, "s3")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    sent["authorization"] = (
        f"{_ALGORITHM} Credential={credentials.access_key}/{scope}, "
        f"SignedHeaders={names}, Signature={signature}"
    )
    return sent


@lru_cache(maxsize=_KEY_COUNT_MAX)
def signing_key(secret_key: str, day: str, region: str, service: str) -> bytes:
    """The key that signs for one day (`20130524`), region and service."""
    key = f"AWS4{secret_key}".encode()
    for part in (day, region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key
