"""Find where a stream begins and ends now, from its manifest and from the owner of its tail."""

from bottomless.model.manifest import Node
from bottomless.model.stream import StreamRecord
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.leaderless.tail_facts import shown_tail, tail_of
from bottomless_server.manifest.mutators.mutator import Mutators
from bottomless_server.manifest.registry.stream_description import ShownTail, known_committed_next


class StreamBounds:
    """Where streams begin and end, asked of whoever knows it best."""

    def __init__(self, context: Context, mutators: Mutators) -> None:
        self._context = context
        self._mutators = mutators

    async def root(self, record: StreamRecord) -> Node:
        """The root of a stream, at least as new as its record here."""
        return await self._mutators.of(record.stream_id).root_for(record)

    async def committed_next(self, record: StreamRecord) -> int | None:
        """The offset after the last committed record: as the owner or the tail in coordination says,
        else as the record proves.

        None where nobody tells it.
        """
        if record.config.leaderless:
            tail = await tail_of(self._context, record)
            return None if tail is None else tail.next_offset
        asked = None
        if record.owner_url is not None:
            asked = await self._context.owners.committed_next(
                record.owner_url,
                record.stream_id,
                self._context.settings.manifest_owner_ms / 1000,
            )
        return known_committed_next(record) if asked is None else asked

    async def tail(self, record: StreamRecord) -> ShownTail | None:
        """The tail of a leaderless stream; None of a local one, and of one that is gone."""
        return await shown_tail(self._context, record) if record.config.leaderless else None
