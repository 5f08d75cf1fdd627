"""Coordination that comes back as another run of itself, perhaps an older copy, while nodes live: whoever
commits to it hears first of what the others know."""

import asyncio
from random import Random

import pytest
from support.guards import remove
from support.wire import Mishap, Passage

from bottomless.errors import Code, Outcome, StoreError
from bottomless.model.names import Uid
from bottomless_server.ingest.producers.producers import Appended
from bottomless_server.stores.other_writers import Found, Unheard
from unit.ingest.leaderless.harness import BOUNDS, Stores, WriterProcess, a_house, until
from unit.ingest.leaderless.making import an_append

MOMENT = BOUNDS.note_ms / 1000 + BOUNDS.check_seconds
LIMIT = BOUNDS.note_ms / 1000 + BOUNDS.put_seconds
SLOW = Passage(there_seconds=20.0)
NEVER = Passage(Mishap.LOSE_REQUEST, silence_seconds=60.0)
NO_REPLY = Passage(Mishap.LOSE_REPLY, silence_seconds=1.0)
LOST = Passage(Mishap.LOSE_REQUEST, silence_seconds=0.1)


def two_nodes() -> tuple[Stores, WriterProcess, WriterProcess]:
    stores, first = a_house()
    second = WriterProcess(stores, "ingest-1").start()
    until(stores, lambda: second.writer.run is not None)
    return stores, first, second


def an_older_copy(note: Passage = SLOW) -> tuple[Stores, WriterProcess, WriterProcess, Appended]:
    """The store lacks what the first node has acknowledged, and the note of that is on its way."""
    stores, first, second = two_nodes()
    copy = stores.coordination.copy()
    stores.trouble.next["drive.put"] = [Passage(), note]
    said = first.append(0, an_append(b"acknowledged"))
    assert isinstance(said, Appended)
    until(stores, lambda: not stores.trouble.next["drive.put"])
    stores.coordination.put_back(copy)
    return stores, first, second, said


@pytest.mark.parametrize("guarded", [True, False])
def test_without_its_guard_an_offset_is_given_twice(
    guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nobody(*_: object) -> dict[Uid, Found]:
        return {}

    if not guarded:
        remove(monkeypatch, "what other writers may know of, in a new run of the store", nobody)
    stores, _, second, said = an_older_copy()

    told = second.append(0, an_append(b"another"))
    if not guarded:
        assert isinstance(told, Appended)
        assert told.first_offset == said.first_offset
        return
    assert isinstance(told, StoreError)
    assert told.outcome is Outcome.NONE
    until(stores, lambda: bool(stores.notes()))
    stores.do(asyncio.sleep(MOMENT))
    told = second.append(0, an_append(b"another"))
    assert isinstance(told, StoreError)
    assert told.code is Code.COORDINATION_REGRESSED


def test_nor_does_the_node_itself_give_it_which_has_heard_that_the_store_went_back() -> None:
    """It begins anew only when the bucket says what it knows."""
    stores, first, _, _ = an_older_copy()
    for stream in (0, 1):
        told = first.append(stream, an_append(b"another"))
        assert isinstance(told, StoreError)
        assert told.code is Code.COORDINATION_REGRESSED
    until(stores, lambda: bool(stores.notes()))
    stores.do(asyncio.sleep(2 * MOMENT))
    assert stores.values(0) == stores.values(1) == []


def test_a_node_waits_for_the_notes_of_its_own_lost_instance() -> None:
    """They were left out, since they have its own address, and it gave offsets once more that it had
    acknowledged itself."""
    stores, first, _, said = an_older_copy()
    while not stores.notes():
        told = first.append(0, an_append(b"another"))
        assert isinstance(told, StoreError), (told, said)
        stores.do(asyncio.sleep(1))
    assert stores.values(0) == []


def a_lost_commit(*, told: bool) -> tuple[Stores, WriterProcess, WriterProcess]:
    """A record that readers saw, and of which its writer had no reply when the store was put back as it
    was before; its append was told so, or waits still."""
    stores, first, second = two_nodes()
    copy = stores.coordination.copy()
    stores.trouble.next["coordination.exec"] = [NO_REPLY]
    waiting = first.put(0, an_append(b"seen"))
    until(stores, lambda: stores.values(0) == [b"seen"])
    stores.trouble.always["coordination.watch"] = LOST
    stores.do(asyncio.sleep(BOUNDS.commit_seconds + 3 if told else 1))
    assert waiting.done() == told
    stores.trouble.always.clear()
    stores.coordination.put_back(copy)
    return stores, first, second


RUN_OF_COMMIT = "the run of the store, known before a lost commit is taken for none"
COMES_FIRST = "what may have been seen, committed again before anything else"


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        (None, False),
        (None, True),
        (RUN_OF_COMMIT, True),
        (COMES_FIRST, True),
    ],
)
def test_nobody_gives_the_offset_of_a_record_that_may_have_been_seen(
    missing: str | None, monkeypatch: pytest.MonkeyPatch, *, told: bool
) -> None:
    """Its reply was lost with the store that had it. It counted as never stored, so another record came
    to its offset, of another node or of its own."""
    if missing is not None:
        remove(monkeypatch, missing, lambda *_: False)
    stores, first, second = a_lost_commit(told=told)
    begun = stores.loop.now

    others = second.put(0, an_append(b"other"))
    own = first.put(0, an_append(b"own"))
    said = first.told(others, own)

    if missing is not None:
        assert stores.values(0)[0] != b"seen"
        return
    assert all(isinstance(one, Appended) for one in said)
    assert stores.values(0)[0] == b"seen"
    assert sorted(stores.values(0)) == [b"other", b"own", b"seen"]
    assert stores.loop.now - begun < 3 * MOMENT
    assert first.counts.instances == 1


