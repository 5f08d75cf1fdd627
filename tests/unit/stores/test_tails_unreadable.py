"""One value of leaderless streams that is damaged, or of a later release, beside sound ones: its own
stream is refused, or its own instance, and no other.

The tests had one damaged tail in one commit, and asserted of the question for several that it fails
for all. So every reader of tails, every release and every walk over instances ended at such a value,
and its stream could not be deleted.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from support.guards import remove
from unit.formats.examples import UID
from unit.stores.test_tails import GENERATION, IDS, LOADER, TRACKED, Stores

from bottomless.errors import Corrupt, NotServed
from bottomless.formats.checks import crc32c
from bottomless.model.names import Uid
from bottomless.model.stream import StreamState
from bottomless_server.coordination.base import Changes, Decide, Member, Values
from bottomless_server.leaderless.decided import NewKnown
from bottomless_server.leaderless.instance import WalInstance
from bottomless_server.leaderless.tail import Tail
from bottomless_server.leaderless.tail_changes import Committed, Refusal
from bottomless_server.leaderless.tail_format import encode_tail
from bottomless_server.stores import releases, tails, wal
from bottomless_server.stores.tail_commits import Commit
from bottomless_server.stores.tail_keys import (
    known_index_key,
    known_key,
    load_tails,
    tail_index_key,
    tail_key,
)

T = TypeVar("T")

OTHER = Uid("ee" * 16)


def of_a_later_version(tail: Tail) -> bytes:
    raw = bytearray(encode_tail(tail)[:-4])
    raw[4] += 1
    return bytes(raw) + crc32c(raw).to_bytes(4, "little")


BAD: dict[str, Callable[[Tail], bytes]] = {
    "damaged": lambda tail: encode_tail(tail)[:-1] + b"?",
    "of a later release": of_a_later_version,
}


@pytest.fixture(params=BAD)
async def stores(request: pytest.FixtureRequest) -> Stores:
    """Three streams with an entry each, of which the last cannot be read."""
    made = Stores()
    await made.open(count=3)
    await made.commit(0, 1, 2, known={LOADER: NewKnown([TRACKED], 9_000)})
    bad = BAD[request.param](await made.tail(2))
    made.coordination.write(Changes({tail_key(IDS[2]): bad}))
    return made


async def test_the_tails_of_the_others_are_told(stores: Stores) -> None:
    loaded = await load_tails(stores.coordination, IDS, GENERATION)

    kinds = [type(one) for one in loaded.values()]
    assert kinds == [Tail, Tail, Corrupt, type(None)]


async def test_without_that_nobody_is_told_of_any_tail(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = "what cannot be read of one stream or instance, told beside the others"
    remove(monkeypatch, guard, lambda decode, value: decode(value))

    with pytest.raises(Corrupt):
        await load_tails(stores.coordination, IDS, GENERATION)


async def test_a_commit_to_the_others_is_written(stores: Stores) -> None:
    done = await stores.commit(0, 1, 2)

    assert isinstance(done, Commit)
    assert isinstance(done.streams[IDS[0]], Committed)
    assert done.streams[IDS[2]] is Refusal.DAMAGED


async def test_what_the_others_need_no_more_is_released_and_nothing_of_its_own(
    stores: Stores,
) -> None:
    await stores.commit(0, 1)
    for number in (0, 1):
        await stores.publish(4, number)
        await tails.prune(stores.coordination, IDS[number], GENERATION)

    streams = {0: IDS[:3], 1: IDS[:2]}
    released = await releases.release(stores.coordination, UID, GENERATION, streams, range(16))

    assert [(one.sequence, one.shard) for one in released.gone] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert list(released.unreadable) == [IDS[2]]
    assert [(one.sequence, one.shard) for one in stores.held()] == [(0, 2)]


async def test_an_entry_that_cannot_be_read_keeps_what_its_stream_may_need(
    stores: Stores,
) -> None:
    index = tail_index_key(IDS[1])
    stores.coordination.write(Changes(members=[Member(index, b"no entry", True)]))
    await stores.publish(2, 0)
    await tails.prune(stores.coordination, IDS[0], GENERATION)

    released = await releases.release(stores.coordination, UID, GENERATION, {0: IDS[:2]}, [0, 1])

    assert [one.shard for one in released.gone] == [0]
    assert list(released.unreadable) == [IDS[1]]


async def test_a_tail_that_is_lost_alone_lets_nothing_of_its_stream_go(stores: Stores) -> None:
    await stores.commit(0, 1)
    stores.coordination.write(Changes({tail_key(IDS[1]): None}))

    released = await releases.release(stores.coordination, UID, GENERATION, {1: IDS[1:2]}, [1])

    assert released.gone == []
    assert list(released.unreadable) == [IDS[1]]


async def test_without_that_look_what_a_lost_tail_needs_is_released(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch, "the stream record where a tail is gone", lambda _: None)
    await stores.commit(0, 1)
    stores.coordination.write(Changes({tail_key(IDS[1]): None}))

    released = await releases.release(stores.coordination, UID, GENERATION, {1: IDS[1:2]}, [1])

    assert [(one.sequence, one.shard) for one in released.gone] == [(1, 1)]


async def test_a_lost_entry_lets_nothing_of_its_stream_go(stores: Stores) -> None:
    await lose_first_entry(stores)

    released = await releases.release(stores.coordination, UID, GENERATION, {1: IDS[:1]}, [0])

    assert released.gone == []
    assert list(released.unreadable) == [IDS[0]]


async def test_without_that_look_what_a_lost_entry_needs_is_released(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch, "a hole in the index of a tail", lambda *_: True)
    await lose_first_entry(stores)

    released = await releases.release(stores.coordination, UID, GENERATION, {1: IDS[:1]}, [0])

    assert [(one.sequence, one.shard) for one in released.gone] == [(1, 0)]


async def lose_first_entry(stores: Stores) -> None:
    """As nobody of the product does: of two that are left of the first stream."""
    await stores.publish(2, 0)
    await tails.prune(stores.coordination, IDS[0], GENERATION)
    for _ in range(2):
        await stores.commit(0)
    index = tail_index_key(IDS[0])
    gone = stores.coordination.peek_members(index)[0]
    stores.coordination.write(Changes(members=[Member(index, gone, False)]))


async def test_many_members_go_in_several_transactions_and_none_beyond_is_read(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(releases, "EXEC_COUNT_MAX", 2)
    for _ in range(4):
        await stores.commit(0)
    written: list[int] = []
    transact = stores.coordination.transact

    async def counted(keys: Sequence[str], decide: Decide[T], **given: Any) -> T:
        def counts(values: Values) -> tuple[Changes, T]:
            changes, told = decide(values)
            written.append(len(changes.members))
            return changes, told

        return await transact(keys, counts, **given)

    stores.coordination.transact = counted  # type: ignore[assignment, method-assign]
    await stores.publish(8, 0)
    await tails.prune(stores.coordination, IDS[0], GENERATION)
    written.clear()

    streams = dict.fromkeys((0, 1, 2), IDS[:1])
    released = await releases.release(stores.coordination, UID, GENERATION, streams, [0])

    assert [one.sequence for one in released.gone] == [0, 1, 2]
    assert written == [2, 1]


async def test_its_stream_can_be_deleted(stores: Stores) -> None:
    record = await stores.streams.load(IDS[2])
    stores.coordination.write(
        Changes(members=[Member(known_index_key(IDS[2]), b"\xff no name", True)])
    )

    await _close(stores, record)

    assert stores.coordination.peek(tail_key(IDS[2])) is None
    refused = await stores.commit(0, 2)
    assert isinstance(refused, Commit)
    assert refused.streams[IDS[2]] is Refusal.GONE
    await _clear(stores)


async def test_a_tail_that_cannot_be_read_any_more_is_cleared_if_it_was_closed(
    stores: Stores,
) -> None:
    bad = stores.coordination.peek(tail_key(IDS[2]))
    with pytest.raises(Corrupt):
        await tails.clear_page(stores.coordination, IDS[2], GENERATION)
    assert stores.coordination.peek_members(tail_index_key(IDS[2])), "it is in use"

    await _close(stores, await stores.streams.load(IDS[2]))
    stores.coordination.write(Changes({tail_key(IDS[2]): bad}))

    await _clear(stores)


async def _close(stores: Stores, record: Any) -> None:
    await tails.close(
        stores.streams,
        IDS[2],
        record.full_name,
        GENERATION,
        lambda one: replace(one, state=StreamState.DELETING),
        Changes(),
    )


async def _clear(stores: Stores) -> None:
    while await tails.clear_page(stores.coordination, IDS[2], GENERATION, limit=1):
        pass
    for key in (tail_index_key(IDS[2]), known_index_key(IDS[2])):
        assert stores.coordination.peek_members(key) == []
    for key in (tail_key(IDS[2]), known_key(IDS[2], LOADER)):
        assert stores.coordination.peek(key) is None


@pytest.mark.parametrize(("value", "error"), [(b"damaged", Corrupt), (b'{"format":2}', NotServed)])
async def test_an_instance_that_cannot_be_read_stands_beside_the_others(
    value: bytes, error: type[Corrupt]
) -> None:
    stores = Stores()
    await stores.open()
    await wal.begin(stores.coordination, stores.new_numbers(OTHER), "u", 10_000)
    stores.coordination.write(Changes({wal.instance_key(OTHER): value}))

    found = await wal.load_instances(stores.coordination)

    assert isinstance(found[UID], WalInstance)
    assert type(found[OTHER]) is error


async def test_what_cannot_be_read_of_what_holds_stays_and_stops_no_release() -> None:
    stores = Stores()
    await stores.open()
    await stores.commit(0)
    key = wal.held_key(UID)
    [good] = stores.coordination.peek_members(key)
    # In bytes that this release leaves unread a later one may have written something.
    other = good[:9] + b"\x01" + good[10:]
    odd = b"\xff" * 3
    members = [Member(key, good, False), Member(key, other, True), Member(key, odd, True)]
    stores.coordination.write(Changes(members=members))
    await stores.publish(2)
    await tails.prune(stores.coordination, IDS[0], GENERATION)

    released = await releases.release(stores.coordination, UID, GENERATION, {0: IDS[:1]}, range(16))

    assert [one.sequence for one in released.gone] == [0]
    assert stores.coordination.peek_members(key) == [odd]
    with pytest.raises(Corrupt):
        await stores.deletable()
