"""What each transaction of leaderless streams looks at, one by one: each of these was not missed when it
was taken out of the code, since the tests had only orders of events in which it did not matter."""

from dataclasses import replace
from typing import Any

import pytest
from support.guards import remove
from unit.formats.examples import UID
from unit.stores.test_tails import (
    BOUNDS,
    GENERATION,
    IDS,
    LEASE_MS,
    LOADER,
    TRACKED,
    Stores,
)

from bottomless.errors import Code, Unavailable
from bottomless.model.config import parse_stored_config
from bottomless.model.names import StreamId, StreamName, Uid
from bottomless_server.coordination.base import Changes, CoordinationUnavailable
from bottomless_server.coordination.memory import Watched
from bottomless_server.leaderless.decided import Decided, NewKnown
from bottomless_server.leaderless.instance import Loss, WalInstance, encode_instance
from bottomless_server.leaderless.tail import UNSEEN
from bottomless_server.leaderless.tail_changes import Accepted, Refusal
from bottomless_server.leaderless.tail_format import encode_tail
from bottomless_server.stores import tails, wal
from bottomless_server.stores.lost_commits import decide_lost
from bottomless_server.stores.tail_commits import Asked, Commit, change_known, commit
from bottomless_server.stores.tail_keys import tail_key


@pytest.fixture
async def stores() -> Stores:
    made = Stores()
    await made.open(count=2)
    return made


def regressed(raised: pytest.ExceptionInfo[Unavailable]) -> bool:
    return raised.value.code is Code.COORDINATION_REGRESSED


async def instance_of(stores: Stores) -> WalInstance:
    found = (await wal.load_instances(stores.coordination))[UID]
    assert isinstance(found, WalInstance)
    return found


def write_instance(stores: Stores, record: WalInstance) -> None:
    stores.coordination.write(Changes({wal.instance_key(UID): encode_instance(record)}))


@pytest.mark.parametrize("changed", [{"attempt": 1}, {"generation": 2}])
async def test_a_lost_commit_is_not_decided_by_an_older_record(
    stores: Stores, changed: dict[str, Any]
) -> None:
    await stores.commit(0)
    await stores.commit(0)
    stores.numbers.lose(stores.numbers.take(), 0)
    write_instance(stores, replace(await instance_of(stores), **changed))
    with pytest.raises(Unavailable) as raised:
        await decide_lost(stores.coordination, stores.numbers)
    assert regressed(raised)


