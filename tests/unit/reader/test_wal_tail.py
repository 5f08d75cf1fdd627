"""The tail of a leaderless stream, as a reader sees it that was not there when it was written."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from structlog.testing import capture_logs
from support.guards import remove
from unit.reader.harness import Sent, a_chunk, a_text, shown
from unit.reader.leaderless import EPOCH, LeaderlessHarness
from unit.reader.protocol import STREAM_ID

from bottomless.errors import Code, Corrupt, NotFound
from bottomless.formats.chunk import HEADER_SIZE as CHUNK_HEADER_SIZE
from bottomless.formats.chunk import decode_header, encode_header, split_chunks
from bottomless.formats.wal import HEADER_SIZE, LINE_SIZE, decode_directory
from bottomless.model.chunk import ChunkFlags
from bottomless.model.limits import KIB, MIB
from bottomless.model.names import StreamId
from bottomless_server.coordination.base import Coordination
from bottomless_server.core.not_found import stream_not_found
from bottomless_server.protocol.tail import Bounds
from bottomless_server.reader.leaderless import entry_chunks, wal_tail
from bottomless_server.reader.leaderless.entry_chunks import WHOLE_SIZE_MAX
from bottomless_server.reader.leaderless.wal_tail import ENTRY_COUNT_MAX
from bottomless_server.stores.tail_keys import tail_index_key, tail_key

OTHERS = [StreamId(f"0198d2a4-5b1e-7c3a-9a51-0f7e6f0d{number:04x}") for number in range(20)]


def of(*values: str) -> list[str]:
    return list(values)


def a_chunk_of(first: int, values: list[Sent], *, more: bool = False) -> bytes:
    """An unplaced chunk; `more`: its append goes on in the next one."""
    data = a_chunk(first, values, 0, 0).data
    if not more:
        return data
    header = decode_header(data)._replace(flags=ChunkFlags.MORE_FOLLOWS)
    return encode_header(header) + data[CHUNK_HEADER_SIZE:]


def several(harness: LeaderlessHarness) -> None:
    """Objects of other streams too, entries of one piece and of several, and a group of chunks."""
    for one in OTHERS[:3]:
        harness.create(one, f"s{one[-4:]}")
    harness.flush({OTHERS[0]: [of("x")], STREAM_ID: [of("a", "b"), of("c"), of("d", "e")]})
    harness.flush({STREAM_ID: [of("f")], OTHERS[1]: [of("y", "z")]})
    group = [[a_text(f"g{n}{m}") for m in range(3)] for n in range(3)]
    harness.commit_chunks(
        [(a_chunk_of(3 * n, values, more=n < 2), values) for n, values in enumerate(group)]
    )
    harness.flush({OTHERS[2]: [of("w")], STREAM_ID: [of("h", "i")]})


async def test_bounds_are_those_of_the_tail(leaderless: LeaderlessHarness) -> None:
    tail = leaderless.wal.tail
    assert await tail.bounds(leaderless.facts()) == Bounds(EPOCH, 0, 0, 0, 0, None, None)
    leaderless.fill(30)
    assert await tail.bounds(leaderless.facts()) == Bounds(EPOCH, 0, 30, 0, 0, 20, 1_020)
    await leaderless.upload(2)
    assert await tail.bounds(leaderless.facts()) == Bounds(EPOCH, 0, 30, 0, 0, 20, 1_020)
    leaderless.free()
    assert await tail.bounds(leaderless.facts()) == Bounds(EPOCH, 20, 30, 20, 1, 20, 1_020)
    await leaderless.upload(1, free=True)
    assert await tail.bounds(leaderless.facts()) == Bounds(EPOCH, 30, 30, 30, 2, None, None)


@pytest.mark.parametrize("size", [1, 200, 10 * KIB])
async def test_chunks_are_those_that_an_owner_would_give(
    leaderless: LeaderlessHarness, size: int
) -> None:
    """L15: at each offset the one that holds it comes first, and no answer ends inside a group."""
    several(leaderless)
    wanted = {chunk.first_offset: chunk for chunk in leaderless.chunks}
    for offset in range(leaderless.committed_next):
        answer = await leaderless.wal.tail.chunks(leaderless.facts(), offset, size)
        got = list(split_chunks(answer.data))
        first, last = got[0][0], got[-1][0]
        assert first.first_offset <= offset < first.next_offset
        assert [bytes(chunk) for _, chunk in got] == [
            wanted[header.first_offset].data for header, _ in got
        ]
        assert (answer.first_offset, answer.next_offset) == (first.first_offset, last.next_offset)
        assert ChunkFlags.MORE_FOLLOWS not in last.flags
        assert len(answer.data) >= size or last.next_offset == leaderless.committed_next


@pytest.mark.parametrize("limit", [1, 2, 100])
async def test_a_page_begins_at_each_offset_exactly(
    leaderless: LeaderlessHarness, limit: int
) -> None:
    several(leaderless)
    await leaderless.upload(2, free=True)
    await leaderless.upload(1)
    for offset in range(leaderless.committed_next + 1):
        page = await leaderless.read(offset, limit=limit)
        assert shown(page) == leaderless.texts(offset, page["next_offset"])
        assert bool(page["records"]) is (offset < leaderless.committed_next)


async def test_where_a_stream_is_needs_no_object(leaderless: LeaderlessHarness) -> None:
    leaderless.fill(30)
    shown = (await leaderless.get("/offsets")).json()
    assert (shown["first_offset"], shown["next_offset"]) == (0, 30)
    assert shown["first_timestamp"] == "1970-01-01T00:00:01.000Z"
    assert shown["last_timestamp"] == "1970-01-01T00:00:01.020Z"
    tail = leaderless.wal.tail
    times = [(await tail.time_of(leaderless.facts(), at)).timestamp for at in (9, 10, 29, 30)]
    assert times == [1_000, 1_010, 1_020, None]
    assert leaderless.object_reads == []
    await leaderless.upload(2)
    leaderless.coordination.before_index = leaderless.free
    assert (await tail.time_of(leaderless.facts(), 5)).moved
    shown = (await leaderless.get("/offsets")).json()
    assert shown["first_timestamp"] == "1970-01-01T00:00:01.000Z"


async def test_twenty_streams_of_one_object_cost_one_get() -> None:
    """L14: cold, and all at once."""
    leaderless = LeaderlessHarness(reader_block_bytes=MIB)
    for number, one in enumerate(OTHERS):
        leaderless.create(one, f"s{number}")
    leaderless.flush({one: [of(f"of {one}")] for one in OTHERS})
    tail = leaderless.wal.tail
    answers = await asyncio.gather(
        *(tail.chunks(leaderless.facts(one), 0, 1_000) for one in OTHERS)
    )
    assert [answer.next_offset for answer in answers] == [1] * 20
    assert len({bytes(answer.data) for answer in answers}) == 20
    assert len(leaderless.object_reads) == 1
    await leaderless.aclose()


async def test_what_its_node_still_has_costs_no_get(leaderless: LeaderlessHarness) -> None:
    leaderless.flush({STREAM_ID: [of("a"), of("b")]}, cached=True)
    assert shown(await leaderless.read(0)) == leaderless.texts(0, 2)
    assert leaderless.object_reads == []
    assert len(leaderless.wal_nodes.asked) == 1
    assert leaderless.wal.nodes.read_count == 1


@pytest.mark.parametrize(
    ("query", "objects"),
    [("limit=1", 1), ("limit=3", 3), ("until_offset=7", 2), ("limit=100", 20), ("max_bytes=1", 1)],
)
async def test_only_objects_with_wanted_records_are_read(
    leaderless: LeaderlessHarness, query: str, objects: int
) -> None:
    """Each may be a GET of its own."""
    for number in range(25):
        leaderless.append(f"{number}")
    answer = await leaderless.get(f"/records?offset=5&{query}")
    assert shown(answer.json()) == leaderless.texts(5, 5 + objects)
    assert len(leaderless.object_reads) == objects


async def test_nodes_are_asked_for_what_is_new_only(
    leaderless: LeaderlessHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is old they have no more, and there is much of it."""
    monkeypatch.setattr(wal_tail, "NEW_COMMIT_COUNT", 2)
    for number in range(5):
        leaderless.flush({STREAM_ID: [of(f"{number}")]}, cached=True)
    assert shown(await leaderless.read(0)) == leaderless.texts(0, 5)
    assert len(leaderless.wal_nodes.asked) == 2
    assert len(leaderless.object_reads) == 3


