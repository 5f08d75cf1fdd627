"""What one transaction each makes of leaderless streams; `model/` has them in any order."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import orjson
import pytest
from support.guards import remove
from support.manifest import a_record
from unit.formats.examples import UID, a_piece, a_wal

from bottomless.errors import Code, Corrupt, NotFound, Unavailable
from bottomless.formats.keys import wal_key
from bottomless.model.chunk import AppendMode, TrackedEntry, TrackedKind
from bottomless.model.config import parse_stored_config
from bottomless.model.names import StreamId, Uid
from bottomless.model.stream import EpochStart, StreamState
from bottomless_server.coordination.base import (
    Changes,
    CoordinationConflict,
    CoordinationUnknown,
    Due,
    Member,
)
from bottomless_server.coordination.memory import MemoryCoordination
from bottomless_server.drives.memory import MemoryDrive
from bottomless_server.leaderless.attempts import AttemptNumbers
from bottomless_server.leaderless.decided import Decided, KnownName, NewKnown, parse_known_name
from bottomless_server.leaderless.instance import Loss, WalInstance, decode_instance
from bottomless_server.leaderless.tail import (
    UNSEEN,
    HeldMember,
    Tail,
    TailState,
    first_epoch,
)
from bottomless_server.leaderless.tail_changes import Accepted, Committed, Refusal, TailBounds
from bottomless_server.leaderless.tail_format import Known, decode_held
from bottomless_server.stores import releases, tails, wal
from bottomless_server.stores.lost_commits import Fate, decide_lost
from bottomless_server.stores.streams import GENERATION_KEY, Streams, stream_key
from bottomless_server.stores.tail_commits import Asked, Commit, change_known, commit
from bottomless_server.stores.tail_keys import (
    SILENT_KEY,
    entries_from,
    known_index_key,
    known_key,
    load_tails,
    tail_index_key,
    tail_key,
)

GENERATION = 1
LEASE_MS = 10_000
BOUNDS = TailBounds(2**40, 2**20)
IDS = [StreamId(f"0198d2a4-5b1e-7c3a-9a51-0f7e6f0d00{number:02x}") for number in range(4)]
LOADER = KnownName("loader-7", is_producer=True)
KEY = KnownName("0f" * 16, is_producer=False)
TRACKED = TrackedEntry(TrackedKind.PRODUCER, AppendMode.STRICT, 0, 7, 0, 0, 1, 0, 1, "loader-7")


class Stores:
    """Coordination with some leaderless streams, and one writer of them."""

    def __init__(self) -> None:
        self.coordination = MemoryCoordination(lambda: 1_000)
        self.generation(GENERATION)
        self.streams = Streams(self.coordination, frozenset({"leaderless"}))
        self.streams.generation = GENERATION
        self.lives = True
        self.drive = MemoryDrive(lambda: 0)
        self.numbers = self.new_numbers(UID)
        self.sequence = 0

    def generation(self, number: int) -> None:
        value = orjson.dumps({"generation": number, "bucket": True})
        self.coordination.write(Changes({GENERATION_KEY: value}))

    async def open(self, count: int = 1) -> None:
        for number in range(count):
            await tails.create(self.streams, self.record(number))
        await wal.begin(self.coordination, self.numbers, "http://ingest-0", LEASE_MS)

    def new_numbers(self, instance: Uid) -> AttemptNumbers:
        checked = self.coordination.connected_count
        return AttemptNumbers(instance, GENERATION, lambda: self.lives, checked)

    async def lapse(self) -> None:
        """The lease of the writer runs out."""
        self.lives = False
        await self.coordination.release(wal.live_key(UID), UID.encode())

    async def deletable(self) -> wal.Deletable:
        return await wal.deletable(self.drive, self.coordination, UID, GENERATION)

    def record(self, number: int = 0) -> Any:
        return a_record(
            stream_id=IDS[number],
            name=f"s{number}",
            config=parse_stored_config({"profile": "leaderless"}),
            generation=GENERATION,
            epoch=first_epoch(GENERATION),
            epochs=(EpochStart(first_epoch(GENERATION), 0),),
            owner_url=None,
            dirty=False,
            reserved_next=0,
        )

    async def commit(
        self,
        *numbers: int,
        known: Mapping[KnownName, NewKnown] | None = None,
        count: int = 2,
    ) -> Commit | Loss:
        """A flush with a piece of each of these streams."""
        found: list[Mapping[KnownName, Known | None]] = []

        def asked(place: int, number: int) -> Asked:
            piece = Accepted(UID, self.sequence, place, 1_024 + 64 * place, 64, count, 0)

            def decide(_: Tail, before: Mapping[KnownName, Known | None]) -> Decided:
                found.append(before)
                return Decided([piece], known or {})

            return Asked(IDS[number], list(known or {}), UNSEEN, decide)

        done = await commit(
            self.coordination,
            self.numbers,
            [asked(place, number) for place, number in enumerate(numbers)],
            sequence=self.sequence,
            clock=5_000 + self.sequence,
            settled=self.sequence + 1,
            next_sequence=self.sequence + 1,
            bounds=BOUNDS,
        )
        if isinstance(done, Commit):
            self.sequence += 1
        return done

    async def tail(self, number: int = 0) -> Tail:
        found = (await load_tails(self.coordination, [IDS[number]], GENERATION))[IDS[number]]
        assert isinstance(found, Tail)
        return found

    async def publish(self, next_offset: int, number: int = 0) -> None:
        await self.streams.update(
            IDS[number],
            lambda record: replace(record, published_next=next_offset, version=record.version + 1),
        )

    def held(self) -> list[HeldMember]:
        return [decode_held(one) for one in self.coordination.peek_members(wal.held_key(UID))]


@pytest.fixture
async def stores() -> Stores:
    made = Stores()
    await made.open(count=4)
    return made


async def test_a_commit_writes_tails_entries_what_holds_and_the_instance(stores: Stores) -> None:
    done = await stores.commit(0, 1)
    assert isinstance(done, Commit)
    assert (done.record.attempt, done.record.settled, done.record.reserved) == (2, 1, 1_024)
    for number in (0, 1):
        found = done.streams[IDS[number]]
        assert isinstance(found, Committed)
        assert await stores.tail(number) == found.tail
        assert await entries_from(stores.coordination, IDS[number], 0) == found.entries
    assert stores.held() == [HeldMember(0, shard, 5_000, 60_000, 1) for shard in (0, 1)]


async def test_a_stream_that_is_refused_leaves_the_others_alone(stores: Stores) -> None:
    """L7: one is fenced, one deleted, one damaged, and the fourth is stored."""

    def fence(record: Any) -> Any:
        return replace(record, config=record.config.model_copy(update={"fenced": True}))

    await tails.configure(stores.coordination, IDS[1], GENERATION, fence)
    stores.coordination.write(Changes({tail_key(IDS[2]): None, tail_key(IDS[3]): b"damaged"}))
    done = await stores.commit(0, 1, 2, 3)
    assert isinstance(done, Commit)
    assert [done.streams[one] for one in IDS[1:]] == [
        Refusal.FENCED,
        Refusal.GONE,
        Refusal.DAMAGED,
    ]
    assert (await stores.tail()).next_offset == 2
    assert stores.held() == [HeldMember(0, 0, 5_000, 60_000, 1)]
    loaded = await load_tails(stores.coordination, IDS, GENERATION)
    kinds = [TailState.OPEN, TailState.FENCED, None, Corrupt]
    for one, kind in zip(loaded.values(), kinds, strict=True):
        assert (one.state if isinstance(one, Tail) else one and type(one)) is kind


async def test_what_becomes_known_is_counted_and_can_be_forgotten(stores: Stores) -> None:
    new = {LOADER: NewKnown([TRACKED], 9_000), KEY: NewKnown([TRACKED], 8_000)}
    await stores.commit(0, known=new)
    await stores.commit(0, known=new)
    tail = await stores.tail()
    assert (tail.producer_count, tail.key_count) == (1, 1)
    assert stores.coordination.peek_members(known_index_key(IDS[0])) == [KEY.member, LOADER.member]
    due = Due(SILENT_KEY, IDS[0].encode() + LOADER.member, 9_000)
    assert due in await stores.coordination.due(SILENT_KEY, 9_000, 10)

    seen: list[Known | None] = []
    for _ in range(2):
        await change_known(
            stores.coordination,
            IDS[0],
            LOADER,
            GENERATION,
            lambda _, known: seen.append(known),
            [due],
        )
    assert seen == [Known(4, [TRACKED]), None]
    tail = await stores.tail()
    assert (tail.producer_count, tail.key_count, tail.next_offset) == (0, 1, 4)
    assert stores.coordination.peek_members(known_index_key(IDS[0])) == [KEY.member]
    assert await stores.coordination.due_at(SILENT_KEY, [due.member]) == [None]


async def test_an_epoch_is_raised_without_an_append(stores: Stores) -> None:
    raised = NewKnown([TRACKED._replace(producer_epoch=2)], 9_000)
    await change_known(stores.coordination, IDS[0], LOADER, GENERATION, lambda *_: raised)
    assert (await stores.tail()).producer_count == 1
    with pytest.raises(NotFound):
        await change_known(
            stores.coordination, StreamId(IDS[0][:-1] + "f"), LOADER, GENERATION, lambda *_: raised
        )


async def test_a_commit_is_one_attempt(stores: Stores) -> None:
    """Who asked decides whether the group is divided; nothing of a conflict is written."""
    transact = stores.coordination.watch

    def interfere(keys: Any, room: Any = None) -> Any:
        watched = transact(keys, room)
        value = stores.coordination.peek(tail_key(IDS[0]))
        stores.coordination.write(Changes({tail_key(IDS[0]): value}))
        return watched

    before = await stores.tail()
    stores.coordination.watch = interfere  # type: ignore[assignment, method-assign]
    with pytest.raises(CoordinationConflict):
        await stores.commit(0)
    assert await stores.tail() == before
    assert stores.held() == []


@pytest.mark.parametrize("cut", [asyncio.CancelledError, CoordinationUnknown])
async def test_nothing_is_committed_before_a_commit_that_was_cut_is_decided(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, cut: type[BaseException]
) -> None:
    """Also one that was cancelled after its EXEC: it is there all the same."""
    execute = stores.coordination.execute

    def cut_after(*asked: Any) -> bool:
        execute(*asked)
        raise cut("lost")

    monkeypatch.setattr(stores.coordination, "execute", cut_after)
    with pytest.raises(cut):
        await stores.commit(0)
    monkeypatch.undo()
    assert (await stores.tail()).next_offset == 2
    with pytest.raises(AssertionError, match="decided before"):
        await stores.commit(1)
    assert await decide_lost(stores.coordination, stores.numbers) is Fate.APPLIED
    stores.sequence = 1
    assert isinstance(await stores.commit(1), Commit)


async def test_a_prune_takes_out_what_ends_below_the_manifest(stores: Stores) -> None:
    for _ in range(5):
        await stores.commit(0)
    await stores.publish(7)
    pruned = await tails.prune(stores.coordination, IDS[0], GENERATION, limit=2)
    assert pruned is not None
    assert [entry.next_offset for entry in pruned.gone] == [2, 4]
    pruned = await tails.prune(stores.coordination, IDS[0], GENERATION)
    assert pruned is not None
    tail = await stores.tail()
    assert (tail.pruned_next, tail.published_next, tail.entry_count, tail.size) == (6, 7, 2, 128)
    assert [e.first_offset for e in await entries_from(stores.coordination, IDS[0], 0)] == [6, 8]
    assert [e.first_offset for e in await entries_from(stores.coordination, IDS[0], 8)] == [8]
    again = await tails.prune(stores.coordination, IDS[0], GENERATION)
    assert again is not None
    assert again.gone == []


@pytest.mark.parametrize("published", [1, 11])
async def test_a_prune_by_a_record_that_went_back_is_refused(
    stores: Stores, published: int
) -> None:
    for _ in range(5):
        await stores.commit(0)
    await stores.publish(2)
    await tails.prune(stores.coordination, IDS[0], GENERATION)
    await stores.publish(published)
    with pytest.raises(Unavailable) as raised:
        await tails.prune(stores.coordination, IDS[0], GENERATION)
    assert raised.value.code is Code.COORDINATION_REGRESSED


async def test_a_closed_tail_is_cleared_page_by_page(stores: Stores) -> None:
    await stores.commit(0, known={LOADER: NewKnown([TRACKED], 9_000)})
    for _ in range(4):
        await stores.commit(0)
    record = await stores.streams.load(IDS[0])
    buried = await tails.close(
        stores.streams,
        IDS[0],
        record.full_name,
        GENERATION,
        lambda one: replace(one, state=StreamState.DELETING),
        Changes(),
    )
    assert buried.state is StreamState.DELETING
    assert (await stores.tail()).state is TailState.CLOSED
    refused = await stores.commit(0)
    assert isinstance(refused, Commit)
    assert refused.streams[IDS[0]] is Refusal.GONE
    with pytest.raises(NotFound):
        await tails.configure(stores.coordination, IDS[0], GENERATION, lambda one: one)
    assert await tails.prune(stores.coordination, IDS[0], GENERATION) is None

    more = [
        await tails.clear_page(stores.coordination, IDS[0], GENERATION, limit=3) for _ in range(3)
    ]
    assert more == [True, False, False]
    for key in (tail_key(IDS[0]), known_key(IDS[0], LOADER)):
        assert stores.coordination.peek(key) is None
    for key in (tail_index_key(IDS[0]), known_index_key(IDS[0])):
        assert stores.coordination.peek_members(key) == []


async def test_a_configuration_changes_record_and_tail_together(stores: Stores) -> None:
    config = parse_stored_config(
        {"profile": "leaderless", "fenced": True, "fragment": {"max_age_ms": 10_000}}
    )
    record = await tails.configure(
        stores.coordination, IDS[0], GENERATION, lambda one: replace(one, config=config)
    )
    assert (await stores.streams.load(IDS[0])) == record
    tail = await stores.tail()
    assert (tail.state, tail.max_age_ms) == (TailState.FENCED, 10_000)


async def _decide_one(stores: Stores) -> Fate:
    stores.numbers.lose(stores.numbers.take(), 0)
    return await decide_lost(stores.coordination, stores.numbers)


EXECS: dict[str, Callable[[Stores], Awaitable[object]]] = {
    "begin": lambda s: wal.begin(s.coordination, s.new_numbers(Uid("e" * 32)), "", LEASE_MS),
    "commit": lambda s: s.commit(0),
    "settle": lambda s: wal.settle(s.coordination, UID, GENERATION),
    "note deleted": lambda s: wal.note_deleted(s.coordination, UID, GENERATION, 0),
    "prune": lambda s: tails.prune(s.coordination, IDS[0], GENERATION),
    "configure": lambda s: tails.configure(s.coordination, IDS[0], GENERATION, lambda one: one),
    "known": lambda s: change_known(
        s.coordination, IDS[0], LOADER, GENERATION, lambda *_: NewKnown([TRACKED], 1)
    ),
    "clear": lambda s: tails.clear_page(s.coordination, IDS[0], GENERATION),
    "load": lambda s: load_tails(s.coordination, IDS, GENERATION),
    "retire": lambda s: wal.retire(s.coordination, s.numbers),
    "deletable": lambda s: s.deletable(),
    "release": lambda s: releases.release(s.coordination, UID, GENERATION, {0: IDS}, range(16)),
    "close": lambda s: tails.close(
        s.streams, IDS[0], s.record().full_name, GENERATION, lambda one: one, Changes()
    ),
    "decide lost": _decide_one,
}


@pytest.mark.parametrize("name", EXECS)
@pytest.mark.parametrize("lost", [False, True])
async def test_nothing_is_written_in_another_generation(
    stores: Stores, name: str, lost: bool
) -> None:
    # Something that could be released, and then deleted.
    await stores.commit(0)
    await stores.publish(2)
    await tails.prune(stores.coordination, IDS[0], GENERATION)
    if name == "deletable":
        await releases.release(stores.coordination, UID, GENERATION, {0: IDS}, range(16))
    if lost:
        stores.coordination.write(Changes({GENERATION_KEY: None}))
    else:
        stores.generation(2)
    before = stores.coordination.copy()
    with pytest.raises(Unavailable) as raised:
        await EXECS[name](stores)
    assert raised.value.code is Code.COORDINATION_REGRESSED
    after = stores.coordination.copy()
    # A lease is no promise, and that of an instance that never began runs out.
    lease = wal.live_key(Uid("e" * 32))
    after.values.pop(lease, None)
    after.changes.pop(lease, None)
    assert after == before


async def test_without_the_generation_a_writer_of_before_commits_into_what_is_rebuilt(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores.coordination.write(Changes({GENERATION_KEY: None}))
    remove(monkeypatch, "the generation in each EXEC of leaderless streams", lambda *_: None)
    assert isinstance(await stores.commit(0), Commit)


async def test_an_instance_of_which_nothing_is_left_is_forgotten(stores: Stores) -> None:
    await stores.commit(0)
    coordination = stores.coordination
    assert (await wal.settle(coordination, UID, GENERATION) or None) is not None
    living = (await wal.load_instances(coordination))[UID]
    assert isinstance(living, WalInstance)
    assert living.settled == 1, "its writer lives"
    await stores.lapse()
    settled = await wal.settle(coordination, UID, GENERATION)
    assert settled is not None
    assert settled.settled == settled.reserved == 1_024
    assert await stores.commit(1) is Loss.SETTLED
    assert (await stores.deletable()).sequences == range(0), "an entry needs it"
    coordination.write(Changes(members=_out(coordination, wal.held_key(UID))))
    drive = stores.drive
    packed = a_wal(0, attempt=1)
    await drive.put(wal_key(UID, 0), packed.parts, packed.crc)
    found = await stores.deletable()
    assert found.sequences == range(1_024)
    assert await wal.delete_objects(drive, UID, found.sequences) == 1_024
    assert drive.object_keys == ()
    await wal.note_deleted(coordination, UID, GENERATION, 1_024)
    assert await wal.load_instances(coordination) == {}
    assert await stores.commit(1) is Loss.GONE
    assert await wal.settle(coordination, UID, GENERATION) is None
    assert (await stores.deletable()).sequences == range(0)
    await wal.note_deleted(coordination, UID, GENERATION, 1_024)


def _out(coordination: MemoryCoordination, key: str) -> list[Any]:
    return [Member(key, member, False) for member in coordination.peek_members(key)]


async def test_sequences_are_reserved_by_commits(stores: Stores) -> None:
    stores.sequence = 1_024 - 64 - 1
    done = await stores.commit(0)
    assert isinstance(done, Commit)
    assert done.record.reserved == 2_048
    value = stores.coordination.peek(wal.instance_key(UID))
    assert decode_instance(value or b"") == done.record


@pytest.mark.parametrize("count", [1, 400])
async def test_a_directory_is_read_without_the_pieces(count: int) -> None:
    """Also one that is larger than the first request."""
    drive = MemoryDrive(lambda: 0)
    packed = a_wal(pieces=[a_piece() for _ in range(count)])
    await drive.put(wal_key(UID, 5), packed.parts, packed.crc)
    directory = await wal.load_directory(drive, UID, 5)
    assert directory.header == packed.header
    assert directory.line(count - 1) == packed.lines[-1]
    drive.damage(wal_key(UID, 5), b"".join(packed.parts)[: packed.header.data_position])
    assert (await wal.load_directory(drive, UID, 5)).header == packed.header


def test_names_come_back_from_their_index() -> None:
    assert [parse_known_name(one.member) for one in (LOADER, KEY)] == [LOADER, KEY]
    assert stream_key(IDS[0]) != tail_key(IDS[0])
