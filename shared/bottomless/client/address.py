"""Address: the url of a server, or of the proxy in front of several, checked once. Pure."""

from typing import Final
from urllib.parse import SplitResult, quote, urlsplit

from bottomless.errors import InvalidRequest

_SCHEMES: Final = ("http", "https")


def parse_url(text: str) -> str:
    """The url without a slash at its end.

    Raises:
        InvalidRequest: it is not one of HTTP, or says more than scheme, host, port and path.
            What it says is not repeated: it may be a password.
    """
    try:
        parts = urlsplit(text)
        whole = parts.scheme in _SCHEMES and bool(parts.hostname) and not _is_more(parts)
        # Reading the port checks it.
        whole = whole and parts.port != 0 and text.isascii() and text.isprintable()
    except ValueError:
        whole = False
    if not whole or " " in text:
        raise InvalidRequest(
            "the url of a server is http:// or https://, a host, perhaps a port and a path"
        )
    return text.rstrip("/")


def _is_more(parts: SplitResult) -> bool:
    return bool(parts.username or parts.password or parts.query or parts.fragment)


def segment(text: str) -> str:
    """One segment of a path, whatever is in it."""
    return quote(text, safe="")


def stream_path(name: str) -> str:
    return f"/v1/streams/{segment(name)}"