async def test_a_writer_that_takes_its_lease_back_meanwhile_is_not_settled(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stores.lapse()
    watch = stores.coordination.watch

    def taken_back(*asked: Any) -> Any:
        watched = watch(*asked)
        if stores.coordination.peek(wal.live_key(UID)) is None:
            stores.coordination.write(Changes({wal.live_key(UID): UID.encode()}))
        return watched

    monkeypatch.setattr(stores.coordination, "watch", taken_back)
    await wal.settle(stores.coordination, UID, GENERATION)
    assert (await instance_of(stores)).settled == 0


async def test_the_record_of_a_writer_that_lives_stays_when_all_its_objects_are_gone(
    stores: Stores,
) -> None:
    write_instance(stores, replace(await instance_of(stores), settled=1_024))
    await wal.note_deleted(stores.coordination, UID, GENERATION, 1_024)
    assert (await instance_of(stores)).deleted == 1_024
    await stores.lapse()
    await wal.note_deleted(stores.coordination, UID, GENERATION, 1_024)
    assert await wal.load_instances(stores.coordination) == {}


async def test_what_holds_an_object_has_the_age_of_the_most_hurried_stream(stores: Stores) -> None:
    hurried = StreamId(IDS[0][:-2] + "10")
    config = parse_stored_config({"profile": "leaderless", "fragment": {"max_age_ms": 10_000}})
    record = replace(stores.record(), stream_id=hurried, name=StreamName("hurried"), config=config)
    await tails.create(stores.streams, record)

    def asked(place: int, stream_id: StreamId) -> Asked:
        piece = Accepted(UID, 0, place, 1_024 + 64 * place, 64, 2, 0)
        return Asked(stream_id, [], UNSEEN, lambda *_: Decided([piece], {}))

    for sequence, pair in enumerate([(IDS[0], hurried), (hurried, IDS[0])]):
        await commit(
            stores.coordination,
            stores.numbers,
            [asked(place, stream_id) for place, stream_id in enumerate(pair)],
            sequence=0,
            clock=5_000 + sequence,
            settled=0,
            next_sequence=1,
            bounds=BOUNDS,
        )
    assert [(one.max_age_ms, one.entry_count) for one in stores.held()] == [(10_000, 2)] * 2


async def test_a_stream_in_use_is_never_cleared(stores: Stores) -> None:
    before = stores.coordination.copy()
    with pytest.raises(AssertionError, match="in use"):
        await tails.clear_page(stores.coordination, IDS[0], GENERATION)
    assert stores.coordination.copy() == before


async def test_nothing_becomes_known_of_a_tail_of_another_generation(stores: Stores) -> None:
    tail = await stores.tail()
    stores.coordination.write(Changes({tail_key(IDS[0]): encode_tail(tail._replace(generation=2))}))
    with pytest.raises(Unavailable) as raised:
        await change_known(
            stores.coordination, IDS[0], LOADER, GENERATION, lambda *_: NewKnown([TRACKED], 1)
        )
    assert regressed(raised)


async def test_nothing_is_committed_of_what_was_not_reserved(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It raised what is reserved, and a writer that was settled went on above it."""
    stores.sequence = 5_000
    before = stores.coordination.copy()
    with pytest.raises(AssertionError, match="not reserved"):
        await stores.commit(0)
    assert stores.coordination.copy() == before
    remove(monkeypatch, "the reserved sequences in the EXEC of a commit", lambda *_: True)
    assert isinstance(await stores.commit(0), Commit)


async def test_an_object_that_was_not_given_yet_is_not_committed(stores: Stores) -> None:
    piece = Accepted(UID, 7, 0, 1_024, 64, 2, 0)
    with pytest.raises(AssertionError, match="not given"):
        await commit(
            stores.coordination,
            stores.numbers,
            [Asked(IDS[0], [], UNSEEN, lambda *_: Decided([piece], {}))],
            sequence=0,
            clock=5_000,
            settled=0,
            next_sequence=7,
            bounds=BOUNDS,
        )


async def test_a_new_instance_is_never_settled_before_its_writer_holds_the_lease(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record came first, and a pass of the vacuum in between settled it."""
    settled = await wal.settle(stores.coordination, UID, GENERATION)
    assert settled is not None
    assert settled.settled == 0

    async def held(*_: Any) -> None:
        pass

    monkeypatch.setattr(stores.coordination, "hold", held)
    late = Uid("ab" * 16)
    with pytest.raises(CoordinationUnavailable):
        await wal.begin(stores.coordination, stores.new_numbers(late), "", LEASE_MS)
    assert late not in await wal.load_instances(stores.coordination)


async def test_a_writer_that_ends_leaves_nothing_to_settle(stores: Stores) -> None:
    await stores.commit(0)
    await wal.retire(stores.coordination, stores.numbers)
    record = await instance_of(stores)
    assert (record.settled, record.attempt) == (record.reserved, stores.numbers.attempt)
    assert stores.coordination.peek(wal.live_key(UID)) is None
    assert await stores.commit(0) is Loss.SETTLED
    await wal.retire(stores.coordination, stores.numbers)


async def test_an_end_that_meets_another_exec_of_its_writer_has_the_higher_number(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was tried again with its first number, and the record went back: an object that was sealed
    with the higher one would have proved for ever that coordination is an older copy."""
    execute, between = stores.coordination.execute, list[int]()

    def meet(watched: Watched, changes: Changes) -> bool:
        if not between:
            between.append(stores.numbers.take())
            record = WalInstance("", GENERATION, 1_024, settled=1, attempt=between[0])
            write_instance(stores, record)
        return execute(watched, changes)

    monkeypatch.setattr(stores.coordination, "execute", meet)
    await wal.retire(stores.coordination, stores.numbers)
    record = await instance_of(stores)
    assert record.settled == record.reserved
    assert record.attempt == stores.numbers.attempt > between[0]


@pytest.mark.parametrize("fenced", [True, False])
async def test_a_repeat_is_answered_also_where_nothing_new_is_taken(
    stores: Stores, fenced: bool
) -> None:
    """A client whose answer was lost learns its offsets, though its stream is fenced or full."""

    def fence(record: Any) -> Any:
        return replace(record, config=record.config.model_copy(update={"fenced": True}))

    if fenced:
        await tails.configure(stores.coordination, IDS[0], GENERATION, fence)
    piece = Accepted(UID, 0, 0, 1_024, 64, 2, 0)
    bounds = BOUNDS if fenced else BOUNDS._replace(size_max=0)
    done = await commit(
        stores.coordination,
        stores.numbers,
        [Asked(IDS[0], [], UNSEEN, lambda *_: Decided([piece], {}, {"repeat of": 7}))],
        sequence=0,
        clock=5_000,
        settled=1,
        next_sequence=1,
        bounds=bounds,
    )
    assert isinstance(done, Commit)
    assert done.streams[IDS[0]] is (Refusal.FENCED if fenced else Refusal.FULL)
    assert done.answers == {IDS[0]: {"repeat of": 7}}
    assert (await stores.tail()).next_offset == 0
