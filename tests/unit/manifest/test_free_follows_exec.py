"""The owner may free what it is told is published, so it is told only what an EXEC has done.

The check is also run against a coordination store whose publishing EXEC is left out, where it
must fail: so it is known to see what it looks for.
"""

import asyncio
from collections.abc import Sequence
from typing import TypeVar

from support.manifest import STREAM, Fault, KnownOwners, ManifestHarness

from bottomless.formats.stream_record import decode_record
from bottomless.model.names import StreamId
from bottomless_server.coordination.base import Decide, Room
from bottomless_server.manifest.mutators.stream_task import StreamTask
from bottomless_server.manifest.tree.committer import Committer
from bottomless_server.stores.streams import stream_key


class SuspiciousOwners(KnownOwners):
    """Compare what is said with what coordination holds at that moment."""

    def __init__(self, harness: ManifestHarness) -> None:
        super().__init__()
        self.told: list[int] = []
        self.early: list[int] = []
        self._harness = harness

    async def published(
        self, url: str, stream_id: StreamId, next_offset: int, version: int
    ) -> bool:
        if next_offset > (await self._harness.record()).published_next:
            self.early.append(next_offset)
        # Last, since who waits for it ends the task that calls this.
        self.told.append(next_offset)
        return await super().published(url, stream_id, next_offset, version)


T = TypeVar("T")


class HarnessWithoutPublish(ManifestHarness):
    """Its coordination answers to a publish as if it were done, and does nothing."""

    def __init__(self) -> None:
        super().__init__()
        done = self.coordination.transact

        async def transact(
            keys: Sequence[str], decide: Decide[T], attempts: int = 16, room: Room | None = None
        ) -> T:
            if keys == [stream_key(STREAM)]:
                value = await self.coordination.get(keys[0])
                changes, told = decide({keys[0]: value})
                after = changes.values[keys[0]]
                assert value is not None
                assert after is not None
                if decode_record(after).published_next != decode_record(value).published_next:
                    return told
            return await done(keys, decide, attempts, room)

        self.coordination.transact = transact  # type: ignore[method-assign,assignment]


async def publish_ten(harness: ManifestHarness, *, after_faults: int = 0) -> SuspiciousOwners:
    """Register ten records through the stream's task, and wait until the owner was told."""
    owners = SuspiciousOwners(harness)
    await harness.open()
    context = harness.context
    object.__setattr__(context, "owners", owners)
    task = StreamTask(context, STREAM)

    async def register(committer: Committer) -> None:
        await harness.register(committer, (0, 10))
        harness.coordination.faults = [Fault.UNAVAILABLE] * after_faults

    await task.run(register)
    for _ in range(after_faults):
        await task.run(Committer.flush)
        assert owners.told == []
    await task.run(Committer.flush)
    async with asyncio.timeout(240):
        while not owners.told:
            await asyncio.sleep(0)
    await task.aclose()
    return owners


async def test_the_owner_is_told_only_what_the_exec_has_made_so() -> None:
    owners = await publish_ten(ManifestHarness(), after_faults=3)

    assert owners.told[-1] == 10
    assert owners.early == []


async def test_the_check_sees_an_owner_told_without_an_exec() -> None:
    owners = await publish_ten(HarnessWithoutPublish())

    assert owners.early == [10]
