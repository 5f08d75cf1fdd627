"""Members of the delete queue that failed: put off in the queue, and counted until they succeed.

    bottomless:deletes            the member, with the time from which it is tried again
    bottomless:deletes-failing    the same member, with the time of its first failure

Other drives than the first have a pair of their own, with the number of the drive at the end.

Both are written in one EXEC. After a crash before it, the member is due at once; after it, it
waits. A member that is done leaves the delete queue first: a crash between the two leaves it
among the failing ones, from where the next pass with nothing else to do takes it out. The
queue keeps the later of two times, so that whoever queues the same key meanwhile brings
nothing forward, and takes nothing out that is put off.

A deleted stream with objects that the store does not let go is counted among them, by its
prefix, which no queue for deletes knows: its deletion enters it and takes it out. After a
crash between that and the end of the deletion, the stream's record is gone, and so it goes.
"""

from collections.abc import Sequence
from typing import Final

from bottomless.model.drive import DEFAULT_NUMBER
from bottomless.model.names import StreamId
from bottomless_server.coordination.base import Changes, Coordination, Due
from bottomless_server.manifest.common.core.delete_page import put_off_until
from bottomless_server.stores.streams import (
    FAILING_DELETES_KEY,
    deletes_key,
    failing_deletes_key,
    stream_key,
)

_NOBODYS_KEY: Final = "bottomless:nobody"
_SWEEP_COUNT: Final = 256
_FOREVER: Final = 2**52


async def queue_later(coordination: Coordination, dues: Sequence[Due]) -> None:
    """Queue members whose time does not depend on what is stored.

    Raises:
        CoordinationUnavailable, CoordinationUnknown
    """
    if dues:
        # A key that nobody writes.
        await coordination.transact([_NOBODYS_KEY], lambda _: (Changes(queued=dues), None))


async def note_stream(coordination: Coordination, prefix: str, since: int) -> None:
    """Count a deleted stream among what fails; repeatable."""
    member = prefix.encode("ascii")
    await queue_later(coordination, [Due(FAILING_DELETES_KEY, member, since)])


async def forget_stream(coordination: Coordination, prefix: str) -> None:
    """Count it no more."""
    member = prefix.encode("ascii")
    [since] = await coordination.due_at(FAILING_DELETES_KEY, [member])
    if since is not None:
        await coordination.settle([Due(FAILING_DELETES_KEY, member, since)])


class FailingDeletes:
    def __init__(
        self, coordination: Coordination, first_ms: int, drive: int = DEFAULT_NUMBER
    ) -> None:
        """`first_ms`: after so long a member is tried a second time. `drive`: whose queue it is."""
        self._coordination = coordination
        self._queue = deletes_key(drive)
        self._failing = failing_deletes_key(drive)
        self._first_ms = first_ms
        self.count = 0
        """Members that failed and are not done yet."""
        self.oldest_since: int | None = None
        """When the one that fails for the longest failed first, ms since 1970."""

    async def put_off(self, dues: Sequence[Due], now: int) -> None:
        """Let members that failed wait, each for longer than the last time."""
        members = [due.member for due in dues]
        queued: list[Due] = []
        for member, since in zip(members, await self._since(members), strict=True):
            until = put_off_until(now, now if since is None else since, self._first_ms)
            queued.append(Due(self._queue, member, until))
            if since is None:
                queued.append(Due(self._failing, member, now))
        await queue_later(self._coordination, queued)

    async def done(self, dues: Sequence[Due]) -> None:
        """Forget that members failed, which have left the delete queue."""
        if self.count:
            await self._forget([due.member for due in dues])

    async def sweep(self) -> None:
        """Forget those that another process, or one that died, has taken out of the delete queue."""
        if not self.count:
            return
        coordination = self._coordination
        oldest = await coordination.due(self._failing, _FOREVER, _SWEEP_COUNT)
        queued = await coordination.due_at(self._queue, [due.member for due in oldest])
        gone = [due for due, due_at in zip(oldest, queued, strict=True) if due_at is None]
        streams = [due for due in gone if due.member.endswith(b"/")]
        records = await coordination.get_many([_record_key(due.member) for due in streams])
        kept = {due for due, record in zip(streams, records, strict=True) if record is not None}
        await coordination.settle([due for due in gone if due not in kept])

    async def look(self) -> None:
        """Count what fails, for the metrics."""
        coordination = self._coordination
        self.count = await coordination.member_count(self._failing)
        oldest = await coordination.due(self._failing, _FOREVER, 1) if self.count else []
        self.oldest_since = oldest[0].due_at if oldest else None

    async def _since(self, members: Sequence[bytes]) -> list[int | None]:
        if not members:
            return []
        return await self._coordination.due_at(self._failing, members)

    async def _forget(self, members: Sequence[bytes]) -> None:
        found = zip(members, await self._since(members), strict=True)
        await self._coordination.settle(
            [Due(self._failing, member, since) for member, since in found if since is not None]
        )


def _record_key(prefix: bytes) -> str:
    return stream_key(StreamId(prefix.decode("ascii").rstrip("/").rpartition("/")[2]))
