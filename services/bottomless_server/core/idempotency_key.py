"""Idempotency keys: under which a request is stored once, however often it is sent."""

import re
from typing import Final

from bottomless_server.core.faults import bad_header

KEY_SIZE_MAX: Final = 255
_KEY: Final = re.compile(r"[!-~](?:[ -~]*[!-~])?", re.ASCII)


def is_key(text: str) -> bool:
    """Whether a text can be a key: printable ASCII, without a space at either end."""
    return len(text) <= KEY_SIZE_MAX and _KEY.fullmatch(text) is not None


def check_idempotency_key(text: str) -> None:
    """Refuse a header `Idempotency-Key` that is none.

    Raises:
        InvalidRequest: `bad-header`.
    """
    if not is_key(text):
        raise bad_header("idempotency-key", "must be 1 to 255 printable ASCII characters")
