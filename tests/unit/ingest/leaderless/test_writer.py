"""Appends to leaderless streams, from the line to their answer."""

import asyncio

import pytest

from bottomless.errors import Code, Outcome, StoreError
from bottomless_server.ingest.producers.producers import Appended
from unit.ingest.leaderless.harness import BOUNDS, Stores, WriterProcess, a_house, until
from unit.ingest.leaderless.making import an_append, expecting, of_producer


def appended(said: Appended | StoreError) -> Appended:
    assert isinstance(said, Appended), said
    return said


def refused(said: Appended | StoreError) -> StoreError:
    assert isinstance(said, StoreError), said
    return said


def test_an_append_is_answered_once_it_is_in_an_object_and_committed() -> None:
    stores, writer = a_house()
    said = appended(writer.append(0, an_append(b"a", b"b")))

    assert (said.first_offset, said.next_offset, said.record_count) == (0, 2, 2)
    assert stores.values(0) == [b"a", b"b"]
    assert said.timestamp == stores.tail(0).last_timestamp


def test_appends_of_many_streams_share_an_object() -> None:
    stores, writer = a_house()
    futures = [writer.put(stream, an_append(b"%d" % stream)) for stream in range(3)]
    writer.told(*futures)

    [directory] = stores.directories().values()
    assert directory.header.piece_count == 3
    assert [stores.values(stream) for stream in range(3)] == [[b"0"], [b"1"], [b"2"]]
    assert writer.counts.commits["ok"] == 1


def test_appends_of_a_stream_keep_their_order() -> None:
    stores, writer = a_house()
    values = [b"%d" % number for number in range(50)]
    futures = [writer.put(0, an_append(value)) for value in values]
    firsts = [appended(said).first_offset for said in writer.told(*futures)]

    assert stores.values(0) == values
    assert firsts == list(range(50))


def test_several_appends_of_one_producer_follow_each_other_in_one_flush() -> None:
    stores, writer = a_house()
    futures = [
        writer.put(0, an_append(b"%d" % one, conditions=of_producer("p", one))) for one in range(4)
    ]
    assert [appended(said).first_offset for said in writer.told(*futures)] == [0, 1, 2, 3]
    again = writer.append(0, an_append(b"2", conditions=of_producer("p", 2)))
    assert appended(again)[:2] == (2, 3)
    assert appended(again).replayed
    assert len(stores.values(0)) == 4


def test_what_expects_an_offset_is_decided_before_the_others_of_its_flush() -> None:
    stores, writer = a_house()
    plain = writer.put(0, an_append(b"plain"))
    expects = writer.put(0, an_append(b"expects", conditions=expecting(0)))
    too_late = writer.put(0, an_append(b"late", conditions=expecting(0)))
    said = writer.told(plain, expects, too_late)

    assert stores.values(0) == [b"expects", b"plain"]
    assert refused(said[2]).code is Code.OFFSET_MISMATCH


def test_a_stream_that_is_not_there_takes_nothing_from_the_others() -> None:
    stores, writer = a_house(streams=2)
    said = writer.told(*(writer.put(stream, an_append()) for stream in (0, 5, 1)))

    assert refused(said[1]).code is Code.STREAM_NOT_FOUND
    assert [len(stores.values(stream)) for stream in (0, 1)] == [1, 1]
    assert writer.counts.refusals == {Code.STREAM_NOT_FOUND: 1}


def test_a_stream_in_which_too_much_waits_is_refused() -> None:
    _, writer = a_house(bounds=BOUNDS._replace(tail=BOUNDS.tail._replace(entry_count_max=1)))
    appended(writer.append(0, an_append()))
    error = refused(writer.append(0, an_append()))

    assert (error.code, error.outcome) == (Code.TAIL_BOUND, Outcome.NONE)


def test_a_note_of_what_was_committed_is_put_without_another_flush() -> None:
    stores, writer = a_house()
    appended(writer.append(0, an_append()))
    assert stores.notes() == []
    until(stores, lambda: bool(stores.notes()))

    [(instance, note)] = stores.notes()
    assert (note.sequence, note.first_offset, note.number) == (0, 0, 1)
    assert stores.directories()[instance, 1].header.noted_below == 1
    assert writer.counts.note_objects == 1


def test_no_appends_make_no_object() -> None:
    stores, writer = a_house()
    appended(writer.append(0, an_append()))
    stores.do(asyncio.sleep(60))

    assert len(stores.directories()) == 2
    assert len(writer.writer.run.notes if writer.writer.run else [0]) == 0


def test_with_sync_notes_nothing_is_answered_before_its_note_is_durable() -> None:
    stores, writer = a_house(bounds=BOUNDS._replace(notes_sync=True))
    appended(writer.append(0, an_append()))

    [(_, note)] = stores.notes()
    assert note.sequence == 0


def test_a_drain_flushes_commits_notes_and_settles_everything() -> None:
    stores, writer = a_house()
    future = writer.put(0, an_append())
    writer.drain()

    appended(writer.told(future)[0])
    assert len(stores.notes()) == 1
    [record] = stores.instances().values()
    assert record.settled == record.reserved
    error = refused(writer.append(0, an_append()))
    assert error.code is Code.DRAINING
    writer.stop()


def test_a_stop_answers_whoever_still_waits() -> None:
    _, writer = a_house()
    future = writer.put(0, an_append())
    writer.stop()

    assert refused(writer.told(future)[0]).code is Code.DRAINING


def test_a_node_whose_clock_is_wrong_gives_no_timestamp() -> None:
    stores = Stores()
    stores.do(stores.create(1))
    ahead = WriterProcess(stores, skew_ms=3_600_000).start()

    error = refused(ahead.append(0, an_append()))
    assert (error.code, error.outcome) == (Code.CLOCK_SKEW, Outcome.NONE)
    ahead.machine.skew_ms = 0
    appended(ahead.append(0, an_append()))


@pytest.mark.parametrize("full", ["coordination", "held"])
def test_nothing_is_taken_where_there_is_no_room_for_what_it_would_need(full: str) -> None:
    bounds = BOUNDS if full == "coordination" else BOUNDS._replace(held_count_max=1)
    stores, writer = a_house(bounds=bounds)
    appended(writer.append(0, an_append()))
    writer.writer.require_space()
    stores.coordination.used_share = 0.9 if full == "coordination" else 0.0
    stores.do(asyncio.sleep(4))

    with pytest.raises(StoreError) as raised:
        writer.writer.require_space()
    assert raised.value.code is Code.TAIL_BOUND
