"""The transactions of leaderless streams on every coordination: members are bytes that sort as numbers,
and an EXEC of many keys is written as a whole or not at all."""

from dataclasses import replace

import pytest

from bottomless.model.config import parse_stored_config
from bottomless.model.names import StreamId, StreamName, Uid
from bottomless.model.stream import EpochStart, StreamRecord, StreamState
from bottomless_server.coordination.base import Changes, Coordination, CoordinationConflict
from bottomless_server.drives.memory import MemoryDrive
from bottomless_server.leaderless.attempts import AttemptNumbers
from bottomless_server.leaderless.decided import Decided
from bottomless_server.leaderless.instance import Loss, WalInstance
from bottomless_server.leaderless.tail import UNSEEN, Tail, first_epoch
from bottomless_server.leaderless.tail_changes import Accepted, TailBounds
from bottomless_server.stores import releases, tails, wal
from bottomless_server.stores.lost_commits import Fate, decide_lost
from bottomless_server.stores.operations import OperationStore, new_operation
from bottomless_server.stores.rebuild_step import RebuildStep
from bottomless_server.stores.restored_tails import discard_instances, discard_tail
from bottomless_server.stores.streams import GENERATION_KEY, Streams
from bottomless_server.stores.tail_commits import Asked, Commit, commit
from bottomless_server.stores.tail_keys import entries_from, load_tails, tail_key
from bottomless_server.stores.wal_check import check_wal
from contracts.conftest import Shared

UID = Uid("0f" * 16)
IDS = [StreamId(f"0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c1{number}") for number in range(2)]


async def two_streams(coordination: Coordination) -> tuple[Streams, AttemptNumbers]:
    generation = Changes({GENERATION_KEY: b'{"generation":1,"bucket":true}'})
    await coordination.transact([GENERATION_KEY], lambda _: (generation, None))
    streams = Streams(coordination, frozenset({"leaderless"}))
    streams.generation = 1
    for number, stream_id in enumerate(IDS):
        record = StreamRecord(
            stream_id=stream_id,
            name=StreamName(f"s{number}"),
            tenant="default",
            state=StreamState.ACTIVE,
            created_at=0,
            config=parse_stored_config({"profile": "leaderless"}),
            generation=1,
            epoch=first_epoch(1),
            epochs=(EpochStart(first_epoch(1), 0),),
        )
        await tails.create(streams, record)
    checked = await check_wal(MemoryDrive(lambda: 0), coordination, 1)
    numbers = AttemptNumbers(UID, 1, lambda: True, checked)
    await wal.begin(coordination, numbers, "http://ingest-0", 60_000)
    return streams, numbers


async def commit_one(
    coordination: Coordination, numbers: AttemptNumbers, sequence: int, count: int = 3
) -> Commit | Loss:
    def asked(place: int, stream_id: StreamId) -> Asked:
        piece = Accepted(UID, sequence, place, 1_024 + 64 * place, 64, count, 0)
        return Asked(stream_id, (), UNSEEN, lambda *_: Decided([piece], {}))

    return await commit(
        coordination,
        numbers,
        [asked(place, stream_id) for place, stream_id in enumerate(IDS)],
        sequence=sequence,
        clock=7,
        settled=sequence + 1,
        next_sequence=sequence + 1,
        bounds=TailBounds(2**40, 2**20),
    )


async def attempt_of(coordination: Coordination) -> int:
    record = (await wal.load_instances(coordination))[UID]
    assert isinstance(record, WalInstance)
    return record.attempt


async def test_what_is_committed_is_found_pruned_released_and_deleted(shared: Shared) -> None:
    """So many commits that offsets and sequences have more than one byte."""
    coordination = shared.coordination
    streams, numbers = await two_streams(coordination)
    for sequence in range(300):
        assert isinstance(await commit_one(coordination, numbers, sequence), Commit)
    found = await entries_from(coordination, IDS[0], 767, limit=3)
    assert [entry.first_offset for entry in found] == [765, 768, 771]
    assert [one.sequence async for one, _ in wal.each_held(coordination, UID, 298)] == [
        298,
        298,
        299,
        299,
    ]
    for stream_id, published in zip(IDS, (900, 768), strict=True):
        await streams.update(
            stream_id,
            lambda one, to=published: replace(one, published_next=to),  # type: ignore[misc]
        )
        pruned = await tails.prune(coordination, stream_id, 1)
        assert pruned is not None
        assert len(pruned.gone) == published // 3
    directories = {sequence: set(IDS) for sequence in range(300)}
    released = await releases.release(coordination, UID, 1, directories, range(16))
    assert (len(released.gone), released.unreadable) == (300 + 256, {})
    may_go = await wal.deletable(MemoryDrive(lambda: 0), coordination, UID, 1)
    assert may_go.sequences == range(256)
    tail = (await load_tails(coordination, IDS, 1))[IDS[1]]
    assert isinstance(tail, Tail)
    assert (tail.pruned_next, tail.next_offset, tail.entry_count) == (768, 900, 44)


async def test_a_commit_that_meets_another_writes_nothing(shared: Shared) -> None:
    coordination = shared.coordination
    _, numbers = await two_streams(coordination)
    value = await coordination.get(tail_key(IDS[1]))
    assert value is not None

    def interfering(*_: object) -> Decided:
        shared.interfere(tail_key(IDS[1]), value)
        return Decided([], {})

    asked = [Asked(stream_id, (), UNSEEN, interfering) for stream_id in IDS]
    with pytest.raises(CoordinationConflict):
        await commit(
            coordination,
            numbers,
            asked,
            sequence=0,
            clock=7,
            settled=1,
            next_sequence=1,
            bounds=TailBounds(1, 1),
        )
    assert await attempt_of(coordination) == 0


async def test_a_lost_commit_is_decided_by_the_number_of_its_attempt(shared: Shared) -> None:
    coordination = shared.coordination
    _, numbers = await two_streams(coordination)
    assert isinstance(await commit_one(coordination, numbers, 0), Commit)
    numbers.lose(numbers.attempt, 0)
    assert await decide_lost(coordination, numbers) is Fate.APPLIED
    assert isinstance(await commit_one(coordination, numbers, 1), Commit)
    never = numbers.take()
    numbers.lose(never, 0)
    assert await decide_lost(coordination, numbers) is Fate.NOT_APPLIED
    assert await attempt_of(coordination) == numbers.attempt > never
    other = AttemptNumbers(UID, 1, lambda: True, numbers.checked)
    refused = await commit_one(coordination, other, 2)
    assert refused is Loss.GONE, "somebody else has gone on as this writer"


async def test_what_a_rebuild_discards_of_a_tail_and_an_instance_is_gone(shared: Shared) -> None:
    coordination = shared.coordination
    _, numbers = await two_streams(coordination)
    for sequence in range(5):
        assert isinstance(await commit_one(coordination, numbers, sequence), Commit)
    operation = new_operation("0f" * 16, "rebuild", 0, tenant="default")
    await OperationStore(coordination).enter(operation)
    step = RebuildStep(3, operation)
    for stream_id in IDS:
        await discard_tail(coordination, stream_id, step, limit=2)
    assert await discard_instances(coordination, b"", step) == UID.encode("ascii")

    for stream_id in IDS:
        assert await entries_from(coordination, stream_id, 0) == []
    assert await coordination.get_many([*map(tail_key, IDS), wal.instance_key(UID)]) == [None] * 3
    assert await coordination.members(wal.held_key(UID), b"", 10) == []
    assert await wal.load_instances(coordination) == {}
