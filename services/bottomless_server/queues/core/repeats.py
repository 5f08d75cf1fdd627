"""Repeats of a publish: what a queue remembers of a key decides what a second request with it hears.

A queue remembers a publish with a key for as long as it is configured to, and forgets none early: when
it remembers as many as it can, new ones with a key are refused. A repeat hears the same message ids,
also when the messages are gone.
"""

from enum import Enum
from hashlib import sha256
from typing import Final

HASH_SIZE: Final = 16


class Repeat(Enum):
    """What a publish with a key is, by what the queue remembers."""

    NEW = "new"
    SAME = "same"
    """It is stored: it is told what the first one was told."""
    OTHER = "other"
    """The key was used for another body."""
    FULL = "full"
    """It would be new, and the queue remembers as many as it can."""


def key_hash(principal: str, key: str) -> bytes:
    """What stands for the key of a principal; the keys of two principals are never the same."""
    # The size keeps apart what is the name and what is the key.
    return sha256(b"%d:%s%s" % (len(principal), principal.encode(), key.encode())).digest()[
        :HASH_SIZE
    ]


def decide_repeat(
    remembered: tuple[bytes, int] | None, body_hash: bytes, now: int, count: int, count_max: int
) -> Repeat:
    """What a publish is, whose body has this hash.

    `remembered` is of its key: the hash of the body, and the time (ms) at which it is forgotten; None
    where there is nothing. `count` says of how many publishes the queue knows, at most `count_max`.
    """
    if remembered is not None and remembered[1] > now:
        return Repeat.SAME if remembered[0] == body_hash else Repeat.OTHER
    # One that is about to be forgotten takes the place that it has.
    if remembered is None and count >= count_max:
        return Repeat.FULL
    return Repeat.NEW


def ids_of(first: bytes, count: int) -> list[bytes]:
    """The message ids of a request, of which the first is known: they count up by one."""
    start = int.from_bytes(first, "big")
    return [(start + number).to_bytes(len(first), "big") for number in range(count)]
