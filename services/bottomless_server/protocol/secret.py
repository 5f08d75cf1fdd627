"""The secret that all services share, as a request to an internal listener shows it.

Which secrets are taken, and why there is one at all: `runtime/peers/internal_secret.py`.
"""

from collections.abc import Iterable
from typing import Final

_HEADER: Final = "authorization"
_SCHEME: Final = "Bearer "


def headers_to(base_url: str, secret: str | None) -> dict[str, str]:
    """What each request to a service carries beside its own headers; nothing over a socket."""
    if secret is None or not base_url.startswith("http://"):
        return {}
    return {_HEADER: _SCHEME + secret}


def shown_secret(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """The secret that a request shows, by headers whose names are lowercase; None if it shows
    none, or two."""
    shown = [value for name, value in headers if name == _HEADER.encode()]
    size = len(_SCHEME)
    if len(shown) != 1 or shown[0][:size].lower() != _SCHEME.lower().encode():
        return None
    return shown[0][size:]
