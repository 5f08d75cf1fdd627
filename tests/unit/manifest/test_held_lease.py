"""The end of a lease, where the task that renews it does not end at once."""

import asyncio

import pytest

from bottomless_server.coordination.base import Hold
from bottomless_server.coordination.memory import MemoryCoordination
from bottomless_server.manifest.common.held_lease import held_lease

TTL_MS = 300


class LostCancellations(MemoryCoordination):
    """A store whose client takes a cancellation for its own, as one does that meets its own time
    limit at that moment."""

    def __init__(self) -> None:
        super().__init__(lambda: 0)
        self.asked = 0
        self.renewing = asyncio.Event()

    async def hold(self, redis_key: str, value: bytes, ttl_ms: int) -> Hold:
        self.asked += 1
        if self.asked == 2:
            self.renewing.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return Hold.RENEWED
        return await super().hold(redis_key, value, ttl_ms)


async def test_work_ends_though_the_renewal_of_its_lease_loses_a_cancellation() -> None:
    """An operation was done, kept its place for ever, and was not gone on with until a restart: one of
    thirty deletions under load. No test had ended a lease in the middle of its renewal."""
    coordination = LostCancellations()

    async with asyncio.timeout(60):
        async with held_lease(coordination, "lease", b"me", TTL_MS) as held:
            assert held
            await coordination.renewing.wait()

    assert await coordination.get("lease") is None


async def test_work_whose_lease_is_lost_ends_though_it_loses_a_cancellation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would go on beside whoever holds the lease next."""
    monkeypatch.setattr("bottomless_server.manifest.common.held_lease.AGAIN_SECONDS", 0.01)
    coordination = MemoryCoordination(lambda: 0)
    lost = 0

    async def work() -> None:
        nonlocal lost
        async with held_lease(coordination, "lease", b"me", TTL_MS):
            await coordination.release("lease", b"me")
            await coordination.hold("lease", b"another", 3_600_000)
            while True:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    if lost == 1:
                        raise
                    lost += 1

    working = asyncio.create_task(work())
    ended, _ = await asyncio.wait({working}, timeout=60)

    assert ended
    assert working.cancelled()
    assert await coordination.get("lease") == b"another"
