"""Coordination that is emptied, or put back as an older copy of the same generation, costs nothing.

`model/` was blind to all of it: its coordination was never lost, and what was looked at twice was always
of one store. Now runs of it have a loss (`LossKind`); here are the orders that it found.
"""

from collections.abc import Mapping
from typing import Any

import pytest
from support.guards import remove
from unit.formats.examples import a_piece
from unit.stores.test_tails import BOUNDS, GENERATION, IDS, LEASE_MS, Stores

from bottomless.errors import Code, Unavailable
from bottomless.formats.keys import wal_key
from bottomless.formats.wal import pack_wal
from bottomless.model.names import Uid
from bottomless.model.wal import Note
from bottomless_server.coordination.base import Changes
from bottomless_server.leaderless.attempts import AttemptNumbers
from bottomless_server.leaderless.decided import Decided
from bottomless_server.leaderless.tail import UNSEEN, SeenTail
from bottomless_server.leaderless.tail_changes import Accepted, Committed, seen_of
from bottomless_server.stores import wal
from bottomless_server.stores.lost_commits import decide_lost
from bottomless_server.stores.tail_commits import Asked, Commit, commit
from bottomless_server.stores.wal_check import Unchecked, check_wal

A, B, C = (Uid(one * 16) for one in ("ab", "ba", "cc"))


class Nodes(Stores):
    """Streams, and writers that put objects which say what their coordination had."""

    async def begun(self, instance: Uid) -> AttemptNumbers:
        numbers = self.new_numbers(instance)
        await wal.begin(self.coordination, numbers, "http://ingest-0", LEASE_MS)
        return numbers

    async def put(self, numbers: AttemptNumbers, sequence: int, notes: list[Note]) -> None:
        packed = pack_wal(
            numbers.instance,
            sequence,
            [a_piece(IDS[0])],
            notes,
            noted_below=sequence,
            attempt=numbers.attempt,
            created_at=0,
            generation=GENERATION,
        )
        await self.drive.put(wal_key(numbers.instance, sequence), packed.parts, packed.crc)

    async def give(
        self,
        numbers: AttemptNumbers,
        sequence: int,
        *streams: int,
        seen: Mapping[int, SeenTail] | None = None,
    ) -> Commit:
        def asked(number: int) -> Asked:
            piece = Accepted(numbers.instance, sequence, number, 1_024 + 64 * number, 64, 2, 0)
            before = (seen or {}).get(number, UNSEEN)
            return Asked(IDS[number], [], before, lambda *_: Decided([piece], {}))

        done = await commit(
            self.coordination,
            numbers,
            [asked(number) for number in streams],
            sequence=sequence,
            clock=5_000,
            settled=sequence + 1,
            next_sequence=sequence + 1,
            bounds=BOUNDS,
        )
        assert isinstance(done, Commit)
        return done

    async def check(self) -> int:
        return await check_wal(self.drive, self.coordination, GENERATION)


@pytest.fixture
async def nodes() -> Nodes:
    made = Nodes()
    await made.open(count=2)
    return made


def regressed(raised: pytest.ExceptionInfo[Unavailable]) -> bool:
    return raised.value.code is Code.COORDINATION_REGRESSED


