"""Connection: which server a command talks to and as whom, of all places that can say so.

Options beat the environment, and the environment beats a profile, unless an option names that
profile. A profile's token goes to the url of that profile and to no other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

URL_DEFAULT: Final = "http://127.0.0.1:8080"

CHOICE: Final = "bottomless.choice"
"""Where a command's context keeps what it chose, for the line that reports a failure."""


@dataclass(frozen=True, slots=True)
class Layer:
    """What one place says: the options, the environment, or a profile."""

    source: str
    url: str | None = None
    token: str | None = field(default=None, repr=False)
    token_file: Path | None = None
    ca_file: Path | None = None
    is_profile: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen, and which place said it."""

    url: str
    url_source: str
    credential: Layer | None
    """The place that gives a token, directly or by a file."""
    ca_file: Path | None
    withheld: Layer | None
    """A profile whose token is not sent, since the url is not that of the profile."""


def choose(layers: Sequence[Layer]) -> Choice:
    """Take from each layer, the strongest first, what no layer before it says."""
    naming = next((layer for layer in layers if layer.url is not None), None)
    url = URL_DEFAULT if naming is None or naming.url is None else naming.url
    return Choice(
        url=url,
        url_source="default" if naming is None else naming.source,
        credential=next((layer for layer in layers if _tells_token(layer, url)), None),
        ca_file=next((layer.ca_file for layer in layers if layer.ca_file is not None), None),
        withheld=next((layer for layer in layers if _withholds_token(layer, url)), None),
    )


def fault_of(url: str) -> str | None:
    """Say why this is not the url of a server, without repeating it; None if it is one."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return "that is not a url"
    if parts.scheme not in ("http", "https"):
        return "a url must start with http:// or https://"
    if not parts.hostname:
        return "that url names no host"
    if "@" in parts.netloc:
        return "a url must have no user and no password; give the token in a file or in the environment"
    if parts.query or parts.fragment:
        return "a server's url must have no ? and no #"
    if parts.path.rstrip("/").endswith("/v1"):
        return "leave /v1 away, every command adds it by itself"
    return None


def place_of(url: str) -> str:
    """Extract host and port, as people look for what listens there."""
    return urlsplit(url).netloc.rpartition("@")[2]


def _tells_token(layer: Layer, url: str) -> bool:
    return _has_token(layer) and not _withholds_token(layer, url)


def _withholds_token(layer: Layer, url: str) -> bool:
    # Whoever names another server does not mean to show it the secret of this one.
    own = layer.url if layer.is_profile and _has_token(layer) else None
    return own is not None and own.rstrip("/") != url.rstrip("/")


def _has_token(layer: Layer) -> bool:
    return layer.token is not None or layer.token_file is not None
