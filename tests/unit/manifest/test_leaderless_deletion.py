"""A deletion closes the tail of a leaderless stream with its tombstone, and then takes it away."""

import itertools
from dataclasses import replace

import pytest
from support.leaderless import WalWriter, a_leaderless_harness
from support.manifest import Crash, Fault, ManifestHarness
from unit.manifest.test_deletion import NAME, DeletionHarness
from unit.stores.test_tails import KEY, LOADER, TRACKED

from bottomless.errors import NotFound
from bottomless.model.config import parse_stored_config
from bottomless.model.names import StreamId
from bottomless.model.stream import StreamState
from bottomless_server.coordination.base import Changes
from bottomless_server.leaderless.decided import NewKnown
from bottomless_server.leaderless.tail import Tail, TailState
from bottomless_server.leaderless.tail_changes import Refusal
from bottomless_server.manifest.operations.steps import Again, Done, Failed
from bottomless_server.stores.operations import Operation
from bottomless_server.stores.tail_keys import load_tails, tail_key

LEADERLESS = parse_stored_config({"profile": "leaderless"})
GRACE, DEADLINE = 1_000, 5_000


class LeaderlessDeletion(DeletionHarness):
    """A manifest with one leaderless stream, to which flushes were committed."""

    def __init__(self, manifest: ManifestHarness) -> None:
        super().__init__(page_count=2)
        self.manifest = manifest
        self.restart()
        self.writer = WalWriter(manifest)

    @classmethod
    async def made(cls) -> "LeaderlessDeletion":
        manifest = await a_leaderless_harness(
            manifest_delete_grace_ms=GRACE,
            manifest_upload_deadline_ms=DEADLINE,
            manifest_close_ms=0,
        )
        made = cls(manifest)
        made.stream_id = await made.create()
        await made.writer.begin()
        known = {LOADER: NewKnown([TRACKED], 9_000), KEY: NewKnown([TRACKED], 8_000)}
        for _ in range(3):
            await made.writer.commit(await made.writer.put(made.stream_id), known)
        await made.put(1)
        return made

    async def create(self) -> StreamId:
        return (await self.registry.declare(NAME, LEADERLESS)).record.stream_id

    async def tail(self, stream_id: StreamId) -> Tail | None:
        found = (await load_tails(self.manifest.coordination, [stream_id], 0))[stream_id]
        assert found is None or isinstance(found, Tail)
        return found

    def left(self) -> list[str]:
        """All that coordination has of the stream."""
        stored = self.manifest.coordination.copy()
        keys = [*stored.values, *(key for key, index in stored.indexes.items() if index)]
        return sorted(key for key in keys if self.stream_id in key)

    async def carry_out(self, operation: Operation) -> None:
        """Do its steps, each as often as the process dies in it."""
        while True:
            try:
                done = await self.deletions.step(self.manifest.context, operation)
            except Crash:
                self.restart()
                continue
            assert not isinstance(done, Failed)
            if isinstance(done, Done):
                return
            assert isinstance(done, Again)
            operation = replace(operation, progress=done.progress)
            self.manifest.clock.now = max(self.manifest.clock.now, done.due_at)


async def test_the_tail_is_closed_in_the_exec_of_the_tombstone() -> None:
    deletion = await LeaderlessDeletion.made()
    before = await deletion.record()

    await deletion.deletions.begin(NAME, None)

    record = await deletion.record()
    assert (record.state, record.epoch) == (StreamState.DELETING, before.epoch)
    tail = await deletion.tail(deletion.stream_id)
    assert tail is not None
    assert (tail.state, tail.entry_count) == (TailState.CLOSED, 3)


async def test_a_flush_that_is_under_way_comes_too_late() -> None:
    """L12: nothing of it gets into the new stream of that name."""
    deletion = await LeaderlessDeletion.made()
    packed = await deletion.writer.put(deletion.stream_id)
    operation = await deletion.deletions.begin(NAME, None)
    again = await deletion.create()
    assert again != deletion.stream_id

    done = await deletion.writer.commit(packed)
    assert done.streams == {deletion.stream_id: Refusal.GONE}
    await deletion.carry_out(operation)
    late = await deletion.writer.commit(await deletion.writer.put(deletion.stream_id))

    assert late.streams == {deletion.stream_id: Refusal.GONE}
    assert deletion.left() == []
    tail = await deletion.tail(again)
    assert tail is not None
    assert (tail.state, tail.next_offset) == (TailState.OPEN, 0)


async def test_nothing_is_left_wherever_the_process_dies() -> None:
    for changes in itertools.count():
        deletion = await LeaderlessDeletion.made()
        operation = await deletion.deletions.begin(NAME, None)
        deletion.manifest.fuse.left = changes
        await deletion.carry_out(operation)
        assert deletion.left() == []
        assert await deletion.objects() == []
        if deletion.manifest.fuse.left is not None:
            # It was never reached: everything was tried.
            assert changes > 10
            break


@pytest.mark.parametrize("fault", [Fault.LOST_APPLIED, Fault.LOST_LATE])
async def test_a_tombstone_whose_reply_is_lost_is_written_once(fault: Fault) -> None:
    deletion = await LeaderlessDeletion.made()
    deletion.manifest.coordination.faults = [fault]

    operation = await deletion.deletions.begin(NAME, None)
    deletion.manifest.coordination.arrive()

    assert (await deletion.record()).state is StreamState.DELETING
    await deletion.carry_out(operation)
    assert deletion.left() == []
    with pytest.raises(NotFound):
        await deletion.deletions.begin(NAME, None)


async def test_a_tail_that_cannot_be_read_goes_with_the_tombstone() -> None:
    deletion = await LeaderlessDeletion.made()
    damaged = Changes({tail_key(deletion.stream_id): b"damaged"})
    deletion.manifest.coordination.write(damaged)

    operation = await deletion.deletions.begin(NAME, None)

    assert await deletion.tail(deletion.stream_id) is None
    await deletion.carry_out(operation)
    assert deletion.left() == []
