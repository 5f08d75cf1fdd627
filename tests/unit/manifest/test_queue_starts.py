"""Starts of nodes of queues: whatever dies or is lost, the newest copy of a directory is let in, and no other."""

import pytest
from support.guards import remove
from support.manifest import Crash, Fault, ManifestHarness
from support.rebuilding import put, rebuild

from bottomless.errors import Code, Corrupt, Fenced, Unavailable
from bottomless.formats.keys import (
    QueueStartKey,
    parse_queue_start_key,
    queue_start_key,
    queue_start_prefix,
)
from bottomless.formats.queue_start import (
    StartRecord,
    decode_start,
    decode_start_object,
    encode_start,
    encode_start_object,
)
from bottomless.model.names import NodeId
from bottomless.model.queue_start import QueueStart
from bottomless_server.coordination.base import Changes
from bottomless_server.manifest.queue_homes.core.start_decision import (
    StartAsked,
    decide_start,
    newest_of,
)
from bottomless_server.manifest.queue_homes.starts import Starts
from bottomless_server.stores.generation import check_generation
from bottomless_server.stores.queue_homes import queue_node_key
from bottomless_server.stores.queue_starts import Holder, holder_in, lease_value

NODE = NodeId("a" * 32)
LOCK = "b" * 32
START = QueueStart(NODE, 3, "1" * 32, LOCK, "a:1", 1_000)


def token(number: int) -> str:
    return f"{number:032x}"


def a_start(number: int) -> QueueStart:
    return QueueStart(NODE, 0, token(number), LOCK, "a:1", 1_000)


async def a_harness() -> ManifestHarness:
    harness = ManifestHarness()
    harness.streams.generation = await check_generation(harness.drive, harness.coordination)
    return harness


def hold(harness: ManifestHarness, number: int) -> None:
    """Let the start with this token hold the lease of the node."""
    value = lease_value(NODE, Holder(token(number), LOCK))
    harness.coordination.write(Changes({queue_node_key(NODE): value}))


class Directory:
    """What a directory knows, and a start on it."""

    def __init__(self, known: tuple[str, ...] = ()) -> None:
        self.known = known

    def copy(self) -> "Directory":
        return Directory(self.known)

    async def start(
        self, harness: ManifestHarness, number: int, *, accept_loss: bool = False
    ) -> QueueStart:
        starts, mine = Starts(harness.context), a_start(number)
        hold(harness, number)
        newest = await starts.look(StartAsked(mine, self.known, accept_loss))
        self.known = (*(() if newest is None else (newest.token,)), mine.token)
        return await starts.settle(StartAsked(mine, self.known, accept_loss))


async def objects(harness: ManifestHarness) -> list[QueueStart]:
    return [
        decode_start_object(bytes(await harness.drive.get(facts.object_key)))
        async for facts in harness.drive.list(queue_start_prefix(NODE))
    ]


def test_records_and_objects_are_read_as_they_were_written() -> None:
    for noted in (True, False):
        record = StartRecord(START, noted)
        assert decode_start(encode_start(record)) == record
    assert decode_start_object(encode_start_object(START)) == START
    with pytest.raises(Corrupt):
        decode_start_object(encode_start_object(START).replace(b":3", b":4"))
    with pytest.raises(Corrupt):
        decode_start(encode_start(StartRecord(START, True)).replace(b'"noted":true', b'"noted":1'))


def test_keys_and_leases_say_whose_they_are() -> None:
    assert parse_queue_start_key(queue_start_key(NODE, 12)) == QueueStartKey(NODE, 12)
    assert parse_queue_start_key(f"_system/queue-starts/{NODE}.json") is None
    holder = Holder(token(1), LOCK)
    assert holder_in(lease_value(NODE, holder)) == holder
    assert holder_in(NODE.encode()) is None


def test_the_bucket_counts_where_coordination_is_older() -> None:
    record = StartRecord(START, noted=False)
    later = START._replace(number=4, token=token(4))
    assert newest_of(None, None) is None
    assert newest_of(record, None) == newest_of(record, START) == record
    assert newest_of(record, later) == newest_of(None, later) == StartRecord(later, noted=True)


def test_a_directory_that_knows_none_but_earlier_tokens_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    older = StartAsked(a_start(5), (token(4),))
    with pytest.raises(Fenced) as refused:
        decide_start(StartRecord(START, noted=True), older, last=START)
    assert refused.value.facts == {"start": 3, "url": "a:1", "started_at": 1_000}
    accepted = older._replace(accept_loss=True)
    assert decide_start(StartRecord(START, True), accepted, last=START).start.number == 4
    remove(monkeypatch, "the newest start of a node of queues", lambda *_: None)
    assert decide_start(StartRecord(START, True), older, last=START).start.number == 4


async def test_a_start_is_in_coordination_and_in_the_bucket_and_those_before_are_forgotten() -> (
    None
):
    harness, directory = await a_harness(), Directory()
    for number in (1, 2, 3):
        start = await directory.start(harness, number)
        assert start == a_start(number)._replace(number=number)
        assert await objects(harness) == [start]
    again = await Starts(harness.context).settle(StartAsked(a_start(3), directory.known))
    assert again == start


