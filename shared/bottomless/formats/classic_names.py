"""What a directory of RabbitMQ says of itself: of which virtual host and of which queue it is. Only read.

`.vhost` is the name. `.config` is text of Erlang that says how many messages a segment of an index
has. `.queue_name` says both names; of a queue with priorities there is a directory for each of them,
and its name ends with a zero and the priority as one byte.
"""

import re
from typing import Final, NamedTuple

from bottomless.formats.checks import check, corrupt
from bottomless.formats.classic_index import REL_COUNT

SIZE_MAX: Final = 4096
"""Bytes of such a file; a name has 255 at most."""
NAME_SIZE_MAX: Final = 255
_WHAT: Final = "directory of RabbitMQ"
_QUEUE: Final = re.compile(
    rb"VHOST: (?P<vhost>.{1,255})\nQUEUE: (?P<queue>.{0,255}?)(?:\0(?P<priority>[\0-\xff]))?\n"
    rb"(?:INDEX: v(?P<version>[12])\n)?",
    re.DOTALL,
)
_COUNT: Final = re.compile(rb"\{\s*segment_entry_count\s*,\s*([0-9]{1,9})\s*\}\s*\.")


class QueueDirectory(NamedTuple):
    """The queue that a directory is of."""

    vhost: str
    queue: str
    priority: int | None
    """The priority of its messages, 0 to 255; None of a queue without priorities."""


def decode_vhost(data: bytes) -> str:
    """Read `.vhost`.

    Raises:
        Corrupt: it is no name.
    """
    check(_WHAT, 0 < len(data) <= NAME_SIZE_MAX, f".vhost has {len(data)} bytes")
    return _text(data)


def decode_segment_entry_count(data: bytes | None) -> int:
    """Read `.config`; older releases have none, and segments as large as they can be.

    Raises:
        Corrupt: it does not say it.
    """
    if data is None:
        return REL_COUNT
    lines = [line for line in data.splitlines() if not line.lstrip().startswith(b"%")]
    found = _COUNT.search(b"\n".join(lines))
    if found is None:
        raise corrupt(_WHAT, ".config does not say how many messages a segment has")
    count = int(found[1])
    check(_WHAT, 0 < count <= REL_COUNT, f"a segment is said to have {count} messages")
    return count


def decode_queue_name(data: bytes) -> QueueDirectory:
    """Read `.queue_name`.

    Raises:
        Corrupt: it names no queue.
    """
    found = _QUEUE.fullmatch(data)
    if found is None:
        raise corrupt(_WHAT, ".queue_name does not name a queue")
    check(_WHAT, bool(found["queue"]) and b"\0" not in found["queue"], "a queue has no name")
    priority = found["priority"]
    return QueueDirectory(
        _text(found["vhost"]), _text(found["queue"]), None if priority is None else priority[0]
    )


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise corrupt(_WHAT, "a name is not UTF-8") from error
