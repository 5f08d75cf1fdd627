"""What becomes of appends where stores fail, are late or lose replies, and where others meddle."""

import asyncio
from typing import Any

import orjson
import pytest
from support.guards import remove
from support.wire import Mishap, Passage

from bottomless.errors import Code, Outcome, StoreError
from bottomless.formats.checks import crc32c
from bottomless.formats.keys import generation_key
from bottomless.model.names import StreamId
from bottomless_server.coordination.base import Changes
from bottomless_server.coordination.memory import Watched
from bottomless_server.ingest.leaderless.core import notes
from bottomless_server.ingest.producers.producers import Appended
from bottomless_server.manifest.recovery.wal_scan import scan_wal
from bottomless_server.stores import tails, wal
from bottomless_server.stores.streams import GENERATION_KEY
from bottomless_server.stores.tail_keys import tail_key
from unit.ingest.leaderless.harness import BOUNDS, Stores, WriterProcess, a_house, until
from unit.ingest.leaderless.making import IDS, an_append, of_producer

LOST_REQUEST = Passage(Mishap.LOSE_REQUEST, silence_seconds=1.0)
LOST_REPLY = Passage(Mishap.LOSE_REPLY, silence_seconds=1.0)
LATE = Passage(Mishap.LATE_REQUEST, silence_seconds=1.0)
SYNC = BOUNDS._replace(notes_sync=True)


def appended(said: Appended | StoreError) -> Appended:
    assert isinstance(said, Appended), said
    return said


def refused(said: Appended | StoreError) -> tuple[Code, Outcome | None]:
    assert isinstance(said, StoreError), said
    return said.code, said.outcome


def away(stores: Stores, *routes: str) -> None:
    for route in routes:
        stores.trouble.always[route] = LOST_REQUEST


def back(stores: Stores) -> None:
    stores.trouble.always.clear()


COORDINATION = ("coordination.watch", "coordination.exec", "coordination.get", "coordination.hold")


# The object store.


def test_an_append_without_an_object_is_refused_and_stored_nowhere() -> None:
    stores, writer = a_house()
    away(stores, "drive.put")
    said = writer.append(0, an_append(b"lost"))
    back(stores)

    assert refused(said) == (Code.OBJECT_STORE_UNAVAILABLE, Outcome.NONE)
    appended(writer.append(0, an_append(b"next")))
    assert stores.values(0) == [b"next"]


def test_an_object_whose_reply_was_lost_is_used_all_the_same() -> None:
    stores, writer = a_house()
    stores.trouble.next["drive.put"] = [LOST_REPLY]
    appended(writer.append(0, an_append(b"a")))
    assert stores.values(0) == [b"a"]


def test_a_slow_put_holds_back_what_came_after_it_and_not_what_is_put_beside_it() -> None:
    stores, writer = a_house()
    stores.trouble.next["drive.put"] = [Passage(there_seconds=5.0)]
    early = writer.put(0, an_append(b"early"))
    stores.do(asyncio.sleep(1))
    late = writer.put(0, an_append(b"late"))
    stores.do(asyncio.sleep(1))

    assert len(stores.directories()) == 1, "puts overlap"
    assert not late.done()
    assert [appended(said).first_offset for said in writer.told(early, late)] == [0, 1]


def test_no_more_objects_are_put_at_once_than_may_be() -> None:
    stores, writer = a_house()
    stores.trouble.always["drive.put"] = Passage(there_seconds=10.0)
    for _ in range(8):
        writer.put(0, an_append())
        stores.do(asyncio.sleep(0.5))

    assert writer.counts.flushes.total() == BOUNDS.put_count_max


def test_what_waits_for_the_end_of_a_put_goes_the_moment_it_ends() -> None:
    stores, writer = a_house(bounds=BOUNDS._replace(put_count_max=1))
    stores.trouble.always["drive.put"] = Passage(there_seconds=2.0)
    began_at = stores.loop.now
    futures = []
    for _ in range(3):
        futures.append(writer.put(0, an_append()))
        stores.do(asyncio.sleep(0.5))
    writer.told(*futures)

    # A linger, and two puts: the second one takes all that came meanwhile.
    assert stores.loop.now - began_at < 0.25 + 2 * 2.0 + 0.1


