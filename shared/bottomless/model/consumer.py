"""How far a consumer has come: its name, and the offset at which it continues."""

from dataclasses import dataclass

from bottomless.model.names import Reference


@dataclass(frozen=True, slots=True)
class StoredOffset:
    """The last commit of one consumer of one stream."""

    consumer: Reference
    next_offset: int
    """The offset at which it continues; all records below it are processed."""
    committed_at: int
    """Milliseconds since 1970."""
    revision: int
    """Grows with each commit. It starts from the clock, so that an offset that is forgotten and
    stored anew gets another revision, unless both happen within a millisecond.
    """
