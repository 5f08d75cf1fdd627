"""Temporary streams: what a command needs that makes one of its own, and how to tell who lacks it."""

from collections.abc import Iterator
from contextlib import contextmanager

from bottomless.errors import Denied, NotFound


@contextmanager
def told_what_is_needed(prefix: str) -> Iterator[None]:
    """Around the creation of a stream.

    Whoever may do nothing with a name is told that it does not exist, which of a stream that
    is being created makes no sense to them.
    """
    try:
        yield
    except (Denied, NotFound) as error:
        raise Denied(
            f"this needs a stream of its own, and manage, append, read and delete for {prefix}*",
        ) from error
