"""Forget producers and keys of leaderless streams of which nothing was heard for long.

A local stream forgets them in the memory of its owner. Of a leaderless one coordination has a value for
each, and a queue by when it may go, which each append of the name puts off. What is forgotten is taken
out of value, index, count and queue in one EXEC; after a crash before it the name is due still.

Whether more was heard meanwhile is seen by the value: it is read before the queue, and has to be the
same in the EXEC. An append writes the value and the time together, so one that the queue did not
tell of has changed the value since.
"""

from typing import Final

import structlog

from bottomless.errors import NotFound, StoreError, Unavailable
from bottomless.guards import guard
from bottomless_server.coordination.base import Changes, Due
from bottomless_server.leaderless.decided import NewKnown
from bottomless_server.leaderless.tail import Tail
from bottomless_server.leaderless.tail_format import Known, decode_known
from bottomless_server.manifest.common.context import Context
from bottomless_server.stores.streams import GENERATION_KEY
from bottomless_server.stores.tail_commits import change_known
from bottomless_server.stores.tail_keys import SILENT_KEY, known_key, parse_silent

log = structlog.get_logger(__name__)

PAGE_COUNT: Final = 500
"""Names that one pass looks at."""
_PUT_OFF_MS: Final = 3_600_000
"""How long a name that cannot be read waits, so that others have their turn."""


class Forgetting:
    def __init__(self, context: Context) -> None:
        self._context = context

    async def look(self) -> int:
        """Forget what is due, at most a page; how many names there were.

        Raises:
            Unavailable: `clock-skew`: how late it is, is not known. Or not now.
        """
        now = await self._context.time.require()
        dues = await self._context.coordination.due(SILENT_KEY, now, PAGE_COUNT)
        for due in dues:
            try:
                await self._forget(due, now)
            except StoreError as error:
                if isinstance(error, Unavailable):
                    raise
                await self._put_off(due, now, error)
        return len(dues)

    async def _forget(self, due: Due, now: int) -> None:
        context = self._context
        stream_id, name = parse_silent(due.member)
        value = await context.coordination.get(known_key(stream_id, name))
        # After the value: what puts the time off later has changed the value too.
        (due_at,) = await context.coordination.due_at(SILENT_KEY, [due.member])
        if due_at is None or due_at > now:
            return
        before = None if value is None else decode_known(value)

        def decide(_: Tail, known: Known | None) -> NewKnown | None:
            if not is_silent(before, known):
                raise _Heard
            return None

        generation = context.streams.generation
        assert generation is not None, "nothing is forgotten before the service has started"
        try:
            await change_known(
                context.coordination,
                stream_id,
                name,
                generation,
                decide,
                [due._replace(due_at=due_at)],
            )
        except _Heard:
            return
        except NotFound:
            # What was known went with the stream.
            await context.coordination.settle([due._replace(due_at=due_at)])

    async def _put_off(self, due: Due, now: int, error: StoreError) -> None:
        """Let others have their turn; a release that can read it, or somebody's repair, may come."""
        log.error(
            "a name of a stream cannot be forgotten", member=repr(due.member), error=str(error)
        )
        later = Changes(queued=[due._replace(due_at=now + _PUT_OFF_MS)])
        await self._context.coordination.transact([GENERATION_KEY], lambda _: (later, None))


@guard("what was heard of a name since it was due")
def is_silent(before: Known | None, known: Known | None) -> bool:
    """Whether nothing was heard of a name since its value was read."""
    return before == known


class _Heard(Exception):
    """More was heard of the name: it is not forgotten."""
