"""The EXEC of a member's commit is held back on its way to a real server while the holder changes."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.guards import remove
from support.manifest import STREAM, a_record
from support.reply_eater import ReplyEater, reply_eater

from bottomless.model.consumer import StoredOffset
from bottomless.model.names import Reference
from bottomless_server.coordination.base import CoordinationUnknown, Values
from bottomless_server.coordination.redis import RedisCoordination
from bottomless_server.core.consumer_group import ConsumerGroup, GroupMember, MemberId, Strategy
from bottomless_server.manifest.consumers.core.groups import grow, join, leave, new_group
from bottomless_server.stores.consumers import ConsumerOffsets, consumer_key
from bottomless_server.stores.groups import Claim, ConsumerGroups
from bottomless_server.stores.streams import Streams

GROUP = Reference("billing")
ONE = GroupMember(MemberId("1" * 32), Reference("pod-a"), 1, 30_000)
OTHER = GroupMember(MemberId("2" * 32), Reference("pod-b"), 2, 30_000)


@pytest.fixture
async def direct(valkey_url: str) -> AsyncIterator[RedisCoordination]:
    coordination = RedisCoordination.connect(valkey_url)
    await Streams(coordination).create(a_record())
    await ConsumerGroups(coordination).change(STREAM, GROUP, lambda *_: two_members())
    yield coordination
    await coordination.aclose()


@pytest.fixture
async def eater(valkey_url: str, tmp_path: Path) -> AsyncIterator[ReplyEater]:
    server = Path(valkey_url.removeprefix("unix://").removesuffix("?db=0"))
    async with reply_eater(server, tmp_path / "eater.sock") as running:
        yield running


def two_members() -> ConsumerGroup:
    group = grow(join(new_group(STREAM, GROUP, Strategy.STICKY, 0, 0), ONE, 0), 1, 0)
    return join(group, OTHER, 0)


def without_one(before: ConsumerGroup | None, _: Values) -> ConsumerGroup:
    assert before is not None
    return leave(before, ONE.member_id, 1)


async def commit(coordination: RedisCoordination, next_offset: int, claim: Claim) -> None:
    stored = StoredOffset(GROUP, next_offset, 0, next_offset)
    await ConsumerOffsets(coordination).change(STREAM, GROUP, lambda _: stored, 0, claim=claim)


async def held_back(
    eater: ReplyEater, direct: RedisCoordination, through: Path, *, deposed: bool
) -> int:
    """What is stored after the EXEC of a commit came late, and its member was deposed or not."""
    held = await ConsumerGroups(direct).holder(STREAM, GROUP, 0)
    assert held is not None
    mine = Claim(*held)
    await commit(direct, 5, mine)
    coordination = RedisCoordination.connect(f"unix://{through}?db=0")
    eater.deliver.clear()
    eater.eat(consumer_key(STREAM, GROUP).encode())
    with pytest.raises(CoordinationUnknown):
        await commit(coordination, 9, mine)
    if deposed:
        after = await ConsumerGroups(direct).change(STREAM, GROUP, without_one)
        assert after is not None
        # Only the holder is another one: what is stored was not changed.
        assert after.partitions[0].holder == OTHER.member_id
    eater.deliver.set()
    await asyncio.wait_for(eater.answered.wait(), 240)
    await coordination.aclose()
    stored = await ConsumerOffsets(direct).find(STREAM, GROUP)
    assert stored is not None
    return stored.next_offset


async def test_a_late_commit_of_who_still_holds_the_stream_is_stored(
    eater: ReplyEater, direct: RedisCoordination, tmp_path: Path
) -> None:
    """So the proxy holds back what matters."""
    assert await held_back(eater, direct, tmp_path / "eater.sock", deposed=False) == 9


async def test_a_late_commit_of_a_deposed_member_does_nothing(
    eater: ReplyEater, direct: RedisCoordination, tmp_path: Path
) -> None:
    assert await held_back(eater, direct, tmp_path / "eater.sock", deposed=True) == 5


async def test_without_its_guard_a_commit_of_a_deposed_member_is_stored(
    direct: RedisCoordination, valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch, "the generation in the commit's EXEC", lambda *_: None)
    await ConsumerGroups(direct).change(STREAM, GROUP, without_one)
    other = RedisCoordination.connect(valkey_url)
    await commit(other, 9, Claim(ONE.member_id, 1))
    await other.aclose()
    stored = await ConsumerOffsets(direct).find(STREAM, GROUP)
    assert stored is not None
    assert stored.next_offset == 9
