"""Temporary streams: what a command that makes one needs, and how to tell a user without it."""

from collections.abc import Iterator
from contextlib import contextmanager

from bottomless.errors import Denied, NotFound


@contextmanager
def told_what_is_needed(prefix: str) -> Iterator[None]:
    """Wrap the creation of a stream, and say which scopes it needs if they are missing.

    Without any scope on a name the server answers that it does not exist, which makes no sense to
    the user of a command that is creating it.

    Raises:
        Denied: a scope is missing.
    """
    try:
        yield
    except (Denied, NotFound) as error:
        raise Denied(
            f"this needs a stream of its own, and manage, append, read and delete for {prefix}*",
        ) from error
