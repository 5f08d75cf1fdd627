"""Homes of queues in coordination: on which node all queues of a tenant are.

bottomless:queue-homes:{tenant}    the home: its node, where that is, and the term
bottomless:queue-homes             index of the tenants that have one
bottomless:queue-node:{node_id}    lease of one data directory of the queues service

Every change is one EXEC under WATCH of the tenant's key and of the generation, so that nothing of a
coordination that was lost and is rebuilt is written. A term only ever grows.
"""

from collections.abc import Callable
from typing import Final

from bottomless.errors import Code, Unavailable
from bottomless.formats.queue_home import decode_home, encode_home
from bottomless.model.names import NodeId
from bottomless.model.queue_home import QueueHome
from bottomless_server.coordination.base import Changes, Coordination, Member, Values
from bottomless_server.stores.rebuild_step import RebuildStep
from bottomless_server.stores.restored_streams import is_restored
from bottomless_server.stores.streams import GENERATION_KEY, Streams

QUEUE_HOMES_KEY: Final = "bottomless:queue-homes"
_PAGE_COUNT: Final = 500

DecideHome = Callable[[QueueHome | None, bool], QueueHome]
"""Says what the home is to be, from what it is and whether the lease that was asked for is held."""


def queue_home_key(tenant: str) -> str:
    return f"{QUEUE_HOMES_KEY}:{tenant}"


def queue_node_key(node_id: NodeId) -> str:
    return f"bottomless:queue-node:{node_id}"


class QueueHomes:
    """The homes of all tenants. Holds no state of its own."""

    def __init__(self, coordination: Coordination, streams: Streams) -> None:
        self._coordination = coordination
        self._streams = streams

    async def find(self, tenant: str) -> QueueHome | None:
        """The home of a tenant's queues; None where it has none.

        Raises:
            Unavailable: `coordination-regressed`: nothing is where the generation is not; or, for who
                has not heard of one, `coordination-unavailable`.
            Corrupt: it cannot be read.
        """
        value = await self._coordination.get(queue_home_key(tenant))
        if value is not None:
            return decode_home(value)
        generation = await self._coordination.get(GENERATION_KEY)
        self._streams.require_generation(generation)
        if generation is None:
            # Also what is lost is not there: who began since then knows of nothing that was.
            raise Unavailable(
                "coordination is empty: it was lost, or manifest has not started for the first time",
                code=Code.COORDINATION_UNAVAILABLE,
                retry_after_seconds=1,
            )
        return None

    async def change(
        self, tenant: str, decide: DecideHome, lease_of: NodeId | None = None
    ) -> QueueHome:
        """Replace the home of a tenant by what `decide` makes of it; returns what it is then.

        `decide` hears whether the node `lease_of` holds its lease at that moment. It is asked again
        after a conflict, and raises to leave the home as it is.

        Raises:
            Unavailable: `coordination-regressed`: the store was emptied, or went back.
            Corrupt: what is there cannot be read.
        """
        key = queue_home_key(tenant)
        lease = None if lease_of is None else queue_node_key(lease_of)

        def change(values: Values) -> tuple[Changes, QueueHome]:
            self._streams.require_generation(values[GENERATION_KEY])
            value = values[key]
            before = None if value is None else decode_home(value)
            after = decide(before, lease is not None and values[lease] is not None)
            if after == before:
                return Changes(), after
            assert before is None or after.term >= before.term, "a term only grows"
            return _written(after), after

        watched = [key, GENERATION_KEY, *([] if lease is None else [lease])]
        return await self._coordination.transact(watched, change)

    async def restore(self, home: QueueHome, step: RebuildStep) -> None:
        """Write a home into a coordination that has lost it; repeatable.

        Raises:
            Unavailable: the step is not what goes on, so queues may be in use.
        """
        key = queue_home_key(home.tenant)

        def change(values: Values) -> tuple[Changes, None]:
            step.require(values)
            return _written(home), None

        await self._coordination.transact([key, *step.watched], change)

    async def discard(self, after: str, step: RebuildStep) -> str:
        """Forget one page of homes that an older coordination knows, those after a tenant.

        What was restored already for the generation of the step stays. Returns the last tenant that
        was looked at, empty where there was none any more.

        Raises:
            Unavailable: the step is not what goes on, so queues may be in use.
        """
        found = await self._coordination.members(
            QUEUE_HOMES_KEY, after.encode("ascii"), _PAGE_COUNT
        )
        for member in found:
            await self._discard(member, step)
        return found[-1].decode("ascii") if found else ""

    async def _discard(self, member: bytes, step: RebuildStep) -> None:
        key = queue_home_key(member.decode("ascii"))
        gone = Changes({key: None}, members=[Member(QUEUE_HOMES_KEY, member, False)])

        def change(values: Values) -> tuple[Changes, None]:
            step.require(values)
            return (Changes() if is_restored(values[key], step.generation) else gone), None

        await self._coordination.transact([key, *step.watched], change)


def _written(home: QueueHome) -> Changes:
    member = Member(QUEUE_HOMES_KEY, home.tenant.encode("ascii"), True)
    return Changes({queue_home_key(home.tenant): encode_home(home)}, members=[member])
