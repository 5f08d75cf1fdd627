"""A repeat is answered after the note of its original is durable, whoever wrote that: with `sync`."""

import asyncio
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
from support.guards import remove
from support.wire import Mishap, Passage

from bottomless.errors import Code, Outcome, StoreError
from bottomless.model.names import StreamId, Uid
from bottomless_server.coordination.base import Changes, Member
from bottomless_server.ingest.leaderless.answers import Answers
from bottomless_server.ingest.leaderless.context import WriterContext
from bottomless_server.ingest.leaderless.core.notes import Notes
from bottomless_server.ingest.leaderless.core.pieces import WaitingAppend
from bottomless_server.ingest.producers.producers import Appended
from bottomless_server.stores import tails
from bottomless_server.stores.noted_entries import NotedEntries
from bottomless_server.stores.tail_keys import tail_index_key
from unit.ingest.leaderless.harness import BOUNDS, Stores, WriterProcess, a_house, until
from unit.ingest.leaderless.making import IDS, an_append, of_producer

SYNC = BOUNDS._replace(notes_sync=True)
SLOW = Passage(there_seconds=20.0)
NEVER = Passage(Mishap.LOSE_REQUEST, silence_seconds=60.0)


def a_commit_without_its_note(note: Passage) -> tuple[Stores, WriterProcess, WriterProcess]:
    """Two nodes; the first has committed an append, and nothing notes that yet."""
    stores, first = a_house(bounds=SYNC)
    other = WriterProcess(stores, "ingest-1", SYNC).start()
    until(stores, lambda: other.writer.run is not None)
    stores.trouble.next["drive.put"] = [Passage(), note]
    first.put(0, an_append(b"x", conditions=of_producer("p")))
    until(stores, lambda: stores.tail(0).next_offset == 1)
    return stores, first, other


def repeat_at(other: WriterProcess) -> tuple[Appended | StoreError, int]:
    """What a repeat is told, and how many notes are in the bucket by then."""
    said = other.append(0, an_append(b"x", conditions=of_producer("p")))
    return said, len(other.stores.notes())


def test_a_repeat_at_another_node_waits_for_the_note_of_the_first() -> None:
    _, _, other = a_commit_without_its_note(SLOW)

    said, notes = repeat_at(other)

    assert isinstance(said, Appended)
    assert (said.first_offset, said.replayed, notes) == (0, True, 1)


def test_without_its_guard_it_is_answered_before(monkeypatch: pytest.MonkeyPatch) -> None:
    guard = "a repeat after the note of its original is durable"
    remove(monkeypatch, guard, lambda *_, **__: False)
    _, _, other = a_commit_without_its_note(SLOW)

    said, notes = repeat_at(other)

    assert isinstance(said, Appended)
    assert notes == 0


def a_note_of_a_neighbour() -> tuple[Stores, WriterProcess]:
    """Two streams have a piece at one offset in one object; a note speaks of the first alone, and its
    writer is dead."""
    bounds = SYNC._replace(commit_stream_count_max=1)
    stores, first = a_house(bounds=bounds)
    other = WriterProcess(stores, "ingest-1", bounds).start()
    until(stores, lambda: other.writer.run is not None)
    stores.trouble.next["drive.put"] = [Passage(), Passage(), NEVER]
    stores.trouble.next["coordination.exec"] = [Passage(), Passage(there_seconds=1.0)]
    told = [first.put(stream, an_append(b"x", conditions=of_producer("p"))) for stream in (0, 1)]
    until(stores, lambda: stores.tail(1).next_offset == 1)
    assert [one.done() for one in told] == [True, False]
    first.process.kill()
    [(_, note)] = stores.notes()
    assert (note.first_piece, note.first_offset) == (0, 0)
    return stores, other


def test_a_note_of_another_stream_at_the_same_offset_is_none_of_the_repeat() -> None:
    stores, other = a_note_of_a_neighbour()

    said = other.append(1, an_append(b"x", conditions=of_producer("p")))
    assert isinstance(said, StoreError)
    assert said.outcome is Outcome.UNKNOWN

    said = other.append(0, an_append(b"x", conditions=of_producer("p")))
    assert isinstance(said, Appended)
    stores.do(compacted(stores, IDS[1]))
    said = other.append(1, an_append(b"x", conditions=of_producer("p")))
    assert isinstance(said, Appended)


def test_without_its_guard_a_note_of_another_stream_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    guard = "a note of the very pieces that an entry names"
    remove(monkeypatch, guard, lambda notes, sequence, _: sequence in {one for one, _ in notes})
    _, other = a_note_of_a_neighbour()
    said = other.append(1, an_append(b"x", conditions=of_producer("p")))
    assert isinstance(said, Appended)