@pytest.mark.parametrize("seed", range(6))
def test_whoever_appends_what_readers_saw_stays_at_its_offset_and_time(seed: int) -> None:
    """One node loses the reply of a commit to some streams, together with the run of the store that had
    it; both have appends under way then, and get others in the seconds after it."""
    random = Random(seed)
    stores, first, second = two_nodes()
    nodes, streams = [first, second], range(3)
    for number in range(random.randrange(4)):
        said = random.choice(nodes).append(random.choice(streams), an_append(b"before %d" % number))
        assert isinstance(said, Appended)
    copy = stores.coordination.copy()
    lost, other = random.sample(nodes, 2)
    stores.trouble.next["coordination.exec"] = [NO_REPLY]
    shared = random.sample(streams, random.randint(1, 3))
    waiting = [lost.put(one, an_append(b"seen %d" % one)) for one in shared]
    until(stores, lambda: all(b"seen %d" % one in stores.values(one) for one in shared))
    stores.trouble.always["coordination.watch"] = LOST
    under_way = [other.put(random.choice(streams), an_append(b"under way"))]
    stores.do(asyncio.sleep(random.choice([1.0, BOUNDS.commit_seconds + 3])))
    seen = [
        (stores.records(one), [entry.timestamp for entry in stores.entries(one)]) for one in streams
    ]
    stores.trouble.always.clear()
    stores.coordination.put_back(copy)

    for number in range(random.randrange(1, 6)):
        stores.do(asyncio.sleep(2 * random.random()))
        node = random.choice(nodes)
        under_way.append(node.put(random.choice(streams), an_append(b"after %d" % number)))
    lost.told(*waiting, *under_way)

    for one, (records, times) in zip(streams, seen, strict=True):
        assert stores.records(one)[: len(records)] == records
        assert [entry.timestamp for entry in stores.entries(one)][: len(times)] == times


def test_two_that_may_both_have_been_seen_do_not_wait_for_each_other() -> None:
    stores, first, second = two_nodes()
    copy = stores.coordination.copy()
    waiting = []
    for number, node in enumerate((first, second)):
        stores.trouble.next["coordination.exec"] = [NO_REPLY]
        waiting.append(node.put(number, an_append(b"seen")))
        until(stores, lambda number=number: stores.values(number) == [b"seen"])  # type: ignore[misc]
    stores.coordination.put_back(copy)
    begun = stores.loop.now

    assert all(isinstance(one, Appended) for one in first.told(*waiting))
    assert stores.loop.now - begun < 3 * MOMENT


def test_of_nodes_that_died_with_the_store_and_are_back_nobody_waits_for_notes() -> None:
    """Each waited for the other's dead writer, for as long as a put may take."""
    stores, first, second = two_nodes()
    stores.trouble.next["coordination.watch"] = [NEVER] * 8
    for node in (first, second):
        node.put(0, an_append(b"a"))
    stores.do(asyncio.sleep(2))
    first.process.kill()
    second.process.kill()
    stores.trouble.next.clear()
    stores.coordination.start_anew()
    begun = stores.loop.now

    again = [WriterProcess(stores, node.name).start() for node in (first, second)]
    until(stores, lambda: all(node.writer.run is not None for node in again))

    assert stores.loop.now - begun < MOMENT + 3


