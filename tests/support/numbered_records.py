"""Records that say who sent them: a producer and a number, from which the whole value follows.

So whoever reads a stream knows of each record what it has to be, and memory needs one number for
each, or one for each producer.
"""

from typing import Final

VALUE_SIZE_MAX: Final = 1_500
_NUMBER_BITS: Final = 40


def record(producer: int, number: int) -> int:
    """A record as one integer."""
    return producer << _NUMBER_BITS | number


def split(code: int) -> tuple[int, int]:
    """Producer and number of one."""
    return code >> _NUMBER_BITS, code & ((1 << _NUMBER_BITS) - 1)


def value_of(code: int, size_max: int = VALUE_SIZE_MAX) -> str:
    """What a record holds: its producer, its number, and up to `size_max` letters more."""
    producer, number = split(code)
    return f"{producer} {number} " + "x" * (number * 7919 % size_max)


def parse(value: str, size_max: int = VALUE_SIZE_MAX) -> int | None:
    """The record whose value this is; None if it is nobody's."""
    words = value.split(" ", 2)
    if len(words) < 3 or not (words[0].isdecimal() and words[1].isdecimal()):
        return None
    code = record(int(words[0]), int(words[1]))
    return code if value_of(code, size_max) == value else None
