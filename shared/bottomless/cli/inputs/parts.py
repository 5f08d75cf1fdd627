"""Parts: what every format of input makes: bodies that the server accepts."""

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

COLUMNS_READ_ONLY: Final = frozenset({"offset", "timestamp"})
"""What a read adds to a record, and an append does not accept."""


class Limits(NamedTuple):
    """How large a part gets, roughly; a record that is larger by itself is sent alone."""

    record_count: int
    size: int
    """Bytes."""


class Part(NamedTuple):
    """The body of one request."""

    body: bytes
    media_type: str
    record_count: int
    input_size: int
    """Bytes of the input that it was made from."""


@dataclass(slots=True)
class Taking:
    """How an input is read, and what is counted on the way."""

    limits: Limits
    skipped: int = 0
    """Records at the beginning that are stored already."""
    key_field: str | None = None
    """The member that is the key, where records have members."""
    key_optional: bool = False
    """Whether a record without that member is accepted."""
    key: str | None = None
    """The key of every record."""
    headers: dict[str, str] = field(default_factory=dict)
    """The headers of every record."""
    keyless_count: int = 0
    """Records that were read and had no such member."""

    @property
    def shared(self) -> dict[str, Any]:
        """The members that every record gets."""
        key = {} if self.key is None else {"key": self.key}
        return {**key, **({"headers": self.headers} if self.headers else {})}