def test_notes_go_along_until_an_object_with_them_is_durable() -> None:
    stores, writer = a_house()
    appended(writer.append(0, an_append()))
    away(stores, "drive.put")
    stores.do(asyncio.sleep(40))
    assert stores.notes() == []
    back(stores)

    until(stores, lambda: bool(stores.notes()))


def test_no_flush_begins_while_too_many_notes_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three wait, which cannot be put; what is appended meanwhile gathers, or is refused in time."""
    monkeypatch.setattr(notes, "NOTES_WAITING_MAX", 3)
    stores, writer = a_house()
    stores.trouble.next["drive.put"] = [Passage()]
    away(stores, "drive.put")
    writer.told(*(writer.put(stream, an_append()) for stream in range(3)))
    waits = writer.put(0, an_append(b"waits"))
    stores.do(asyncio.sleep(2))
    assert (writer.counts.flushes.total(), waits.done()) == (1, False)
    assert refused(writer.told(waits)[0])[1] is Outcome.NONE
    later = writer.put(0, an_append(b"later"))
    back(stores)

    assert appended(writer.told(later)[0]).first_offset == 1
    assert writer.counts.note_objects >= 1
    assert len(stores.notes()) == 3


def test_with_sync_notes_the_outcome_is_unknown_where_they_cannot_be_put() -> None:
    stores, writer = a_house(bounds=SYNC)
    stores.trouble.next["drive.put"] = [Passage()]
    away(stores, "drive.put")
    future = writer.put(0, an_append())

    assert refused(writer.told(future)[0]) == (Code.OBJECT_STORE_UNAVAILABLE, Outcome.UNKNOWN)
    assert len(stores.values(0)) == 1


def test_an_answer_before_its_note_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Must fail: with `sync` an append is answered though nothing is noted."""
    remove(monkeypatch, "an answer after its notes are durable", lambda *_, **__: True)
    stores, writer = a_house(bounds=SYNC)
    appended(writer.append(0, an_append()))

    assert stores.notes() == []


# Coordination.


@pytest.mark.parametrize("mishap", [LOST_REPLY, LATE, LOST_REQUEST])
def test_a_commit_whose_reply_is_lost_is_decided_and_stored_once(mishap: Passage) -> None:
    stores, writer = a_house()
    appended(writer.append(0, an_append(b"first")))
    stores.trouble.next["coordination.exec"] = [mishap]
    appended(writer.append(0, an_append(b"second")))
    stores.do(asyncio.sleep(5))

    assert stores.values(0) == [b"first", b"second"]


@pytest.mark.parametrize("mishap", [LOST_REPLY, LATE])
def test_the_reply_of_the_bump_may_be_lost_too(mishap: Passage) -> None:
    stores, writer = a_house()
    stores.trouble.next["coordination.exec"] = [mishap, LOST_REPLY, LATE, LOST_REPLY]
    appended(writer.append(0, an_append(b"a")))
    stores.do(asyncio.sleep(5))

    assert stores.values(0) == [b"a"]


def test_nobody_waits_for_ever_for_a_commit_that_nobody_can_decide() -> None:
    stores, writer = a_house()
    stores.trouble.next["coordination.exec"] = [LOST_REPLY]
    future = writer.put(0, an_append(b"a"))
    until(stores, lambda: not stores.trouble.next["coordination.exec"])
    away(stores, *COORDINATION)
    behind = writer.put(1, an_append(b"b"))

    assert refused(writer.told(future)[0]) == (Code.COMMIT_TIMEOUT, Outcome.UNKNOWN)
    assert refused(writer.told(behind)[0]) == (Code.COORDINATION_UNAVAILABLE, Outcome.NONE)
    back(stores)
    until(stores, lambda: bool(stores.notes()))
    assert stores.values(0) == [b"a"]
    assert stores.values(1) == []
    appended(writer.append(1, an_append(b"c")))


