"""Look after consumer groups: strike out who died, take what was not released in time.

Any process does it, for all groups, by one queue in coordination. Each member stands in it with the
earliest time when its lease can have run out; who is found alive then stands in it for the time when
the lease, as it is by now, can. So a member that lives costs a question in each lease, whatever it
says in between. A lease is looked at again in the EXEC that strikes its member out: a heartbeat that
comes at the last moment wins, or hears that it was too late.

Who died of one group at one time is struck out by one EXEC, and so is what is overdue of one group.

Nothing is taken out of the queue before what it says is done: after a crash it is done again, which
changes nothing. What cannot be read, of the queue or of a group, is put off: hundreds of those would
else stand before all others for ever.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

import structlog

from bottomless.errors import Corrupt, StoreError
from bottomless.model.names import Reference
from bottomless_server.coordination.base import Changes, Due
from bottomless_server.core.consumer_group import MemberId
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.consumers.group_changes import GroupChanges
from bottomless_server.runtime.base.endless import endless
from bottomless_server.stores.groups import CHECKS_KEY, Check, member_key
from bottomless_server.stores.streams import GENERATION_KEY

log = structlog.get_logger(__name__)

_PAGE_COUNT: Final = 500
_PUT_OFF_MS: Final = 60_000
"""How long waits what cannot be read: a release that can may come, or somebody's repair."""


class _Place(NamedTuple):
    scope: str
    group: Reference


def _by_group(
    found: Sequence[tuple[Due, Check]],
) -> dict[_Place, list[tuple[Due, Check]]]:
    """What is due of each group, in the order in which something of it came first."""
    places: dict[_Place, list[tuple[Due, Check]]] = {}
    for due, check in found:
        places.setdefault(_Place(check.scope, check.group), []).append((due, check))
    return places


class GroupChecks:
    """The task of this process that looks after all consumer groups."""

    def __init__(self, context: Context, changes: GroupChanges) -> None:
        self._context = context
        self._changes = changes

    async def run(self) -> None:
        """Look for ever."""
        await endless("manifest-consumer-groups", self._look_once)

    async def _look_once(self) -> float:
        try:
            await self.look()
        except StoreError as error:
            log.warning("consumer groups were not looked after", error=str(error))
        return self._context.settings.manifest_group_check_ms / 1000

    async def look(self) -> None:
        """Do all that is due now; what fails stays due, and keeps nothing else from being done.

        Raises:
            StoreError: the first that something met.
        """
        met: list[StoreError] = []
        while True:
            now = await self._context.coordination.clock()
            page = await self._changes.groups.due(now, _PAGE_COUNT)
            unreadable = [(due, one) for due, one in page if isinstance(one, Corrupt)]
            readable = [(due, one) for due, one in page if isinstance(one, Check)]
            for place, found in _by_group(await self._postpone_living(readable, now)).items():
                try:
                    await self._do(place, found)
                except Corrupt as error:
                    unreadable += [(due, error) for due, _ in found]
                except StoreError as error:
                    met.append(error)
            await self._put_off(unreadable, now)
            if len(page) < _PAGE_COUNT or met:
                break
        if met:
            raise met[0]

    async def _postpone_living(
        self, page: Sequence[tuple[Due, Check]], now: int
    ) -> list[tuple[Due, Check]]:
        """Queue who lives for the time when that may be over; the rest of the page."""
        members = [check.member_id for _, check in page if check.member_id is not None]
        left = await self._context.coordination.remaining([member_key(one) for one in members])
        runs = dict(zip(members, left, strict=True))
        living: list[Due] = []
        dead: list[tuple[Due, Check]] = []
        for due, check in page:
            ms = None if check.member_id is None else runs[check.member_id]
            if ms is None:
                dead.append((due, check))
            else:
                # At least one later, else it would be due now again.
                living.append(due._replace(due_at=now + max(ms, 1)))
        if living:
            await self._queue(living)
        return dead

    async def _do(self, place: _Place, found: Sequence[tuple[Due, Check]]) -> None:
        members = {check.member_id for _, check in found if check.member_id is not None}
        # Of whom a heartbeat came in between: the next look finds out for how long.
        living: AbstractSet[MemberId] = set()
        if members:
            living = await self._changes.expire(*place, members)
        if any(check.member_id is None for _, check in found):
            await self._changes.take_overdue(*place)
        done = [due for due, check in found if check.member_id not in living]
        await self._context.coordination.settle(done)

    async def _put_off(self, unreadable: Sequence[tuple[Due, Corrupt]], now: int) -> None:
        for due, error in unreadable:
            log.error(
                "a consumer group cannot be looked after", member=due.member, error=str(error)
            )
        if unreadable:
            await self._queue([due._replace(due_at=now + _PUT_OFF_MS) for due, _ in unreadable])

    async def _queue(self, dues: Sequence[Due]) -> None:
        assert all(due.redis_key == CHECKS_KEY for due in dues)
        again = Changes(queued=dues)
        # It depends on nothing, and the key changes at a rebuild only.
        await self._context.coordination.transact([GENERATION_KEY], lambda _: (again, None))
