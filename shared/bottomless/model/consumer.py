"""How far a consumer has come: its name, and where it continues."""

from dataclasses import dataclass

from bottomless.model.names import Reference


@dataclass(frozen=True, slots=True)
class StoredOffset:
    """The last commit of one consumer of one stream."""

    consumer: Reference
    next_offset: int
    """Where it continues; everything below is processed."""
    committed_at: int
    """Milliseconds since 1970."""
    revision: int
    """Grows with each commit. It starts from the clock, so that an offset that is stored anew
    after it was forgotten has another one, unless both happen within a millisecond."""
