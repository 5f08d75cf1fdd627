"""Times in the tail of a leaderless stream: found without reading thousands of entries."""

from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.leaderless import at_once
from unit.reader.leaderless import LeaderlessHarness, WatchedCoordination
from unit.reader.protocol import STREAM_ID

from bottomless.model.names import Uid
from bottomless_server.coordination.base import Changes, Member
from bottomless_server.leaderless.tail import Tail, TailEntry, new_tail
from bottomless_server.leaderless.tail_format import encode_entry
from bottomless_server.reader.leaderless import locate
from bottomless_server.reader.leaderless.locate import first_since
from bottomless_server.stores.tail_keys import tail_index_key

INSTANCE: Final = Uid("5" * 32)


def a_tail(counts: list[tuple[int, int]], first: int = 0) -> tuple[Tail, list[TailEntry]]:
    """A tail of entries with so many records, each so much later than the one before."""
    entries: list[TailEntry] = []
    offset, time = first, 1_000
    for number, (records, later) in enumerate(counts):
        offset, time = offset + records, time + later
        entries.append(
            TailEntry(offset, number + 1, time, 8 * (number + 1), INSTANCE, number, 256, 8, records)
        )
    tail = new_tail(generation=0, created_at=0, max_age_ms=1, next_offset=first)
    return tail._replace(next_offset=offset, entry_count=len(entries), last_timestamp=time), entries


def indexed(entries: list[TailEntry]) -> WatchedCoordination:
    coordination = WatchedCoordination()
    index = tail_index_key(STREAM_ID)
    members = [Member(index, encode_entry(entry), True) for entry in entries]
    coordination.write(Changes(members=members))
    return coordination


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([1, 2, 1_000_000]), st.integers(0, 3)), min_size=1),
    st.integers(0, 5),
    st.data(),
)
def test_it_is_the_entry_that_a_walk_finds(
    counts: list[tuple[int, int]], first: int, draw: st.DataObject
) -> None:
    tail, entries = a_tail(counts, first)
    wanted = draw.draw(st.integers(0, tail.last_timestamp))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(locate, "PAGE_COUNT", 2)
        found = at_once(first_since(indexed(entries), STREAM_ID, tail, wanted))
    assert found == next(entry for entry in entries if entry.timestamp >= wanted)


@pytest.mark.parametrize("records", [1, 2**32 - 1])
async def test_of_twenty_thousand_entries_few_are_read(records: int) -> None:
    tail, entries = a_tail([(records if n % 1_000 == 0 else 1, 1) for n in range(20_000)])
    coordination = indexed(entries)
    for number in (0, 255, 256, 9_999, 10_001, 19_999):
        coordination.index_reads = 0
        found = await first_since(coordination, STREAM_ID, tail, entries[number].timestamp)
        assert found == entries[number]
        assert coordination.index_reads <= 40


async def test_an_entry_that_went_meanwhile_is_no_reason_to_begin_later(
    leaderless: LeaderlessHarness,
) -> None:
    """What was pruned during the search may have been the first of that time."""
    leaderless.fill(50)
    await leaderless.upload(3)
    leaderless.coordination.before_index = leaderless.free
    located = await leaderless.wal.tail.locate(leaderless.facts(), 1_005)
    # The whole tail is late enough by now: what is before it is asked of the manifest.
    assert located.offset == located.bounds.local_first_offset == 30
    for timestamp, offset in ((1_005, 10), (1_010, 10), (1_031, 40), (1_040, 40), (2_000, 50)):
        page = await leaderless.read(f"timestamp:{timestamp}", limit=1)
        assert page["next_offset"] == min(offset + 1, 50)


async def test_a_time_after_the_last_record_is_nowhere(leaderless: LeaderlessHarness) -> None:
    assert (await leaderless.wal.tail.locate(leaderless.facts(), 0)).offset is None
    leaderless.fill(20)
    tail = leaderless.wal.tail
    assert (await tail.locate(leaderless.facts(), 1_010)).offset == 10
    assert (await tail.locate(leaderless.facts(), 1_011)).offset is None
