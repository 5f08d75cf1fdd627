"""What a node that follows a log tells readers of it: what it knows to be committed, under one epoch."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from typing import Any, TypeVar, cast

import pytest
from support.guards import remove

from bottomless.errors import Fenced, OffsetGone
from bottomless.formats.chunk import split_chunks
from bottomless.model.chunk import ChunkKind
from bottomless_server.ingest.replicas.followed_reads import FollowedReads
from bottomless_server.node.file_calls import FileCalls
from bottomless_server.protocol.tail import ChunkRun, FollowedAsked
from unit.ingest.harness import STREAM
from unit.ingest.replica_logs import AtOnce, FollowerNode, OwnerLog

T = TypeVar("T")


@pytest.fixture
async def follower() -> AsyncIterator[FollowerNode]:
    node = FollowerNode()
    yield node
    await node.aclose()


class HeldReads(AtOnce):
    """Reads at once, and says so when it is told to."""

    def __init__(self) -> None:
        self.has_read = asyncio.Event()
        self._answers: list[Callable[[], None]] = []

    def submit(self, call: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        result = call(*args, **kwargs)
        self._answers.append(lambda: future.set_result(result))
        self.has_read.set()
        return future

    def answer(self) -> None:
        for answer in self._answers:
            answer()


async def read(
    node: FollowerNode,
    epoch: int,
    first_offset: int = 0,
    max_bytes: int = 10**6,
    executor: AtOnce | None = None,
) -> ChunkRun:
    files = cast("FileCalls", node.disk)
    reads = FollowedReads(node.following, files, executor or node.executor)
    stream = node.following.find(STREAM)
    assert stream is not None
    return await reads.run_of(stream, FollowedAsked(epoch, first_offset, max_bytes))


async def read_all(node: FollowerNode, epoch: int, max_bytes: int = 10**6) -> list[bytes]:
    """The chunks with records that it gives out, each asked for where the one before ends."""
    found: list[bytes] = []
    offset = 0
    while True:
        run = await read(node, epoch, offset, max_bytes)
        if not run.data:
            return found
        assert run.first_offset == offset
        offset = run.next_offset
        found += [bytes(c) for h, c in split_chunks(run.data) if h.kind is not ChunkKind.TRACKING]


def chunks_of(owner: OwnerLog) -> list[bytes]:
    found, end = [], None
    while (piece := owner.piece(end)) is not None:
        end = piece.end
        found += [bytes(c) for h, c in split_chunks(piece.data) if h.kind is not ChunkKind.TRACKING]
    return found


def an_owner(*sizes: int) -> OwnerLog:
    owner = OwnerLog()
    owner.append(*sizes)
    return owner


@pytest.mark.parametrize("max_bytes", [1, 900, 10**6])
async def test_what_is_committed_is_read_as_the_owner_has_it(
    follower: FollowerNode, max_bytes: int
) -> None:
    owner = an_owner(50, 600, 2_500, 600, 10)
    owner.write_nothing()
    owner.append(600, 600)
    await follower.copy(owner)
    assert len(owner.log.segments) > 2
    assert await read_all(follower, owner.epoch, max_bytes) == chunks_of(owner)


async def test_what_it_was_not_told_of_is_not_given_out(follower: FollowerNode) -> None:
    owner = an_owner(50, 60)
    await follower.copy(owner)
    owner.append(70, 80)
    await follower.copy(owner, committed=False)
    assert await read_all(follower, owner.epoch) == chunks_of(owner)[:2]
    run = await read(follower, owner.epoch, 2)
    assert (run.data, run.next_offset, run.bounds.committed_next) == (b"", 2, 2)
    await follower.take(owner.item(None, owner.log.committed_next))
    assert await read_all(follower, owner.epoch) == chunks_of(owner)


async def test_without_the_bound_that_it_was_told_a_record_is_read_that_may_be_cut(
    follower: FollowerNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = an_owner(50, 60)
    await follower.copy(owner, committed=False)
    assert await read_all(follower, owner.epoch) == []
    remove(
        monkeypatch,
        "the bound that a follower was told, before it is read",
        lambda held: held.next_offset,
    )
    assert await read_all(follower, owner.epoch) == chunks_of(owner)


async def test_an_epoch_that_is_not_open_here_is_refused(follower: FollowerNode) -> None:
    owner = an_owner(50)
    await follower.copy(owner)
    for epoch in (owner.epoch - 1, owner.epoch + 1):
        with pytest.raises(Fenced):
            await read(follower, epoch)
    # After a restart nobody has said yet that what lies here is the stream's.
    follower.die()
    assert follower.following.find(STREAM) is None


async def test_a_log_that_was_cut_back_has_what_its_new_owner_has(follower: FollowerNode) -> None:
    old, new = an_owner(50, 60), an_owner(50, 60)
    await follower.copy(old)
    old.append(70)
    await follower.copy(old, committed=False)
    new.claim()
    new.append(80, 90)
    await follower.copy(new)
    with pytest.raises(Fenced):
        await read(follower, old.epoch)
    assert await read_all(follower, new.epoch) == chunks_of(new)


async def test_without_its_epoch_a_reader_gets_what_an_owner_of_the_past_wrote(
    follower: FollowerNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This node was away at a forced takeover, so it goes on under the epoch before."""
    old, new = an_owner(50, 60), an_owner(50)
    new.claim()
    new.append(90)
    await follower.copy(old)
    with pytest.raises(Fenced):
        await read(follower, new.epoch)
    remove(monkeypatch, "the epoch under which a follower is read", lambda *_: True)
    assert await read_all(follower, new.epoch) == chunks_of(old) != chunks_of(new)


async def test_what_was_read_while_another_owner_opened_the_log_is_not_given_out(
    follower: FollowerNode,
) -> None:
    old, new = an_owner(50, 60), an_owner(50, 60)
    await follower.copy(old)
    new.claim()
    executor = HeldReads()
    reading = asyncio.create_task(read(follower, old.epoch, executor=executor))
    await executor.has_read.wait()
    await follower.open(new)
    executor.answer()
    with pytest.raises(Fenced):
        await reading


async def test_below_what_lies_here_it_says_so(follower: FollowerNode) -> None:
    owner = an_owner(600, 600, 600, 600, 600)
    owner.free(2)
    await follower.copy(owner)
    first = owner.log.first_offset
    assert first > 0
    with pytest.raises(OffsetGone) as gone:
        await read(follower, owner.epoch, 0)
    assert gone.value.facts["local_first_offset"] == first
    run = await read(follower, owner.epoch, first)
    assert run.first_offset == first
    assert run.bounds.published_next == owner.published_next


async def test_a_segment_that_is_freed_while_it_is_read_is_said_to_be_gone(
    follower: FollowerNode,
) -> None:
    owner = an_owner(600, 600, 600, 600, 600)
    await follower.copy(owner)
    first = owner.log.segments[0]
    stream = follower.following.find(STREAM)
    assert stream is not None
    local = stream.readable(owner.epoch)
    assert local is not None
    local.remove(local.segments[0])
    with pytest.raises(OffsetGone):
        await read(follower, owner.epoch, first.first_offset)
