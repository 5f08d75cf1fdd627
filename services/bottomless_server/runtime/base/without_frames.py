"""Errors that are handed to somebody else: `without_frames`."""

from typing import TypeVar

E = TypeVar("E", bound=BaseException)


def without_frames(error: E) -> E:
    """The error itself, and what it came from, without the frames that they went through.

    For an error that is an answer, and goes to its caller by a future. Frames refer to what they were
    called with, and so to that future, and the future to the error: a circle that only the garbage
    collector would find, with the body of a request in it.
    """
    one: BaseException | None = error
    while one is not None:
        one.__traceback__ = None
        one = one.__context__
    return error
