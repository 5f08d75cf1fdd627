"""What a store says of an object without its bytes."""

from typing import NamedTuple


class ObjectFacts(NamedTuple):
    """The facts that a store gives about one object."""

    object_key: str
    size: int
    """Bytes of the object."""
    modified: int
    """When the object was put, by the store's own clock, in ms since 1970."""
    crc: int | None
    """CRC-32C of the object; None unless it was asked for."""
