"""Streams that a queue's configuration names: whoever configures it hears at once that one is not there.

It is asked for what a request changes, and only then: a stream may be deleted later, and what was right
once is no reason to refuse a repeat of it, or a change of something else. docs/decisions/0147.
"""

from collections.abc import Iterator

from bottomless.errors import Fault, InvalidRequest, NotFound
from bottomless.model.queue import QueueConfig
from bottomless_server.queues.bodies.naming import ARCHIVE, DEAD_LETTER_STREAM, no_target, unknown
from bottomless_server.queues.ports import OutgoingStreams


async def missing_stream(
    streams: OutgoingStreams, tenant: str, config: QueueConfig, before: QueueConfig | None = None
) -> InvalidRequest | None:
    """The answer where a stream that `config` names, and `before` did not name there, does not exist; None
    where all of them do.

    Raises:
        StoreError: nobody knows whether one does.
    """
    known = {} if before is None else dict(_streams_of(before))
    faults: list[Fault] = []
    for pointer, stream in _streams_of(config):
        if known.get(pointer) == stream:
            continue
        try:
            await streams.require(tenant, stream)
        except NotFound as error:
            faults.append(unknown(pointer, error))
    return no_target(faults) if faults else None


def _streams_of(config: QueueConfig) -> Iterator[tuple[str, str]]:
    """Each stream that a configuration names, with the pointer to its place."""
    if config.dead_letter is not None and config.dead_letter.stream is not None:
        yield DEAD_LETTER_STREAM, config.dead_letter.stream
    if config.archive is not None:
        yield ARCHIVE, config.archive.stream