@pytest.mark.parametrize("guarded", [True, False])
async def test_nothing_may_go_that_a_store_did_not_hold_which_was_emptied_meanwhile(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    """The objects with their notes were all that a rebuild had, and the vacuum deleted them."""
    for _ in range(5):
        await nodes.commit(0)
    members = nodes.coordination.members

    async def emptied(*asked: Any) -> list[bytes]:
        nodes.coordination.lose()
        return await members(*asked)

    monkeypatch.setattr(nodes.coordination, "members", emptied)
    if guarded:
        with pytest.raises(Unavailable) as raised:
            await nodes.deletable()
        assert regressed(raised)
        return

    async def believed(*asked: Any) -> Any:
        return asked[-1]

    remove(monkeypatch, "the instance, looked at again after what is held", believed)
    assert (await nodes.deletable()).sequences == range(5)


async def test_nothing_may_go_after_a_look_at_two_states_of_a_store(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = nodes.coordination.copy()
    await nodes.commit(0)
    members = nodes.coordination.members

    async def put_back(*asked: Any) -> list[bytes]:
        nodes.coordination.put_back(copy)
        return await members(*asked)

    monkeypatch.setattr(nodes.coordination, "members", put_back)
    with pytest.raises(Unavailable) as raised:
        await nodes.deletable()
    assert regressed(raised)


@pytest.mark.parametrize("guarded", [True, False])
async def test_what_an_older_copy_does_not_hold_is_not_deleted_after_its_writer_is_settled(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    """No lease is held in a copy, so each writer there seems to be dead."""
    await nodes.commit()
    copy = nodes.coordination.copy()
    for sequence in range(1, 4):
        await nodes.put(nodes.numbers, sequence, [])
        await nodes.commit(0)
    nodes.coordination.put_back(copy)
    await nodes.lapse()
    settled = await wal.settle(nodes.coordination, nodes.numbers.instance, GENERATION)
    assert settled is not None
    assert settled.settled == settled.reserved
    if guarded:
        with pytest.raises(Unavailable) as raised:
            await nodes.deletable()
        assert regressed(raised)
        return

    async def unlooked(*_: Any) -> None:
        pass

    remove(monkeypatch, "the newest object of an instance that others settled", unlooked)
    assert 1 in (await nodes.deletable()).sequences


async def test_a_dead_writer_of_a_whole_store_goes_also_where_its_newest_object_is_damaged(
    nodes: Nodes,
) -> None:
    for sequence in range(2):
        await nodes.put(nodes.numbers, sequence, [])
        await nodes.commit()
    nodes.drive.damage(wal_key(nodes.numbers.instance, 1), b"damaged")
    await nodes.lapse()
    await wal.settle(nodes.coordination, nodes.numbers.instance, GENERATION)
    assert (await nodes.deletable()).sequences == range(1_024)


async def test_a_writer_that_lives_does_not_begin_anew_in_a_copy_of_before_it_began(
    nodes: Nodes,
) -> None:
    copy = nodes.coordination.copy()
    numbers = await nodes.begun(A)
    nodes.coordination.put_back(copy)
    numbers.checked = nodes.coordination.connected_count
    with pytest.raises(Unavailable) as raised:
        await nodes.give(numbers, 0, 0)
    assert regressed(raised)
    numbers.lose(numbers.take(), 0)
    with pytest.raises(Unavailable) as raised:
        await decide_lost(nodes.coordination, numbers)
    assert regressed(raised)


@pytest.mark.parametrize("guarded", [True, False])
async def test_one_tail_that_went_back_ends_the_exec_of_all(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    """It was refused for itself alone, and the others got offsets that were given already."""
    copy = nodes.coordination.copy()
    done = (await nodes.give(await nodes.begun(A), 0, 0)).streams[IDS[0]]
    assert isinstance(done, Committed)
    seen = {0: seen_of(done.tail)}
    await nodes.give(await nodes.begun(B), 0, 1)
    nodes.coordination.put_back(copy)
    later = await nodes.begun(C)
    before = nodes.coordination.copy()
    if guarded:
        with pytest.raises(Unavailable) as raised:
            await nodes.give(later, 0, 0, 1, seen=seen)
        assert regressed(raised)
        assert nodes.coordination.copy() == before
        return
    remove(monkeypatch, "a tail that went back ends the whole EXEC", lambda *_: False)
    again = (await nodes.give(later, 0, 0, 1, seen=seen)).streams[IDS[1]]
    assert isinstance(again, Committed)
    assert again.entries[0].first_offset == 0, "the second time"


async def test_nothing_is_committed_to_a_store_that_was_not_compared_with_the_bucket(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever commits to streams of which it has seen nothing cannot tell a copy by itself."""
    writer, other = nodes.numbers, await nodes.begun(A)
    copy = nodes.coordination.copy()
    for sequence in range(2):
        await nodes.put(other, sequence, [])
        await nodes.give(other, sequence, 1)
    nodes.coordination.put_back(copy)
    with pytest.raises(Unchecked):
        await nodes.give(writer, 0, 1)
    with pytest.raises(Unavailable) as raised:
        await nodes.check()
    assert regressed(raised)
    remove(monkeypatch, "the run of the store that was compared with the bucket", lambda *_: None)
    again = (await nodes.give(writer, 0, 1)).streams[IDS[1]]
    assert isinstance(again, Committed)
    assert again.entries[0].first_offset == 0, "the second time"


async def test_a_copy_that_lacks_nothing_is_gone_on_with(nodes: Nodes) -> None:
    await nodes.put(nodes.numbers, 0, [])
    await nodes.commit(0)
    await nodes.put(nodes.numbers, 1, [])
    nodes.coordination.put_back(nodes.coordination.copy())
    nodes.numbers.checked = await nodes.check()
    assert isinstance(await nodes.commit(0), Commit)


async def test_notes_tell_a_copy_of_before_the_instance_began(nodes: Nodes) -> None:
    copy = nodes.coordination.copy()
    other = await nodes.begun(A)
    await nodes.put(other, 0, [])
    done = (await nodes.give(other, 0, 0)).streams[IDS[0]]
    assert isinstance(done, Committed)
    await nodes.put(other, 1, [note for _, note in done.notes])
    assert await nodes.check() == 1
    nodes.coordination.put_back(copy)
    with pytest.raises(Unavailable) as raised:
        await nodes.check()
    assert regressed(raised)


async def test_one_instance_that_cannot_be_read_does_not_keep_a_service_from_starting(
    nodes: Nodes,
) -> None:
    one, other = await nodes.begun(A), await nodes.begun(B)
    for numbers in (one, other):
        await nodes.give(numbers, 0, 0)
        await nodes.put(numbers, 1, [])
    nodes.coordination.write(Changes({wal.instance_key(A): b"damaged"}))
    assert await nodes.check() == nodes.coordination.connected_count

    # The others are compared all the same.
    copy = nodes.coordination.copy()
    await nodes.give(other, 1, 0)
    await nodes.put(other, 2, [])
    nodes.coordination.put_back(copy)
    with pytest.raises(Unavailable) as raised:
        await nodes.check()
    assert regressed(raised)
