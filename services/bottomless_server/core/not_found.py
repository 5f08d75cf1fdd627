"""Answers about what is not there, where more than one floor gives them."""

from bottomless.errors import Code, NotFound
from bottomless.model.names import SuperId


def stream_not_found() -> NotFound:
    """The answer where no stream has the name or the id that was asked for."""
    return NotFound("there is no such stream; PUT /v1/streams/{name} creates one")


def only_a_super_stream(super_id: SuperId) -> NotFound:
    """The answer where a stream was asked for, and a super stream has the name."""
    return NotFound(
        "this is a super stream and no stream: GET /v1/super-streams/{name} lists its partitions,"
        " which are streams",
        facts={"super_id": super_id},
    )


def queue_not_found(name: str | None = None) -> NotFound:
    """The answer where no queue has the name that was asked for; `name` where no path says it."""
    return NotFound(
        "there is no such queue; PUT /v1/queues/{name} creates one",
        code=Code.QUEUE_NOT_FOUND,
        facts={} if name is None else {"queue": name},
    )


def super_not_found() -> NotFound:
    """The answer where no super stream has the name or the id that was asked for."""
    return NotFound("there is no such super stream; PUT /v1/super-streams/{name} creates one")
