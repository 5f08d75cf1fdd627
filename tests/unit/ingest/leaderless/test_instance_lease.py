"""When a writer may say that its lease was held without a break."""

import asyncio

import pytest
from support.harness import StandingClocks

from bottomless_server.coordination.base import CoordinationUnknown, Hold
from bottomless_server.coordination.memory import MemoryCoordination
from bottomless_server.ingest.leaderless.instance_lease import InstanceLease
from bottomless_server.node.lease import LeaseBounds
from bottomless_server.stores.wal import live_key
from unit.formats.examples import UID

BOUNDS = LeaseBounds(lease_ms=10_000, margin_ms=2_000, renew_ms=3_000)


class Shaky(MemoryCoordination):
    """Loses the reply of the next hold."""

    loses = False

    async def hold(self, redis_key: str, value: bytes, ttl_ms: int) -> Hold:
        held = await super().hold(redis_key, value, ttl_ms)
        if self.loses:
            self.loses = False
            raise CoordinationUnknown("the reply is lost")
        return held


class Node:
    def __init__(self) -> None:
        self.time = StandingClocks()
        self.coordination = Shaky(lambda: self.time.wall)
        self.clocks = self.time.clocks()
        self.lease = InstanceLease(self.coordination, UID, self.clocks, BOUNDS)

    def begin(self) -> "Node":
        since = self.clocks.beginning()
        self.renew()
        self.lease.begun(since)
        return self

    def renew(self) -> None:
        asyncio.run(self.lease.renew())


def test_it_is_held_for_as_long_as_it_is_renewed_in_time() -> None:
    node = Node().begin()
    for _ in range(5):
        node.time.advance(7_000)
        assert node.lease.is_held()
        node.renew()
    node.time.advance(8_000)
    assert not node.lease.is_held()


def test_what_was_renewed_too_late_says_nothing_of_the_time_before() -> None:
    node = Node().begin()
    node.time.advance(9_000)
    node.renew()

    assert not node.lease.is_held()


def test_one_that_others_held_or_that_was_taken_anew_is_a_break() -> None:
    node = Node().begin()
    asyncio.run(node.coordination.release(live_key(UID), UID.encode()))
    node.renew()

    assert not node.lease.is_held()


def test_a_sleep_that_only_the_boot_clock_sees_is_a_break() -> None:
    node = Node().begin()
    node.time.sleep(1_000)
    assert not node.lease.is_held()
    node.renew()
    assert not node.lease.is_held()


def test_a_renewal_without_an_answer_is_none_while_the_lease_is_believed_anyhow() -> None:
    node = Node().begin()
    node.time.advance(3_000)
    node.coordination.loses = True
    with pytest.raises(CoordinationUnknown):
        node.renew()
    node.time.advance(3_000)
    node.renew()

    assert node.lease.is_held()
