"""Addresses: the url of a server, and every path below it. Pure.

All paths that contain a name or an id are made here, and each such part is checked against its
grammar first. Percent-encoding would not be enough: servers and proxies take `%2F` for a slash, so
`orders/offsets`, taken for a stream's name, would be another operation of the stream `orders`.
"""

import re
from typing import Final
from urllib.parse import SplitResult, urlsplit

from bottomless.errors import Code, InvalidRequest
from bottomless.guards import guard
from bottomless.model.names import parse_queue_name, parse_reference, parse_stream_name

_SCHEMES: Final = ("http", "https")
_NOT_IN_URL: Final = frozenset(" ?#@\\")
"""What would begin another part of a url, or stand for a slash, also where nothing follows it."""
_ID_SIZE_MAX: Final = 255
_ID: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{_ID_SIZE_MAX}}}", re.ASCII)


def parse_url(text: str) -> str:
    """Check the url of a server, and remove a slash at its end.

    Raises:
        InvalidRequest: it is no HTTP url, or has more than scheme, host, port and path. Its text
            is not repeated: it may contain a password.
    """
    try:
        parts = urlsplit(text)
        whole = parts.scheme in _SCHEMES and bool(parts.hostname) and not _is_more(parts)
        # Reading the port checks it.
        whole = whole and parts.port != 0 and text.isascii() and text.isprintable()
    except ValueError:
        whole = False
    if not whole or not _NOT_IN_URL.isdisjoint(text):
        raise InvalidRequest(
            "the url of a server must be http:// or https://, a host, and if need be a port and a path"
        )
    return text.rstrip("/")


def _is_more(parts: SplitResult) -> bool:
    return bool(parts.username or parts.password or parts.query or parts.fragment)


def require_text(value: object, what: str) -> str:
    """Return the value itself, which must be text; `what` names it in the error.

    Raises:
        TypeError: it is not text; for example None, from a look-up that found nothing.
    """
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str, not {type(value).__name__}")
    return value


@guard("names and ids in a path")
def check_stream(name: str) -> str:
    """Check a stream's name, so that it can stand in a path.

    Raises:
        InvalidRequest: `bad-name`.
        TypeError: it is not text.
    """
    return parse_stream_name(require_text(name, "the name of a stream"))


def check_queue(name: str) -> str:
    """Check a queue's name, so that it can stand in a path.

    Raises:
        InvalidRequest: `bad-name`.
        TypeError: it is not text.
    """
    return parse_queue_name(require_text(name, "the name of a queue"))


def check_reference(name: str) -> str:
    """Check the name of a consumer or a producer, so that it can stand in a path.

    Raises:
        InvalidRequest: `bad-name`.
        TypeError: it is not text.
    """
    return parse_reference(require_text(name, "the name of a consumer or a producer"))


def check_id(text: str) -> str:
    """Check the form of an id that a server gave, so that it can stand in a path.

    Only the server knows whether the id exists.

    Raises:
        InvalidRequest: `bad-name`.
        TypeError: it is not text.
    """
    if not _ID.fullmatch(require_text(text, "an id")):
        raise InvalidRequest(
            f"an id must have from 1 to {_ID_SIZE_MAX} ASCII letters, digits, '_' and '-'",
            code=Code.BAD_NAME,
        )
    return text


def stream_path(name: str) -> str:
    """Make the path of a stream, with which all paths below it begin."""
    return f"/v1/streams/{check_stream(name)}"


def queue_path(name: str) -> str:
    """Make the path of a queue, with which all paths below it begin."""
    return f"/v1/queues/{check_queue(name)}"


def super_path(name: str) -> str:
    """Make the path of a super stream; its name is of the form of a stream's."""
    return f"/v1/super-streams/{check_stream(name)}"


def consumer_path(name: str, consumer: str) -> str:
    """Make the path of a consumer of a stream."""
    return f"{stream_path(name)}/consumers/{check_reference(consumer)}"


def groups_path(name: str, *, super_stream: bool = False) -> str:
    """Make the path below which the consumer groups of a stream are, or of a super stream."""
    return f"{super_path(name) if super_stream else stream_path(name)}/groups"


def group_path(name: str, group: str, *, super_stream: bool = False) -> str:
    """Make the path of a consumer group of a stream, or of a super stream."""
    return f"{groups_path(name, super_stream=super_stream)}/{check_reference(group)}"


def member_path(name: str, group: str, member_id: str, *, super_stream: bool = False) -> str:
    """Make the path of a member of a consumer group."""
    return f"{group_path(name, group, super_stream=super_stream)}/members/{check_id(member_id)}"


def producer_path(name: str, producer: str) -> str:
    """Make the path of a producer of a stream."""
    return f"{stream_path(name)}/producers/{check_reference(producer)}"


def fragment_path(name: str, fragment_id: str) -> str:
    """Make the path of a fragment of a stream."""
    return f"{stream_path(name)}/fragments/{check_id(fragment_id)}"


def move_path(name: str, move: str) -> str:
    """Make the path of a move of fragments, whose number a server gave."""
    return f"{stream_path(name)}/moves/{check_id(move)}"


def lease_path(name: str, lease_id: str) -> str:
    """Make the path of a lease on a stream."""
    return f"{stream_path(name)}/leases/{check_id(lease_id)}"


def takeover_path(name: str) -> str:
    """Make the path by which an operator has a stream taken over."""
    return f"/v1/admin/streams/{check_stream(name)}/takeover"


def owner_path(name: str) -> str:
    """Make the path by which an operator gives a stream to another of its nodes."""
    return f"/v1/admin/streams/{check_stream(name)}/owner"


def replica_path(name: str, node: str) -> str:
    """Make the path of a node that holds a stream, or is to."""
    return f"{stream_path(name)}/replicas/{check_id(node)}"


def evacuation_path(node: str) -> str:
    """Make the path by which an operator has a node emptied."""
    return f"/v1/admin/nodes/{check_id(node)}/evacuate"


def gap_path(name: str) -> str:
    """Make the path by which an operator accepts a gap in a stream."""
    return f"/v1/admin/streams/{check_stream(name)}/gap"


def operation_path(operation_id: str) -> str:
    """Make the path of an operation."""
    return f"/v1/operations/{check_id(operation_id)}"


def drive_path(drive: str) -> str:
    """Make the path by which an operator retires a drive."""
    return f"/v1/admin/drives/{check_id(drive)}"


def drive_lost_path(drive: str) -> str:
    """Make the path by which an operator says that a drive is lost."""
    return f"{drive_path(drive)}/lost"


def key_path(key_id: str) -> str:
    """Make the path of an API key."""
    return f"/v1/keys/{check_id(key_id)}"
