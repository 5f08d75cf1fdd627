"""Commits of what was staged: many objects and one EXEC, under an instance of their own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import nullcontext

import pytest
from support.guards import remove
from support.wire import Mishap, Passage

from bottomless.errors import Code, Outcome, StoreError
from bottomless.model.chunk import AppendMode
from bottomless.model.names import Uid
from bottomless_server.ingest.producers.producers import Appended
from bottomless_server.ingest.records.conditions import Conditions, FromProducer
from bottomless_server.ingest.records.intake import Append
from bottomless_server.stores import wal
from unit.ingest.leaderless.harness import BOUNDS, Stores, WriterProcess, a_house, until
from unit.ingest.leaderless.making import IDS, an_append

LOST_REPLY = Passage(Mishap.LOSE_REPLY, silence_seconds=1.0)
LATE = Passage(Mishap.LATE_REQUEST, silence_seconds=1.0)


def of_commit(number: int) -> Conditions:
    return Conditions(FromProducer("job", 0, AppendMode.TRANSACTION, number))


async def parts(number: int, *values: bytes) -> AsyncIterator[Append]:
    for value in values:
        yield an_append(value, conditions=of_commit(number))


def commit(
    writer: WriterProcess, number: int, *values: bytes, stream: int = 0
) -> Appended | StoreError:
    return writer.stores.do(committed(writer, number, *values, stream=stream))


async def committed(
    writer: WriterProcess, number: int, *values: bytes, stream: int = 0
) -> Appended | StoreError:
    try:
        return await writer.writer.commit_staged(IDS[stream], parts(number, *values))
    except StoreError as error:
        return error


def staged_instance(stores: Stores, writer: WriterProcess) -> Uid:
    run = writer.writer.run
    assert run is not None
    [other] = set(stores.instances()) - {run.numbers.instance}
    return other


def test_all_parts_become_visible_at_once_as_one_append() -> None:
    stores, writer = a_house()
    said = commit(writer, 0, b"a", b"b", b"c")

    assert isinstance(said, Appended)
    assert (said.first_offset, said.next_offset, said.record_count) == (0, 3, 3)
    assert stores.values(0) == [b"a", b"b", b"c"]
    assert stores.tail(0).number == 1
    assert len(stores.entries(0)) == 3


def test_a_number_is_stored_once() -> None:
    stores, writer = a_house()
    commit(writer, 0, b"a", b"b")
    said = commit(writer, 0, b"a", b"b")

    assert isinstance(said, Appended)
    assert said.replayed
    assert stores.values(0) == [b"a", b"b"]


def test_it_holds_nobody_up() -> None:
    stores, writer = a_house()
    stores.trouble.always["drive.put"] = Passage(there_seconds=3.0)
    work = stores.loop.create_task(committed(writer, 0, *[b"%d" % one for one in range(9)]))
    stores.do(asyncio.sleep(5))
    assert isinstance(writer.append(1, an_append(b"x")), Appended)
    stores.trouble.always.clear()

    assert not work.done()
    assert isinstance(stores.do(_of(work)), Appended)
    assert stores.values(1) == [b"x"]


async def _of(task: "asyncio.Task[Appended | StoreError]") -> Appended | StoreError:
    return await task


def test_what_a_part_raises_ends_the_commit_and_nothing_is_stored() -> None:
    stores, writer = a_house()

    async def broken() -> AsyncIterator[Append]:
        yield an_append(b"a", conditions=of_commit(0))
        raise StoreError("a batch is gone", code=Code.STAGED_NOT_FOUND)

    async def attempt() -> StoreError:
        try:
            await writer.writer.commit_staged(IDS[0], broken())
        except StoreError as error:
            return error
        raise AssertionError("it was taken")

    assert stores.do(attempt()).code is Code.STAGED_NOT_FOUND
    assert stores.values(0) == []
    assert isinstance(commit(writer, 0, b"b"), Appended)
    assert stores.values(0) == [b"b"]


def test_objects_that_a_commit_without_success_has_put_are_settled() -> None:
    stores, writer = a_house()
    assert isinstance(commit(writer, 0, b"a"), Appended)
    failed = commit(writer, 0, b"x", stream=9)
    assert isinstance(failed, StoreError)
    assert failed.code is Code.STREAM_NOT_FOUND

    def settled() -> int:
        records = stores.instances()
        return records[staged_instance(stores, writer)].settled

    until(stores, lambda: settled() == 2)


def test_a_lost_reply_is_decided_and_it_is_stored_once() -> None:
    for mishap in (LOST_REPLY, LATE):
        stores, writer = a_house()
        commit(writer, 0, b"a")
        stores.trouble.next["coordination.exec"] = [mishap, LOST_REPLY]
        said = commit(writer, 1, b"b", b"c")
        stores.do(asyncio.sleep(5))

        assert isinstance(said, Appended)
        assert stores.values(0) == [b"a", b"b", b"c"]


def test_an_instance_that_others_settled_refuses_and_another_one_takes_the_repeat() -> None:
    stores, writer = a_house()
    commit(writer, 0, b"a")
    instance = staged_instance(stores, writer)
    stores.do(stores.coordination.release(wal.live_key(instance), instance.encode()))
    stores.do(wal.settle(stores.coordination, instance, 0))

    said = commit(writer, 1, b"b")
    assert isinstance(said, StoreError)
    assert said.outcome is Outcome.NONE
    assert isinstance(commit(writer, 1, b"b"), Appended)
    assert stores.values(0) == [b"a", b"b"]


def test_its_notes_are_put_and_it_is_given_back_at_the_end() -> None:
    stores, writer = a_house()
    commit(writer, 0, b"a", b"b")
    writer.drain()

    assert len(stores.notes()) == 2
    assert all(record.settled == record.reserved for record in stores.instances().values())


def test_with_sync_notes_a_commit_is_answered_after_them() -> None:
    stores, writer = a_house(bounds=BOUNDS._replace(notes_sync=True))
    assert isinstance(commit(writer, 0, b"a"), Appended)
    assert len(stores.notes()) == 1


def test_two_commits_are_put_side_by_side() -> None:
    stores, writer = a_house()
    stores.trouble.always["drive.put"] = Passage(there_seconds=1.0)

    async def both() -> list[Appended | StoreError]:
        return list(
            await asyncio.gather(
                committed(writer, 0, b"a", b"b", stream=0),
                committed(writer, 0, b"c", b"d", stream=1),
            )
        )

    before = stores.loop.now
    assert all(isinstance(one, Appended) for one in stores.do(both()))
    assert stores.loop.now - before < 3.5
    assert [stores.values(one) for one in (0, 1)] == [[b"a", b"b"], [b"c", b"d"]]


def a_commit_beside_the_end(stores: Stores, writer: WriterProcess) -> Appended | StoreError:
    """What a commit is told that comes to its EXEC just before the writer gives back the instance, and
    whose reply is lost."""
    assert isinstance(commit(writer, 0, b"a"), Appended)
    run = writer.writer.run
    assert run is not None
    instance, put, goes_on = run.numbers.instance, asyncio.Event(), asyncio.Event()

    async def slow_parts() -> AsyncIterator[Append]:
        async for part in parts(1, b"b"):
            yield part
        put.set()
        await goes_on.wait()

    async def told() -> Appended | StoreError:
        try:
            return await writer.writer.commit_staged(IDS[0], slow_parts())
        except StoreError as error:
            return error

    work = stores.loop.create_task(told())
    until(stores, put.is_set)
    # The other instance is given back first: its lease keeps the writer for a moment before this one.
    stores.trouble.next["coordination.release"] = [Passage(there_seconds=0.5)]
    end = stores.loop.create_task(writer.writer.drain())
    until(
        stores,
        lambda: stores.instances()[instance].settled == stores.instances()[instance].reserved,
    )
    stores.trouble.next["coordination.exec"] = [LOST_REPLY]
    goes_on.set()
    said = stores.do(_of(work))
    stores.do(asyncio.wait_for(end, 60))
    return said


def test_a_commit_beside_the_end_of_its_instance_is_told_what_became_of_it() -> None:
    stores, writer = a_house()
    said = a_commit_beside_the_end(stores, writer)

    assert isinstance(said, Appended)
    assert stores.values(0) == [b"a", b"b"]
    assert all(one.settled == one.reserved for one in stores.instances().values())


def test_without_its_turn_the_end_hides_that_a_commit_was_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(
        monkeypatch, "the turn of commits for the end of their instance", lambda _: nullcontext()
    )
    stores, writer = a_house()
    said = a_commit_beside_the_end(stores, writer)

    assert isinstance(said, StoreError)
    assert said.outcome is Outcome.NONE
    assert stores.values(0) == [b"a", b"b"]


def test_a_commit_that_is_under_way_at_a_stop_is_told_what_is_known() -> None:
    """It met a bug instead, since its instance had given up all that it had put."""
    stores, writer = a_house()
    assert isinstance(commit(writer, 0, b"a"), Appended)
    stores.trouble.always["coordination.exec"] = Passage(Mishap.LOSE_REQUEST, silence_seconds=1.0)
    work = stores.loop.create_task(committed(writer, 1, b"b"))
    stores.do(asyncio.sleep(2))
    writer.stop()
    stores.trouble.always.clear()

    said = stores.do(_of(work))

    assert isinstance(said, Appended | StoreError)
