"""Answers about what is not there, where more than one floor gives them."""

from bottomless.errors import NotFound


def stream_not_found() -> NotFound:
    """The answer where no stream has the name or the id that was asked for."""
    return NotFound("there is no such stream; PUT /v1/streams/{name} creates one")


def super_not_found() -> NotFound:
    """The answer where no super stream has the name or the id that was asked for."""
    return NotFound("there is no such super stream; PUT /v1/super-streams/{name} creates one")
