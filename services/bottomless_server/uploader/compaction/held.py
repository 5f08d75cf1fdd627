"""Read what holds WAL objects of the shards of this uploader, each member once.

There may be hundreds of thousands of members, and this is done each second. What is below `settled`
gets no new member, so whatever was read below it needs not be read again. Nothing is written.
"""

from collections.abc import Collection
from typing import NamedTuple

import structlog

from bottomless.errors import Corrupt
from bottomless.guards import guard
from bottomless.model.names import Uid
from bottomless_server.coordination.base import Coordination
from bottomless_server.leaderless.instance import WalInstance
from bottomless_server.leaderless.tail import HeldMember
from bottomless_server.stores.wal import each_held, load_instances

log = structlog.get_logger(__name__)


class Found(NamedTuple):
    """What is new of one instance."""

    held: list[HeldMember]
    read_below: int
    """All members of lower sequences are known now, and no other comes."""


class HeldReader:
    """Where each instance was read up to."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination
        self._read_below: dict[Uid, int] = {}
        self._unreadable: set[Uid] = set()

    def forget(self) -> None:
        """Read everything anew the next time, for other shards are held now."""
        self._read_below.clear()

    async def read(self, shards: Collection[int]) -> dict[Uid, list[HeldMember]]:
        """Read what is new below what is settled, of these shards; an instance that has nothing new
        is there too, and one that is not there is gone.

        Raises:
            CoordinationUnavailable: the same is read again the next time.
        """
        instances = await load_instances(self._coordination)
        new: dict[Uid, list[HeldMember]] = {}
        read_below: dict[Uid, int] = {}
        for instance, record in instances.items():
            if isinstance(record, Corrupt):
                self._tell_unreadable(instance, record)
                new[instance] = []
                if instance in self._read_below:
                    read_below[instance] = self._read_below[instance]
                continue
            first = self._read_below.get(instance, record.deleted)
            if first > record.settled:
                # It went back: whatever was known of it is of another time.
                first = record.deleted
            found = await read_settled(self._coordination, instance, record, first)
            read_below[instance] = found.read_below
            new[instance] = [member for member in found.held if member.shard in shards]
        # Only now: of a reading that fails halfway nobody is told anything.
        self._read_below = read_below
        self._unreadable &= new.keys()
        return new

    def _tell_unreadable(self, instance: Uid, error: Corrupt) -> None:
        if instance not in self._unreadable:
            self._unreadable.add(instance)
            log.error("a WAL instance cannot be read", instance=instance, error=str(error))


@guard("what is settled, read before what rounds take")
async def read_settled(
    coordination: Coordination, instance: Uid, record: WalInstance, first: int
) -> Found:
    """Read members of an instance from a sequence on, below what was settled before that.

    The other way round a commit between the two would be settled, and its members never read.
    """
    held: list[HeldMember] = []
    if first < record.settled:
        async for member, _ in each_held(coordination, instance, first):
            if member.sequence >= record.settled:
                break
            held.append(member)
    return Found(held, record.settled)
