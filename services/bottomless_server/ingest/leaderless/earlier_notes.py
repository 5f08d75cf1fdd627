"""A repeat waits for the note of its original, whoever wrote that, where INGEST_WAL_NOTES is `sync`.

A repeat is answered by whichever node it comes to. The original may be of another node, or of an
instance that this one has lost, and its note may be on its way still, or lost with its writer: then its
own answer was never given, and nobody else may give it. So the bucket is asked, until it has the note, or
a fragment has the records. For a writer that died between commit and note the vacuum puts it.
"""

import asyncio
from typing import Final

import structlog

from bottomless.errors import Code, Outcome, StoreError, Unavailable
from bottomless.guards import guard
from bottomless.model.backoff import backoff
from bottomless.model.names import StreamId
from bottomless_server.ingest.leaderless.context import WriterContext
from bottomless_server.ingest.producers.producers import Appended
from bottomless_server.stores.noted_entries import is_noted

log = structlog.get_logger(__name__)

_PAUSE_SECONDS_MIN: Final = 0.05
_PAUSE_SECONDS_MAX: Final = 2.0


async def after_earlier_notes(
    context: WriterContext, generation: int, stream_id: StreamId, said: Appended
) -> Appended | StoreError:
    """What an append may be told that was found to be stored before, in whole or in part, once that is
    noted; it waits for as long as a put may take. `generation` is that in which it was found."""
    first = said.first_offset if said.replayed and said.first_offset is not None else 0
    until = context.now() + int(context.bounds.put_seconds * 1000)
    misses = 0
    while True:
        try:
            # One at a time: each connection more would have the commits wait.
            async with context.looking:
                stores = context.drive, context.coordination
                if await is_noted(
                    *stores, stream_id, generation, first, said.next_offset, context.noted
                ):
                    return said
        except StoreError as error:
            log.info("notes cannot be looked for now", stream_id=stream_id, error=str(error))
        if context.now() >= until:
            return not_noted()
        await asyncio.sleep(backoff(misses, _PAUSE_SECONDS_MIN, _PAUSE_SECONDS_MAX))
        misses += 1


async def noted_before(
    context: WriterContext, generation: int, stream_id: StreamId, said: Appended
) -> Appended:
    """What a repeat may be told, as `after_earlier_notes` says it.

    Raises:
        Unavailable: its note did not come in time; outcome unknown.
    """
    if not waits_for_earlier(said, sync=context.bounds.notes_sync):
        return said
    answer = await after_earlier_notes(context, generation, stream_id, said)
    if isinstance(answer, StoreError):
        raise answer
    return answer


@guard("a repeat after the note of its original is durable")
def waits_for_earlier(said: Appended, *, sync: bool) -> bool:
    """Tell whether an answer speaks of records that others may have stored, and not noted yet."""
    return sync and (said.replayed or said.duplicates > 0)


def not_noted() -> Unavailable:
    """The answer where records are stored and visible, and a loss of coordination might cost them."""
    return Unavailable(
        "the records are visible, but the object store did not take the note of them in time",
        code=Code.OBJECT_STORE_UNAVAILABLE,
        outcome=Outcome.UNKNOWN,
    )