def test_who_was_told_that_nobody_knows_is_not_stored_after_that() -> None:
    stores, writer = a_house()
    # It never arrives, and nobody can know that.
    stores.trouble.next["coordination.exec"] = [Passage(Mishap.LATE_REQUEST, silence_seconds=100)]
    future = writer.put(0, an_append(b"a"))
    stores.do(asyncio.sleep(1))
    stores.trouble.always["coordination.watch"] = LOST_REQUEST
    said = writer.told(future)[0]
    back(stores)
    stores.do(asyncio.sleep(300))

    assert refused(said) == (Code.COMMIT_TIMEOUT, Outcome.UNKNOWN)
    assert len(stores.values(0)) <= 1
    appended(writer.append(0, an_append(b"b")))
    assert stores.values(0)[-1] == b"b"


def test_notes_go_on_while_coordination_is_away() -> None:
    stores, writer = a_house()
    appended(writer.append(0, an_append()))
    away(stores, *COORDINATION)

    said = writer.append(0, an_append())
    assert refused(said) == (Code.COORDINATION_UNAVAILABLE, Outcome.NONE)
    assert len(stores.notes()) >= 1
    back(stores)
    appended(writer.append(0, an_append()))


def test_a_writer_that_others_took_for_dead_puts_again_under_another_instance() -> None:
    stores, writer = a_house()
    appended(writer.append(0, an_append(b"first")))
    [instance] = stores.instances()
    futures = [writer.put(0, an_append(b"%d" % number)) for number in range(3)]
    stores.do(stores.coordination.release(wal.live_key(instance), instance.encode()))
    stores.do(wal.settle(stores.coordination, instance, 0))

    assert [appended(said).first_offset for said in writer.told(*futures)] == [1, 2, 3]
    assert stores.values(0) == [b"first", b"0", b"1", b"2"]
    assert writer.counts.instances == 2
    # What the first instance committed is noted by itself, though it commits nothing more.
    until(stores, lambda: {one for one, _ in stores.notes()} == set(stores.instances()))


def test_a_record_that_is_gone_while_its_writer_slept_is_no_loss() -> None:
    stores, writer = a_house()
    appended(writer.append(0, an_append(b"a")))
    [instance] = stores.instances()
    writer.machine.fall_asleep(stores.loop.now)
    stores.do(asyncio.sleep(60))
    key = wal.instance_key(instance)
    stores.coordination.write(Changes({key: None, wal.live_key(instance): None}))
    writer.machine.wake(stores.loop.now)

    appended(writer.append(0, an_append(b"b")))
    assert stores.values(0) == [b"a", b"b"]


def test_everything_is_refused_where_coordination_went_back_until_it_is_whole() -> None:
    stores, writer = a_house(streams=1)
    appended(writer.append(0, an_append(b"a")))
    future = writer.put(0, an_append(b"b"))
    stores.coordination.lose()

    assert refused(writer.told(future)[0]) == (Code.COORDINATION_REGRESSED, Outcome.NONE)
    assert refused(writer.append(0, an_append())) == (Code.COORDINATION_REGRESSED, Outcome.NONE)
    # What it had committed is noted all the same, which is what a rebuild waits for.
    assert len(stores.notes()) == 1

    stores.do(rebuilt(stores))
    until(stores, lambda: writer.writer.run is not None)
    appended(writer.append(0, an_append(b"c")))
    assert stores.values(0) == [b"c"]


def noted_below_what_nobody_knows() -> int:
    """What the last object says where coordination is lost before it has told what became of the
    second commit, which it has stored; that of the first one is still to be noted."""
    stores, writer = a_house()
    # It is decided before its notes are due.
    lost = Passage(Mishap.LOSE_REPLY, silence_seconds=0.1)
    stores.trouble.next["coordination.exec"] = [Passage(back_seconds=2.0), lost]
    early = writer.put(0, an_append(b"a"))
    stores.do(asyncio.sleep(1))
    late = writer.put(1, an_append(b"b"))
    until(stores, lambda: stores.values(1) == [b"b"])
    stores.coordination.lose()
    appended(writer.told(early)[0])
    assert refused(writer.told(late)[0]) == (Code.COMMIT_TIMEOUT, Outcome.UNKNOWN)

    until(stores, lambda: bool(stores.notes()))
    [(_, note)] = stores.notes()
    assert note.sequence == 0
    return stores.directories()[max(stores.directories())].header.noted_below


