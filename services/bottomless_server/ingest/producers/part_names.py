"""What the parts of a commit are called that stand before its last: see commit_parts.py."""

from typing import Final

from bottomless_server.ingest.records.conditions import hash_of

_MARK: Final = "~"
"""No name that a request may give begins with it."""


def name_of_parts(producer_id: str) -> str:
    """The producer under which the parts of another one's commits are stored."""
    return _MARK + hash_of(producer_id.encode("ascii")).hex()


def is_of_parts(producer_id: str) -> bool:
    return producer_id.startswith(_MARK)
