"""Ids of messages: UUIDv7, those of one request count up by one, so that a repeat is told all by the first."""

from typing import Final

RANDOM_SIZE: Final = 10
_ROOM: Final = 1 << 61
"""A bit that is left clear, so that counting up reaches no bit with a meaning."""


def first_id(timestamp: int, randomness: bytes) -> bytes:
    """The id of the first message of a request, from a time in ms and RANDOM_SIZE random bytes."""
    assert 0 <= timestamp < 2**48
    assert len(randomness) == RANDOM_SIZE
    bits = int.from_bytes(randomness, "big")
    front = timestamp << 16 | 0x7000 | bits >> 64 & 0x0FFF
    back = 0b10 << 62 | bits & (2**62 - 1) & ~_ROOM
    return (front << 64 | back).to_bytes(16, "big")
