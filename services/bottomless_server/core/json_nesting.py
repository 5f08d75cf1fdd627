"""How deep JSON may be nested: as deep as where it comes as JSON, and no deeper.

Parsers read what is nested deeper than what they write, and a page, or a line of a
follower, puts levels of its own round each value. One such value would keep readers from
all that stands beside it, so ingest takes none, and the reader shows as text what an
earlier build took.
"""

from typing import Any, Final

import orjson

NESTED_MAX: Final = 254
"""The deepest nesting that orjson writes, by which all answers in JSON are made
(`bodies.encode_json`)."""


def nested_too_deeply(text: bytes, value: Any) -> bool:
    """Whether `text`, which orjson read as `value`, is nested deeper than `NESTED_MAX`."""
    # Brackets inside of strings count here too, and what is wide: most texts need no second look.
    if text.count(b"[") + text.count(b"{") <= NESTED_MAX:
        return False
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError:
        # All else that it read it can write.
        return True
    return False