@pytest.mark.parametrize("guarded", [True, False])
def test_a_node_that_stops_leaves_the_record_of_an_older_copy_as_it_is(
    guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not guarded:
        guarded_record = (
            "the record of an instance that ends, which must not be older than what it wrote"
        )
        remove(monkeypatch, guarded_record, lambda *_: None)
    stores, node = a_house()
    copy = stores.coordination.copy()
    said = node.append(0, an_append(b"acknowledged"))
    assert isinstance(said, Appended)
    until(stores, lambda: bool(stores.notes()))
    stores.coordination.put_back(copy)
    node.drain()
    node.stop()

    told = WriterProcess(stores).start().append(0, an_append(b"another"))

    if not guarded:
        assert isinstance(told, Appended)
        assert told.first_offset == said.first_offset
        return
    assert isinstance(told, StoreError)
    assert told.code is Code.COORDINATION_REGRESSED


def test_another_run_with_all_that_was_acknowledged_costs_nodes_under_load_a_moment() -> None:
    """Each has an object that is not committed, and waits for the other to show that it lacks nothing."""
    stores, first, second = two_nodes()
    for node in (first, second):
        assert isinstance(node.append(0, an_append(b"a")), Appended)
    stores.trouble.always["coordination.watch"] = Passage(Mishap.LOSE_REQUEST, silence_seconds=0.1)
    waiting = [node.put(number, an_append(b"b")) for number, node in enumerate((first, second))]
    stores.do(asyncio.sleep(2))
    stores.trouble.always.clear()
    stores.coordination.start_anew()
    begun = stores.loop.now

    said = first.told(*waiting)

    assert all(isinstance(one, Appended) for one in said)
    assert MOMENT <= stores.loop.now - begun < MOMENT + 2
    assert (first.counts.instances, second.counts.instances) == (1, 1)


def test_of_a_writer_that_died_with_the_store_all_notes_have_come_after_a_put() -> None:
    stores, first, second = two_nodes()
    stores.trouble.next["coordination.watch"] = [NEVER] * 4
    first.put(0, an_append(b"a"))
    stores.do(asyncio.sleep(2))
    first.process.kill()
    stores.trouble.next.clear()
    stores.coordination.start_anew()
    begun = stores.loop.now
    while not isinstance(second.append(1, an_append(b"b")), Appended):
        assert stores.loop.now - begun < LIMIT + 5
    assert stores.loop.now - begun > MOMENT + 2


def test_nobody_waits_for_the_one_before_at_the_same_address() -> None:
    stores, first, _ = two_nodes()
    stores.trouble.next["coordination.watch"] = [NEVER] * 4
    first.put(0, an_append(b"a"))
    stores.do(asyncio.sleep(2))
    first.process.kill()
    stores.trouble.next.clear()
    stores.coordination.start_anew()
    begun = stores.loop.now
    again = WriterProcess(stores, first.name).start()
    until(stores, lambda: again.writer.run is not None)
    assert stores.loop.now - begun < MOMENT + 1


def test_a_new_connection_to_the_same_run_is_not_waited_with() -> None:
    stores, first, _ = two_nodes()
    assert isinstance(first.append(0, an_append(b"a")), Appended)
    until(stores, lambda: bool(stores.notes()))
    stores.coordination.connected_count += 1
    begun = stores.loop.now
    assert isinstance(first.append(0, an_append(b"b")), Appended)
    assert stores.loop.now - begun < 1


def test_a_writer_is_heard_of_once_its_record_has_another_attempt() -> None:
    unheard, one, other = Unheard(), Uid("1" * 32), Uid("2" * 32)

    def note(attempt: int, *, owes: bool = False, doubtful: bool = True) -> bool:
        return unheard.note({one: Found(attempt, "http://one", doubtful)}, owes=owes)

    assert unheard.note({one: Found(4, "http://one", True), other: Found(None, None, True)})
    assert unheard.note({one: Found(6, "http://one", True), other: Found(None, None, True)})
    assert not note(6)
    assert note(4), "as it was when it was looked at first"
    assert not note(4, doubtful=False)
    assert note(7), "it may have to repeat something"
    assert not note(7, owes=True), "so may who looks"
    assert unheard.note({Uid("3" * 32): Found(0, "http://three", True)})
    assert not unheard.note({})


def test_where_one_writer_of_an_address_is_heard_of_the_others_there_are_not_waited_for() -> None:
    unheard, dead, back = Unheard(), Uid("1" * 32), Uid("2" * 32)

    def note(attempt: int, url: str = "http://one") -> bool:
        return unheard.note({dead: Found(8, "http://one", True), back: Found(attempt, url, False)})

    assert note(2)
    assert note(4, "http://two")
    assert not note(4)
