"""Readers of members of JSON values: each takes what JSON has there, or raises ValueError.

They raise TypeError too, where it is of another type; who decodes a whole value makes `Corrupt` of
both.
"""

from collections.abc import Callable
from typing import Any


def number(low: int, high: int) -> Callable[[Any], int]:
    """Make a reader of a whole number from `low` to `high`, both inclusive."""

    def read(value: Any) -> int:
        # Not isinstance: JSON's true is not a number.
        if type(value) is not int or not low <= value <= high:
            raise ValueError("not a number, or out of its range")
        return value

    return read


def text(value: Any) -> str:
    """Read a text.

    Raises:
        TypeError: it is something else.
    """
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value


def flag(value: Any) -> bool:
    """Read a truth value.

    Raises:
        TypeError: it is something else.
    """
    if not isinstance(value, bool):
        raise TypeError("not a flag")
    return value


def optional(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Make a reader that takes null too."""
    return lambda value: None if value is None else read(value)


def each(read: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    """Make a reader of a list of any length."""

    def read_all(values: Any) -> tuple[Any, ...]:
        if not isinstance(values, list):
            raise TypeError("not a list")
        return tuple(read(value) for value in values)

    return read_all


def row(kind: Callable[..., Any], *columns: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Make a reader of a list with one item for each column, of which `kind` makes one value."""

    def read(values: Any) -> Any:
        if not isinstance(values, list):
            raise TypeError("not a list")
        return kind(*(column(value) for column, value in zip(columns, values, strict=True)))

    return read
