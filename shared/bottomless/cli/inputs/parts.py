"""Parts: what every format of input makes: bodies that the server takes, each of some records."""

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

COLUMNS_READ_ONLY: Final = frozenset({"offset", "timestamp"})
"""What a read adds to a record, and an append does not take."""


class Limits(NamedTuple):
    """How large a part gets, about; a record that is larger by itself still goes, alone."""

    record_count: int
    size: int


class Part(NamedTuple):
    """The body of one request."""

    body: bytes
    media_type: str
    record_count: int
    input_size: int
    """Bytes of the input that it was made of."""


@dataclass(slots=True)
class Taking:
    """How an input is taken, and what is counted on the way."""

    limits: Limits
    skipped: int = 0
    """So many records at the beginning are stored already."""
    key_field: str | None = None
    """The member that is the key, where records have members."""
    key_optional: bool = False
    """Whether a record without it is taken."""
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