async def test_a_node_is_not_asked_for_more_than_it_can_give_in_time(
    leaderless: LeaderlessHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequence = leaderless.flush({STREAM_ID: [of("a" * 500)]}, cached=True)
    monkeypatch.setattr(entry_chunks, "NODE_SIZE_MAX", 500)
    assert shown(await leaderless.read(0)) == leaderless.texts(0, 1)
    assert leaderless.wal_nodes.asked == []
    assert leaderless.object_reads == [leaderless.object_key(sequence)]


async def test_chunks_keep_nothing_of_the_blocks_that_they_were_in(
    leaderless: LeaderlessHarness,
) -> None:
    """128 entries of as many objects are some KiB, and their blocks half a GiB."""
    leaderless.fill(30)
    answer = await leaderless.wal.tail.chunks(leaderless.facts(), 5, 1)
    assert isinstance(answer.data, bytes)
    assert answer.data == leaderless.chunks[0].data


@pytest.mark.parametrize("when", ["before the index", "before the object"])
async def test_what_is_pruned_and_deleted_during_a_read_is_found_in_fragments(when: str) -> None:
    """L16: no 404, and no jump."""
    harness = LeaderlessHarness(reader_root_ttl_ms=60_000)
    harness.fill(30)
    # What the reader knows of the manifest is of before.
    assert shown(await harness.read(25)) == harness.texts(25, 30)
    await harness.upload(2)
    if when == "before the index":
        harness.coordination.before_index = harness.free
    else:
        harness.drive.before_get = harness.free
    page = await harness.read(5)
    assert shown(page) == harness.texts(5, page["next_offset"])
    assert page["next_offset"] >= 20
    assert not harness.drive.has(harness.object_key(0))
    await harness.aclose()


@pytest.mark.parametrize("when", ["before_index", "before_get"])
async def test_a_tail_says_moved_of_what_went_while_it_was_read(
    leaderless: LeaderlessHarness, when: str
) -> None:
    leaderless.fill(30)
    await leaderless.upload(2)
    of = leaderless.coordination if when == "before_index" else leaderless.drive
    setattr(of, when, leaderless.free)
    answer = await leaderless.wal.tail.chunks(leaderless.facts(), 5, 1)
    assert answer.moved
    assert (answer.bounds.local_first_offset, answer.bounds.version) == (20, 1)


@pytest.mark.parametrize("when", ["before_index", "before_get"])
async def test_without_another_look_it_says_that_something_is_missing(
    monkeypatch: pytest.MonkeyPatch, leaderless: LeaderlessHarness, when: str
) -> None:
    async def one_look(_: Any, __: Any, tail: Any, read: Any, ___: int) -> Any:
        answer = await read(tail)
        assert answer is not None
        return answer

    remove(monkeypatch, "another look at the tail where an entry or its object is gone", one_look)
    with pytest.raises((AssertionError, NotFound)):
        await test_a_tail_says_moved_of_what_went_while_it_was_read(leaderless, when)


async def test_what_is_missing_for_good_is_an_alarm(leaderless: LeaderlessHarness) -> None:
    leaderless.fill(30)
    await leaderless.drive.delete([leaderless.object_key(1)])
    page = await leaderless.read(5)
    assert shown(page) == leaderless.texts(5, 10), "what is before it is given out"
    with capture_logs() as logs:
        answer = await leaderless.get("/records?offset=12")
    assert (answer.status_code, answer.json()["code"]) == (502, Code.DATA_MISSING)
    assert [one["wanted"] for one in logs if one["event"] == "leaderless_data_missing"] == [12, 12]
    assert shown(await leaderless.read(20)) == leaderless.texts(20, 30)


async def test_an_index_with_a_hole_is_never_read_past_it(leaderless: LeaderlessHarness) -> None:
    leaderless.fill(30)
    members = leaderless.coordination.peek_members(tail_index_key(STREAM_ID))
    leaderless.take_out(members[1])
    assert shown(await leaderless.read(5)) == leaderless.texts(5, 10)
    answer = await leaderless.get("/records?offset=10")
    assert (answer.status_code, answer.json()["code"]) == (502, Code.DATA_MISSING)
    answer = await leaderless.get("/records?offset=timestamp:1015")
    assert (answer.status_code, answer.json()["code"]) == (502, Code.DATA_MISSING)


async def test_what_is_committed_after_the_look_at_the_tail_waits_for_the_next(
    leaderless: LeaderlessHarness,
) -> None:
    leaderless.fill(10)
    leaderless.coordination.before_index = lambda: leaderless.append("late")
    answer = await leaderless.wal.tail.chunks(leaderless.facts(), 0, MIB)
    assert (answer.next_offset, answer.bounds.committed_next) == (10, 10)
    answer = await leaderless.wal.tail.chunks(leaderless.facts(), 10, MIB)
    assert (answer.next_offset, answer.bounds.committed_next) == (11, 11)


async def test_an_answer_has_a_bounded_number_of_entries(leaderless: LeaderlessHarness) -> None:
    for number in range(ENTRY_COUNT_MAX + 5):
        leaderless.append(f"{number}")
    answer = await leaderless.wal.tail.chunks(leaderless.facts(), 3, MIB)
    assert (answer.first_offset, answer.next_offset) == (3, 3 + ENTRY_COUNT_MAX)


@pytest.fixture
async def large() -> AsyncIterator[LeaderlessHarness]:
    """An entry of many chunks, twice as large as what is read whole; two in three go on."""
    harness = LeaderlessHarness()
    values = [Sent(bytes([n % 251]) * (40 * KIB)) for n in range(2 * WHOLE_SIZE_MAX // (40 * KIB))]
    chunks = []
    for number in range(0, len(values) - 1, 2):
        records = values[number : number + 2]
        more = number % 6 != 4 and number + 2 < len(values) - 1
        chunks.append((a_chunk_of(number, records, more=more), records))
    harness.commit_chunks(chunks)
    yield harness
    await harness.aclose()


@pytest.mark.parametrize("size", [1, 100 * KIB, MIB])
async def test_of_a_large_entry_only_what_is_wanted_is_given(
    large: LeaderlessHarness, size: int
) -> None:
    wanted = {chunk.first_offset: chunk.data for chunk in large.chunks}
    for offset in range(0, large.committed_next, 5):
        answer = await large.wal.tail.chunks(large.facts(), offset, size)
        got = list(split_chunks(answer.data))
        assert got[0][0].first_offset <= offset < got[0][0].next_offset
        assert all(bytes(chunk) == wanted[header.first_offset] for header, chunk in got)
        assert got[-1][0].next_offset == answer.next_offset
        assert ChunkFlags.MORE_FOLLOWS not in got[-1][0].flags
        # One group at most comes beyond what was asked for.
        assert len(answer.data) <= size + 4 * 81 * KIB


async def test_a_large_entry_is_walked_through_whole(large: LeaderlessHarness) -> None:
    position, seen = 0, []
    while position < large.committed_next:
        answer = await large.wal.tail.chunks(large.facts(), position, 200 * KIB)
        seen += [bytes(chunk) for _, chunk in split_chunks(answer.data)]
        position = answer.next_offset
    assert seen == [chunk.data for chunk in large.chunks]


def positions(stored: bytes) -> dict[str, int]:
    """Bytes of an object with two pieces, in each part of it."""
    first, second = (decode_directory(stored).line(number).position for number in range(2))
    return {
        "header": 16,
        "line": HEADER_SIZE + 20,
        "note": HEADER_SIZE + 2 * LINE_SIZE + 8,
        "header of a chunk": first + 12,
        "chunk": first + 100,
        "end of a chunk": second - 1,
    }


NEEDED = ("header of a chunk", "chunk", "end of a chunk")


@pytest.mark.parametrize("place", ["header", "line", "note", *NEEDED])
@pytest.mark.parametrize("at_rest", [True, False])
async def test_a_flipped_bit_is_mended_or_told(
    leaderless: LeaderlessHarness, place: str, at_rest: bool
) -> None:
    """L17: what a reader does not need is not looked at; of the rest not a byte is given out."""
    leaderless.create(OTHERS[0], "other")
    assert OTHERS[0] > STREAM_ID, "its piece comes second"
    leaderless.append("first")
    sequence = leaderless.flush({STREAM_ID: [of("a", "b")], OTHERS[0]: [of("x")]})
    leaderless.append("last")
    key = leaderless.object_key(sequence)
    stored = leaderless.drive.peek(key)
    assert stored is not None
    position = positions(stored)[place]
    if at_rest:
        leaderless.drive.flip(key, position)
    else:
        leaderless.drive.flips[key] = position
    answer = await leaderless.get("/records?offset=1")
    if (at_rest and "chunk" in place) or (at_rest and "piece" in place):
        assert (answer.status_code, answer.json()["code"]) == (502, Code.DATA_CORRUPT)
        assert (answer.json()["first_offset"], answer.json()["next_offset"]) == (1, 3)
        # Somebody mends it.
        leaderless.drive.damage(key, stored)
    answer = await leaderless.get("/records?offset=1")
    assert shown(answer.json()) == leaderless.texts(1, 4)
    assert shown(await leaderless.read(0, limit=1)) == leaderless.texts(0, 1)
    other = await leaderless.wal.tail.chunks(leaderless.facts(OTHERS[0]), 0, 1)
    assert (other.first_offset, other.next_offset) == (0, 1)


async def test_what_a_node_damages_is_read_from_the_store(leaderless: LeaderlessHarness) -> None:
    leaderless.flush({STREAM_ID: [of("a", "b")]}, cached=True)
    leaderless.flush({STREAM_ID: [of("c")]}, cached=True)
    (path, data), *_ = leaderless.wal_nodes.objects.items()
    leaderless.wal_nodes.objects[path] = data[:-20] + bytes(byte ^ 1 for byte in data[-20:])
    assert shown(await leaderless.read(0, limit=2)) == leaderless.texts(0, 2)
    asked = len(leaderless.wal_nodes.asked)
    assert shown(await leaderless.read(0)) == leaderless.texts(0, 3)
    assert len(leaderless.wal_nodes.asked) == asked, "it is left out"


async def test_what_lies_in_fragments_before_a_damaged_entry_is_given_out(
    leaderless: LeaderlessHarness,
) -> None:
    leaderless.fill(20)
    await leaderless.upload(1, free=True)
    leaderless.drive.flip(leaderless.object_key(1), -20)

    page = await leaderless.read(0)

    assert shown(page) == leaderless.texts(0, 10)
    assert page["next_offset"] == 10
    answer = await leaderless.get("/records?offset=10")
    assert (answer.status_code, answer.json()["code"]) == (502, Code.DATA_CORRUPT)


async def test_a_stream_is_gone_where_manifest_says_so_too(leaderless: LeaderlessHarness) -> None:
    leaderless.fill(10)
    leaderless.exists = False
    for value in (leaderless.closed(), None):
        leaderless.write(tail_key(STREAM_ID), value)
        with pytest.raises(NotFound):
            await leaderless.wal.tail.bounds(leaderless.facts())


async def test_a_stream_that_manifest_knows_is_never_gone(leaderless: LeaderlessHarness) -> None:
    """Record and tail are changed together, so the store has lost the one."""
    leaderless.fill(10)
    for value in (leaderless.closed(), None):
        leaderless.write(tail_key(STREAM_ID), value)
        answer = await leaderless.get("/records?offset=0")
        assert (answer.status_code, answer.json()["code"]) == (503, Code.COORDINATION_REGRESSED)


async def test_without_a_word_of_manifest_a_tail_that_is_lost_is_a_stream_that_is_gone(
    monkeypatch: pytest.MonkeyPatch, leaderless: LeaderlessHarness
) -> None:
    async def gone(*_: Any) -> Any:
        return stream_not_found()

    remove(monkeypatch, "a stream is gone only where manifest says so", gone)
    with pytest.raises(AssertionError):
        await test_a_stream_that_manifest_knows_is_never_gone(leaderless)


async def test_a_tail_that_cannot_be_read_is_of_its_stream_alone(
    leaderless: LeaderlessHarness,
) -> None:
    leaderless.create(OTHERS[0], "other")
    leaderless.flush({STREAM_ID: [of("a")], OTHERS[0]: [of("x")]})
    leaderless.write(tail_key(STREAM_ID), b"damaged")
    with pytest.raises(Corrupt):
        await leaderless.wal.tail.bounds(leaderless.facts())
    answer = await leaderless.wal.tail.chunks(leaderless.facts(OTHERS[0]), 0, 1)
    assert answer.next_offset == 1


async def test_without_coordination_only_leaderless_tails_are_away() -> None:
    class Without(LeaderlessHarness):
        def given_coordination(self) -> Coordination | None:
            return None

    harness = Without()
    harness.fill(10)
    answer = await harness.get("/records?offset=0")
    assert (answer.status_code, answer.json()["code"]) == (503, Code.COORDINATION_UNAVAILABLE)
    await harness.aclose()


async def test_a_store_that_does_not_answer_is_told(leaderless: LeaderlessHarness) -> None:
    leaderless.fill(10)
    leaderless.coordination.away = True
    answer = await leaderless.get("/records?offset=0")
    assert (answer.status_code, answer.json()["code"]) == (503, Code.COORDINATION_UNAVAILABLE)
    leaderless.coordination.away = False
    assert shown(await leaderless.read(0)) == leaderless.texts(0, 10)