def test_what_nobody_knows_of_is_never_told_as_settled() -> None:
    """The search of `model/` found it: a rebuild gave the offsets of the second one again."""
    assert noted_below_what_nobody_knows() == 1


def test_what_is_told_as_settled_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Must fail: the notes of a lost instance go on as if its last commit were decided."""
    remove(
        monkeypatch,
        "a commit that nobody knows of is not settled",
        lambda _, sequence: sequence,
    )
    assert noted_below_what_nobody_knows() == 2


async def rebuilt(stores: Stores) -> None:
    """Another generation, with an empty tail."""
    value = orjson.dumps({"generation": 1, "bucket": True})
    stores.coordination.write(Changes({GENERATION_KEY: value}))
    await stores.objects.put(generation_key(1), [value], crc32c(value))
    stores.streams.generation = 1
    await tails.create(stores.streams, stores.record(IDS[0]))


def test_a_tail_that_went_back_ends_everything() -> None:
    stores, writer = a_house()
    before = stores.coordination.peek(tail_key(IDS[0]))
    appended(writer.append(0, an_append(b"a")))
    stores.coordination.write(Changes({tail_key(IDS[0]): before}))

    assert refused(writer.append(0, an_append())) == (Code.COORDINATION_REGRESSED, Outcome.NONE)


def test_a_store_that_was_connected_to_anew_is_compared_with_the_bucket_first() -> None:
    stores, writer = a_house()
    copy = stores.coordination.copy()
    appended(writer.append(0, an_append(b"a")))
    until(stores, lambda: bool(stores.notes()))
    stores.coordination.put_back(copy)

    assert refused(writer.append(1, an_append())) == (Code.COORDINATION_REGRESSED, Outcome.NONE)


def test_a_new_connection_to_the_same_store_costs_a_moment() -> None:
    stores, writer = a_house()
    appended(writer.append(0, an_append(b"a")))
    stores.coordination.connected_count += 1

    appended(writer.append(0, an_append(b"b")))
    assert writer.counts.instances == 1


def test_a_lost_request_costs_a_moment() -> None:
    stores, writer = a_house()
    stores.trouble.next["coordination.watch"] = [LOST_REQUEST] * 3
    appended(writer.append(0, an_append(b"a")))


def test_an_instance_whose_begin_is_lost_is_followed_by_another() -> None:
    stores = Stores()
    stores.do(stores.create(1))
    stores.trouble.next["coordination.exec"] = [LOST_REPLY]
    writer = WriterProcess(stores).start()
    until(stores, lambda: writer.writer.run is not None)

    appended(writer.append(0, an_append(b"a")))
    assert len(stores.instances()) == 2


# Others.


def test_two_nodes_write_to_one_stream_and_others_go_on() -> None:
    stores, first = a_house(streams=12)
    second = WriterProcess(stores, "ingest-1").start()
    stores.trouble.always["coordination.exec"] = Passage(there_seconds=0.01, back_seconds=0.01)
    futures: dict[str, list[Any]] = {"a": [], "b": []}
    calm: list[Any] = []
    for number in range(60):
        futures["a"].append(first.put(0, an_append(b"a%d" % number)))
        futures["b"].append(second.put(0, an_append(b"b%d" % number)))
        calm.append(first.put(1 + number % 11, an_append()))
        stores.do(asyncio.sleep(0.05))
    said = first.told(*futures["a"], *futures["b"], *calm)

    assert all(isinstance(one, Appended) for one in said)
    found = stores.values(0)
    assert [one for one in found if one[:1] == b"a"] == [b"a%d" % one for one in range(60)]
    assert [one for one in found if one[:1] == b"b"] == [b"b%d" % one for one in range(60)]
    assert first.counts.commits["conflict"] + second.counts.commits["conflict"] > 0


def test_one_sequence_of_a_producer_at_two_nodes_is_stored_once() -> None:
    stores, first = a_house()
    second = WriterProcess(stores, "ingest-1").start()
    append = an_append(b"a", conditions=of_producer("p", 0))
    said = first.told(first.put(0, append), second.put(0, append))

    assert sorted(appended(one).replayed for one in said) == [False, True]
    assert stores.values(0) == [b"a"]


# Guards of what is looked at beforehand.


def test_a_clock_that_is_not_held_to_coordination_is_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(monkeypatch, "the clock of a node beside that of coordination", lambda *_: None)
    stores = Stores()
    stores.do(stores.create(1))
    ahead = WriterProcess(stores, skew_ms=3_600_000).start()

    said = appended(ahead.append(0, an_append()))
    assert said.timestamp is not None
    assert said.timestamp > stores.clock() + 3_000_000


def test_room_that_nobody_looks_at_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    remove(monkeypatch, "the room that is left in coordination", lambda *_: True)
    stores, writer = a_house()
    appended(writer.append(0, an_append()))
    stores.coordination.used_share = 1.0
    stores.do(asyncio.sleep(4))

    writer.writer.require_space()


# What the bucket is told.


def undecided(stores: Stores) -> set[StreamId]:
    """Streams that a rebuild would have to believe more was committed of than is noted."""
    return stores.do(scan_wal(stores.objects, 0)).undecided


def test_what_is_refused_while_coordination_is_away_is_undecided_for_nobody() -> None:
    """A rebuild left a gap of 2^32 offsets, and named objects in doubt of which nothing was stored."""
    stores, writer = a_house()
    appended(writer.append(0, an_append(b"a")))
    until(stores, lambda: bool(stores.notes()))
    away(stores, "coordination.watch")
    assert refused(writer.append(0, an_append(b"b"))) == (
        Code.COORDINATION_UNAVAILABLE,
        Outcome.NONE,
    )
    assert undecided(stores) == {IDS[0]}

    stores.do(asyncio.sleep(2))

    assert undecided(stores) == set()


def test_nor_is_what_was_refused_since_coordination_was_lost() -> None:
    stores, writer = a_house()
    appended(writer.append(0, an_append(b"a")))
    until(stores, lambda: bool(stores.notes()))
    stores.coordination.lose()
    assert refused(writer.append(0, an_append(b"b"))) == (
        Code.COORDINATION_REGRESSED,
        Outcome.NONE,
    )

    stores.do(asyncio.sleep(2))

    assert undecided(stores) == set()


def test_a_commit_of_which_nobody_knows_stays_undecided() -> None:
    stores, writer = a_house()
    stores.trouble.next["coordination.exec"] = [LOST_REPLY]
    stores.trouble.always["coordination.watch"] = LOST_REQUEST
    stores.trouble.next["coordination.watch"] = [Passage()]
    future = writer.put(0, an_append(b"a"))
    stores.do(asyncio.sleep(60))
    assert future.done()
    assert undecided(stores) == {IDS[0]}


def test_a_writer_to_which_nobody_sends_anything_puts_nothing() -> None:
    stores, writer = a_house()
    appended(writer.append(0, an_append(b"a")))
    stores.do(asyncio.sleep(5))
    count = len(stores.directories())
    stores.do(asyncio.sleep(300))
    assert len(stores.directories()) == count == 2


def test_a_bug_after_an_exec_leaves_what_it_stored_undecided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A note said that nothing was left to decide, and a rebuild would have given its offsets again."""
    stores, writer = a_house()
    execute = stores.coordination.execute

    def broken(watched: Watched, changes: Changes) -> bool:
        execute(watched, changes)
        raise AssertionError("a reply that nobody expects")

    monkeypatch.setattr(stores.coordination, "execute", broken)
    future = writer.put(0, an_append(b"a"))
    until(stores, lambda: stores.tail(0).next_offset == 1)
    monkeypatch.setattr(stores.coordination, "execute", execute)
    assert refused(writer.told(future)[0])[1] is Outcome.UNKNOWN
    appended(writer.append(1, an_append(b"b")))

    stores.do(asyncio.sleep(10))

    assert undecided(stores) == {IDS[0]}
