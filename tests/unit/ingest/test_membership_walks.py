"""Lives of the members of one stream, by chance: nodes die, stop to take anything, and are well again."""

import random
from collections.abc import Collection
from dataclasses import replace
from typing import Final

import pytest

from bottomless.model.config import ReplicationConfig, StreamConfig
from bottomless.model.names import NodeId
from bottomless.model.stream import StreamRecord, StreamState
from bottomless_server.ingest.replicas.membership import Membership
from bottomless_server.node.core import in_sync
from bottomless_server.node.core.in_sync import Refused
from bottomless_server.node.core.placement import Candidate, chosen
from bottomless_server.node.core.replica_waits import Holders, Step
from bottomless_server.protocol.replica import Place
from unit.ingest.harness import NAME, STREAM

REPLACE_MS: Final = 500
EPOCH: Final = 1
WHOLE: Final = 100
"""Where the log of the owner ends."""


class Life:
    """One stream whose owner always lives, and nodes that may hold it; times are ms."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.mine, *self.others = [NodeId(f"{number:032x}") for number in range(8)]
        self.live, self.takes = set(self.others), set(self.others)
        config = StreamConfig(
            replication=ReplicationConfig(replicas=self.chance.randint(2, 4), min_in_sync=1)
        )
        record = StreamRecord(STREAM, NAME, "default", StreamState.ACTIVE, 0, config)
        held = (self.mine,)
        self.record = replace(
            record, epoch=EPOCH, home=self.mine, dirty=True, members=held, in_sync=held
        )
        self.membership = Membership(self.record, self.choose)
        self.ends: dict[NodeId, int] = {}
        self.now = 0

    @property
    def wanted(self) -> int:
        return self.record.config.replication.replicas

    async def choose(self, record: StreamRecord, kept: Collection[NodeId]) -> tuple[NodeId, ...]:
        lacks = record.config.replication.replicas - len(kept)
        live = [Candidate(node, "") for node in self.live]
        return chosen(STREAM, [Candidate(node, "") for node in kept], live, max(lacks, 0))

    def befall(self) -> None:
        """Let something happen to one node."""
        node = self.chance.choice(self.others)
        match self.chance.randrange(12):
            case 0:
                self.live ^= {node}
            case 1 | 2:
                self.takes ^= {node}
            case 3 if node in self.record.in_sync and node not in self.live & self.takes:
                self.record = in_sync.evict(self.record, self.mine, EPOCH, node)
            case _:
                pass

    async def go_on(self) -> None:
        """Let a moment pass, in which logs go on, and the owner does what is due."""
        self.now += self.chance.choice((50, 100, 200))
        lacking = [node for node in self.record.members if node not in self.record.in_sync]
        for node in lacking:
            if node in self.live & self.takes:
                self.ends[node] = self.ends.get(node, 0) + 40
                if self.ends[node] >= WHOLE:
                    self.record = in_sync.admit(self.record, self.mine, EPOCH, node)
        others = [node for node in self.record.members if node != self.mine]
        ends = {node: Place(0, self.ends[node]) if node in self.ends else None for node in lacking}
        away = [node for node in others if node not in self.live]
        self.membership.looked(away, self.now, REPLACE_MS, ends)
        for _ in range(20):
            if not await self._mend():
                return
        raise AssertionError("its members change without end")

    async def _mend(self) -> bool:
        holders = Holders.of(self.record, self.mine)
        if self.membership.is_right(holders):
            return False
        wanted = await self.membership.next(holders)
        if wanted is None:
            return False
        before = set(self.record.members)
        try:
            if isinstance(wanted, Step):
                assert wanted.node is not None
                self.record = in_sync.evict(self.record, self.mine, EPOCH, wanted.node)
                return True
            # Refused where one goes that is in sync: it is evicted before.
            self.record = in_sync.set_members(self.record, self.mine, EPOCH, wanted)
        except Refused as refused:
            raise AssertionError(refused) from refused
        moved = before ^ set(self.record.members)
        for node in moved:
            self.ends.pop(node, None)
        self.membership.forget(moved - set(self.record.members))
        return True


@pytest.mark.parametrize("seed", range(60))
async def test_as_many_as_wanted_have_everything_once_as_many_take_it(seed: int) -> None:
    """However often each of them was tried before, and whoever holds the stream then."""
    life = Life(seed)
    for _ in range(150):
        life.befall()
        await life.go_on()
    missing = life.wanted - 1 - len(life.live & life.takes)
    for node in [one for one in life.others if one not in life.live & life.takes][
        : max(missing, 0)
    ]:
        life.live.add(node)
        life.takes.add(node)
    for _ in range(200):
        await life.go_on()
    assert len(set(life.record.in_sync)) >= life.wanted