def test_a_note_that_died_with_its_writer_is_waited_for_until_a_fragment_has_it() -> None:
    stores, first, other = a_commit_without_its_note(NEVER)
    first.process.kill()

    said, _ = repeat_at(other)
    assert isinstance(said, StoreError)
    assert (said.code, said.outcome) == (Code.OBJECT_STORE_UNAVAILABLE, Outcome.UNKNOWN)

    stores.do(compacted(stores, IDS[0]))
    said, notes = repeat_at(other)
    assert isinstance(said, Appended)
    assert (said.first_offset, notes) == (0, 0)


async def compacted(stores: Stores, stream_id: StreamId) -> None:
    """Publish a stream to its end."""
    end = stores.tail(IDS.index(stream_id)).next_offset
    await stores.streams.update(
        stream_id, lambda record: replace(record, published_next=end, version=record.version + 1)
    )
    await tails.prune(stores.coordination, stream_id, 0)


@pytest.mark.parametrize("guarded", [True, False])
def test_without_its_guard_a_loss_of_coordination_is_taken_for_a_fragment(
    guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lost its entries alone is in no fragment either."""
    stores, _, other = a_commit_without_its_note(NEVER)
    if not guarded:
        remove(monkeypatch, "where records lie that no entry has", lambda *_: True)
    future = other.put(0, an_append(b"x", conditions=of_producer("p")))
    stores.do(asyncio.sleep(1))
    assert not future.done()

    index = tail_index_key(IDS[0])
    gone = [Member(index, one, False) for one in stores.coordination.peek_members(index)]
    stores.coordination.write(Changes(members=gone))
    said = stores.do(asyncio.wait_for(future, 60))

    assert isinstance(said, StoreError) is guarded
    if isinstance(said, StoreError):
        assert said.outcome is Outcome.UNKNOWN


def test_after_a_loss_of_coordination_no_repeat_is_said_to_be_stored() -> None:
    stores, _, other = a_commit_without_its_note(NEVER)
    future = other.put(0, an_append(b"x", conditions=of_producer("p")))
    stores.do(asyncio.sleep(1))

    stores.coordination.lose()
    said = stores.do(asyncio.wait_for(future, 60))

    assert isinstance(said, StoreError)
    assert said.outcome is Outcome.UNKNOWN


def test_who_stops_leaves_no_repeat_without_an_answer() -> None:
    stores, _, other = a_commit_without_its_note(NEVER)
    future = other.put(0, an_append(b"x", conditions=of_producer("p")))
    stores.do(asyncio.sleep(1))
    assert not future.done()

    other.stop()
    stores.do(asyncio.sleep(0.01))
    said = future.result()
    assert isinstance(said, StoreError)
    assert said.outcome is Outcome.UNKNOWN


def test_many_repeats_at_once_cost_hardly_more_than_one() -> None:
    stores, first = a_house(bounds=SYNC)
    other = WriterProcess(stores, "ingest-1", SYNC).start()
    until(stores, lambda: other.writer.run is not None)
    appends = [an_append(b"x", conditions=of_producer(f"p{one}")) for one in range(50)]
    first.told(*(first.put(0, append) for append in appends))
    routes = Counter[str]()

    def counted(route: str) -> Passage:
        routes[route] += 1
        return Passage()

    stores.trouble.always_by = counted
    said = other.told(*(other.put(0, append) for append in appends))

    assert all(isinstance(one, Appended) and one.replayed for one in said)
    # Of 50 questions; a page of a listing is a request, and so is each object in it.
    assert routes["drive.get"] <= 5
    assert routes["drive.list"] <= 10


def test_so_many_instances_are_remembered_and_no_more() -> None:
    noted = NotedEntries(2)
    first = noted.of(Uid("1" * 32))
    assert noted.of(Uid("1" * 32)) is first
    for digit in "23":
        noted.of(Uid(digit * 32))
    assert noted.of(Uid("1" * 32)) is not first


async def test_a_repeat_is_answered_also_if_the_writer_ends_before_it_has_begun_to_look() -> None:
    """A task that is cancelled before its first step runs no part of itself."""
    told: list[Appended | StoreError] = []
    answers = Answers(cast("WriterContext", SimpleNamespace(bounds=SYNC)), Notes(0), 0)

    replayed = Appended(0, 1, 1_000, 0, 1, replayed=True)
    answers.tell(WaitingAppend(an_append(b"x"), told.append), replayed, IDS[0])
    answers.give_up()
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    [said] = told
    assert isinstance(said, StoreError)
    assert (said.outcome, len(answers)) == (Outcome.UNKNOWN, 0)