@pytest.mark.parametrize("lost", [False, True], ids=["kept", "coordination lost"])
@pytest.mark.parametrize("first", [False, True], ids=["later", "first"])
async def test_a_crash_at_any_step_lets_the_same_directory_in_and_no_older_copy(
    *, first: bool, lost: bool
) -> None:
    step, died = 0, True
    while died:
        harness, directory = await a_harness(), Directory()
        older = directory.copy()
        if not first:
            await directory.start(harness, 1)
            older = directory.copy()
            await directory.start(harness, 2)
        harness.fuse.left = step
        try:
            await directory.start(harness, 3)
            died = False
        except Crash:
            died = True
        harness.fuse.left = None
        if lost:
            harness.coordination.lose()
            await rebuild(harness)

        back = await directory.start(harness, 4)

        assert (await objects(harness))[-1] == back
        with pytest.raises(Fenced):
            await older.start(harness, 5)
        assert (await directory.start(harness, 6)).number == back.number + 1
        step += 1
    assert step > 4


async def test_after_two_starts_that_died_and_a_loss_of_coordination_the_directory_is_the_newest() -> (
    None
):
    """A directory knows two tokens: the bucket has to know one of them, whatever died before."""
    step, died = 0, True
    while died:
        for second in range(9):
            harness, directory = await a_harness(), Directory()
            await directory.start(harness, 1)
            older = directory.copy()
            await directory.start(harness, 2)
            died = await dies(directory, harness, 3, step)
            await dies(directory, harness, 4, second)
            harness.coordination.lose()
            await rebuild(harness)

            with pytest.raises(Fenced):
                await older.start(harness, 5)
            back = await directory.start(harness, 6)
            assert (await objects(harness))[-1] == back
        step += 1
    assert step > 4


async def test_a_start_that_did_not_wait_for_the_object_before_it_would_lock_the_newest_copy_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def nothing(*_: object) -> None:
        pass

    remove(monkeypatch, "the object of the newest start before the next one", nothing)
    harness, directory = await a_harness(), Directory()
    await directory.start(harness, 1)
    after_the_exec = 1
    for number in (2, 3):
        assert await dies(directory, harness, number, after_the_exec)
    harness.coordination.lose()
    await rebuild(harness)
    with pytest.raises(Fenced):
        await directory.start(harness, 4)


async def dies(directory: Directory, harness: ManifestHarness, number: int, step: int) -> bool:
    """Let a start die after so many changes; whether there were so many."""
    harness.fuse.left = step
    try:
        await directory.start(harness, number)
    except Crash:
        return True
    finally:
        harness.fuse.left = None
    return False


async def test_what_an_ended_process_asked_for_is_entered_late_by_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness, directory = await a_harness(), Directory()
    await directory.start(harness, 1)
    late = StartAsked(a_start(2), (token(1), token(2)))
    await directory.copy().start(harness, 3)
    hold(harness, 3)
    starts = Starts(harness.context)
    before = await objects(harness)
    with pytest.raises(Fenced):
        await starts.settle(late)
    accepted = late._replace(accept_loss=True)
    with pytest.raises(Unavailable) as refused:
        await starts.settle(accepted)
    assert refused.value.code is Code.NOT_OWNER
    assert await objects(harness) == before
    guard = "the lease of a node of queues in the EXEC that enters its start"
    remove(monkeypatch, guard, lambda *_: None)
    await starts.settle(accepted)
    assert [one.token for one in await objects(harness)] == [token(2)]


async def test_an_exec_that_arrives_after_the_lease_is_another_s_changes_nothing() -> None:
    harness, directory = await a_harness(), Directory()
    await directory.start(harness, 1)
    hold(harness, 2)
    harness.coordination.faults = [Fault.LOST_LATE]
    with pytest.raises(Unavailable):
        await Starts(harness.context).settle(StartAsked(a_start(2), (token(1), token(2))))
    other = directory.copy()
    hold(harness, 3)
    assert harness.coordination.arrive() == 0
    assert (await other.start(harness, 3)).number == 2


async def test_an_answer_that_was_lost_is_heard_by_the_same_request_again() -> None:
    for fault in (Fault.LOST_APPLIED, Fault.UNAVAILABLE):
        harness, directory = await a_harness(), Directory()
        await directory.start(harness, 1)
        hold(harness, 2)
        harness.coordination.faults = [fault]
        asked = StartAsked(a_start(2), (token(1), token(2)))
        with pytest.raises(Unavailable):
            await Starts(harness.context).settle(asked)
        assert (await Starts(harness.context).settle(asked)).number == 2


async def test_an_object_that_says_something_else_of_a_number_gives_the_start_the_next_one() -> (
    None
):
    """It was put by a process of before a loss, after this start had looked."""
    harness, directory = await a_harness(), Directory()
    await directory.start(harness, 1)
    hold(harness, 2)
    stray = QueueStart(NODE, 2, token(9), LOCK, "a:1", 1_000)

    async def happen() -> None:
        await put(harness, queue_start_key(NODE, 2), encode_start_object(stray))

    harness.coordination.before_transact = happen
    asked = StartAsked(a_start(2), (token(1), token(2)))
    assert (await Starts(harness.context).settle(asked)).number == 3


async def test_a_start_that_cannot_be_read_lets_nobody_in() -> None:
    harness, directory = await a_harness(), Directory()
    await directory.start(harness, 1)
    await put(harness, queue_start_key(NODE, 2), b"{}")
    with pytest.raises(Corrupt):
        await directory.start(harness, 2)
    moved = encode_start_object(a_start(7)._replace(number=7))
    await put(harness, queue_start_key(NODE, 3), moved)
    with pytest.raises(Corrupt, match="not what its key says"):
        await directory.start(harness, 2)
