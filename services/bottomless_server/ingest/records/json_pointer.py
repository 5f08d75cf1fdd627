"""JSON pointers (RFC 6901) of a request's query: where in a value something stands."""

import re
from typing import Any, Final

from bottomless.errors import InvalidRequest

POINTER_SIZE_MAX: Final = 1024
MISSING: Final = object()
"""What a pointer finds where it leads to nothing."""

Pointer = tuple[str, ...]
"""The names and indices on the way, with their escapes undone."""

_POINTER: Final = re.compile(r"(?:/(?:[^/~]|~[01])*)+")
_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)


def parse_pointer(text: str) -> Pointer:
    """A pointer to something within a value; the empty one, to all of it, is refused.

    A query with an unset variable reads as the empty one, and is never meant.

    Raises:
        InvalidRequest: `bad-parameter`.
    """
    if not _POINTER.fullmatch(text) or len(text.encode()) > POINTER_SIZE_MAX:
        raise InvalidRequest(
            f"must be a JSON pointer such as /customer/id, of at most {POINTER_SIZE_MAX} bytes"
        )
    parts = text.split("/")[1:]
    # In this order: ~01 is the text ~1.
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in parts)


def follow(value: Any, pointer: Pointer) -> Any:
    """What stands there, or MISSING."""
    for part in pointer:
        if isinstance(value, dict):
            value = value.get(part, MISSING)
        elif isinstance(value, list) and _INDEX.fullmatch(part) and int(part) < len(value):
            value = value[int(part)]
        else:
            return MISSING
    return value
