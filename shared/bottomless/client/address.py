"""Address: where a call goes: the url of a server, and every path below it. Pure.

All paths with a name or an id in them are made here, and each such part is checked against its
grammar first. Percent-encoding would not be enough: servers and proxies take `%2F` for a slash,
so `orders/offsets`, taken for a stream's name, would be another operation of the stream `orders`.
"""

import re
from typing import Final
from urllib.parse import SplitResult, urlsplit

from bottomless.errors import Code, InvalidRequest
from bottomless.model.names import parse_reference, parse_stream_name

_SCHEMES: Final = ("http", "https")
_ID_SIZE_MAX: Final = 255
_ID: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{_ID_SIZE_MAX}}}", re.ASCII)


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


def require_text(value: object, what: str) -> str:
    """The value itself, which must be text.

    Raises:
        TypeError: that is no text; None, say, of something that was looked up and is not there.
    """
    if not isinstance(value, str):
        raise TypeError(f"{what} is a str, not {type(value).__name__}")
    return value


def check_stream(name: str) -> str:
    """A stream's name, as it may stand in a path.

    Raises:
        InvalidRequest: `bad-name`.
    """
    return parse_stream_name(require_text(name, "the name of a stream"))


def check_reference(name: str) -> str:
    """The name of a consumer or a producer, as it may stand in a path. Raises as `check_stream`."""
    return parse_reference(require_text(name, "the name of a consumer or a producer"))


def check_id(text: str) -> str:
    """An id that a server gave, as it may stand in a path; whether there is one the server says.

    Raises:
        InvalidRequest: `bad-name`.
    """
    if not _ID.fullmatch(require_text(text, "an id")):
        raise InvalidRequest(
            f"an id has from 1 to {_ID_SIZE_MAX} ASCII letters, digits, '_' and '-'",
            code=Code.BAD_NAME,
        )
    return text


def stream_path(name: str) -> str:
    """The path of a stream, with which all paths below it begin."""
    return f"/v1/streams/{check_stream(name)}"


def consumer_path(name: str, consumer: str) -> str:
    return f"{stream_path(name)}/consumers/{check_reference(consumer)}"


def producer_path(name: str, producer: str) -> str:
    return f"{stream_path(name)}/producers/{check_reference(producer)}"


def fragment_path(name: str, fragment_id: str) -> str:
    return f"{stream_path(name)}/fragments/{check_id(fragment_id)}"


def lease_path(name: str, lease_id: str) -> str:
    return f"{stream_path(name)}/leases/{check_id(lease_id)}"


def takeover_path(name: str) -> str:
    return f"/v1/admin/streams/{check_stream(name)}/takeover"


def gap_path(name: str) -> str:
    return f"/v1/admin/streams/{check_stream(name)}/gap"


def operation_path(operation_id: str) -> str:
    return f"/v1/operations/{check_id(operation_id)}"


def key_path(key_id: str) -> str:
    return f"/v1/keys/{check_id(key_id)}"
