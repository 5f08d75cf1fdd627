"""Rounds: dense offsets, whole appends, bounded chunks; and what is pure beside them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottomless.errors import Unavailable
from bottomless.formats.batch import decode_frames
from bottomless.formats.chunk import batches_of, decode_trailer, split_chunks, trailer_of
from bottomless.formats.rows import build_batch, encode_frames
from bottomless.model.chunk import ChunkFlags, ChunkPlace
from bottomless.model.names import StreamId
from bottomless.model.record import Content
from bottomless.model.rows import Rows
from bottomless_server.ingest.log.core.batcher import Round, RoundSpace, seal_round
from bottomless_server.ingest.log.core.chunk_index import ChunkIndex
from bottomless_server.ingest.records.intake import Append
from bottomless_server.node.core.admission import Admission
from bottomless_server.node.core.clock import CommitClock, commit_timestamp

CHUNK_SIZE_MAX = 4_096


def rowed(values: list[bytes]) -> Append:
    rows = Rows(values, [Content.TEXT] * len(values))
    return Append(len(values), rows.size, 1, rows)


def framed(values: list[bytes]) -> Append:
    batch = build_batch([Rows(values, [Content.BYTES] * len(values))])
    frames = tuple(encode_frames(batch, CHUNK_SIZE_MAX))
    return Append(len(values), sum(len(frame.data) for frame in frames), 2, None, frames)


VALUES = st.lists(st.binary(max_size=1_500), min_size=1, max_size=8)
APPENDS = st.lists(st.one_of(VALUES.map(rowed), VALUES.map(framed)), min_size=1, max_size=12)


def values_of(append: Append) -> list[Any]:
    if append.rows is not None:
        return append.rows.values
    return [
        value
        for frame in append.frames
        for batch in decode_frames(memoryview(frame.data))
        for value in batch.column("value").to_pylist()
    ]


def rounds_of(appends: list[Append]) -> list[tuple[list[Append], Round]]:
    rounds, next_offset = [], 100
    while appends:
        room, count = RoundSpace(CHUNK_SIZE_MAX), 0
        while count < len(appends) and not room.full and room.take(appends[count]):
            count += 1
        taken, appends = appends[:count], appends[count:]
        sealed = seal_round(
            taken, next_offset=next_offset, timestamp=5, epoch=2, chunk_size_max=CHUNK_SIZE_MAX
        )
        rounds.append((taken, sealed))
        next_offset = sealed.next_offset
    return rounds


@given(APPENDS)
def test_every_record_gets_one_offset_and_lies_there(appends: list[Append]) -> None:
    stored: dict[int, Any] = {}
    for taken, sealed in rounds_of(appends):
        data = b"".join(part for chunk in sealed.chunks for part in chunk.buffers)
        for header, chunk in split_chunks(data):
            offset = header.first_offset
            for batch in decode_frames(batches_of(header, chunk)):
                for value in batch.column("value").to_pylist():
                    assert offset not in stored
                    stored[offset] = value
                    offset += 1
            assert offset == header.next_offset
        for append, place in zip(taken, sealed.placements, strict=True):
            span = range(place.first_offset, place.first_offset + place.record_count)
            assert [stored[offset] for offset in span] == values_of(append)
    assert sorted(stored) == list(range(100, 100 + sum(a.record_count for a in appends)))


@given(APPENDS)
def test_a_round_is_one_chunk_or_the_group_of_one_append(appends: list[Append]) -> None:
    for taken, sealed in rounds_of(appends):
        data = b"".join(part for chunk in sealed.chunks for part in chunk.buffers)
        headers = [header for header, _ in split_chunks(data)]
        flags = [header.flags for header in headers]
        assert flags == [ChunkFlags.MORE_FOLLOWS] * (len(flags) - 1) + [ChunkFlags.NONE]
        assert len(flags) == 1 or len(taken) == 1
        if len(taken) > 1:
            assert sum(append.size for append in taken) <= CHUNK_SIZE_MAX
        assert {(header.timestamp, header.epoch) for header in headers} == {(5, 2)}


@given(APPENDS)
def test_a_trailer_has_an_entry_for_each_append(appends: list[Append]) -> None:
    for taken, sealed in rounds_of(appends):
        data = b"".join(part for chunk in sealed.chunks for part in chunk.buffers)
        for header, chunk in split_chunks(data):
            entries = decode_trailer(trailer_of(header, chunk))
            position = 0
            for entry in entries:
                assert entry.first_record == position
                position += entry.record_count
            assert position == header.record_count
            if len(sealed.chunks) == 1:
                assert sorted(e.body_crc for e in entries) == sorted(a.body_crc for a in taken)


def test_rows_of_requests_that_wait_together_share_one_batch() -> None:
    appends = [rowed([b"a"]), framed([b"b"]), rowed([b"c"])]

    [(_, sealed)] = rounds_of(appends)

    [(header, _)] = split_chunks(b"".join(sealed.chunks[0].buffers))
    assert header.batch_count == 2
    assert [place.first_offset for place in sealed.placements] == [100, 102, 101]


def test_columns_that_nobody_uses_are_left_out() -> None:
    plain = Rows([b"a"], [Content.BYTES])
    keyed = Rows([b"b"], [Content.TEXT], keys=[b"k"])

    assert build_batch([plain]).schema.names == ["value"]
    batch = build_batch([plain, keyed])
    assert batch.to_pydict() == {"value": [b"a", b"b"], "key": [None, b"k"], "content": [0, 1]}


@given(st.lists(st.integers(1, 5), min_size=1, max_size=40), st.integers(0, 200))
def test_an_index_finds_chunks_by_offset_by_time_and_by_position(
    counts: list[int], wanted: int
) -> None:
    index, offset = ChunkIndex(), 10
    for number, count in enumerate(counts):
        index.append(ChunkPlace(offset, 7 * (number // 2), 64 + 8 * number, 1, 8, count))
        offset += count
    places = [index.place(number) for number in range(len(index))]

    assert index.holding(wanted) == sum(p.first_offset <= wanted for p in places) - 1
    assert index.since(wanted) == sum(p.timestamp < wanted for p in places)
    assert index.before(wanted) == sum(p.position < wanted for p in places) - 1
    assert index.place(-1) == places[-1]


def test_room_is_counted_per_stream_and_in_all() -> None:
    one, two = StreamId("one"), StreamId("two")
    admission = Admission(stream_size_max=10, total_size_max=15)

    assert admission.take(one, 8)
    assert not admission.take(one, 3)
    assert admission.take(two, 7)
    assert not admission.take(two, 1)
    admission.give_back(one, 8)
    assert admission.take(two, 3)
    admission.give_back(two, 10)
    assert admission.total == 0
    assert admission.take(one, 1_000)


def test_a_clock_may_go_back_but_not_jump_ahead() -> None:
    clock = CommitClock(jump_ms_max=60_000)

    assert clock.read(wall=1_000_000, elapsed=0) == 1_000_000
    assert clock.read(wall=1_500_000, elapsed=450_000) == 1_500_000
    with pytest.raises(Unavailable):
        clock.read(wall=2_000_000, elapsed=460_000)
    assert clock.read(wall=1_000, elapsed=470_000) == 1_000
    assert clock.read(wall=1_530_000, elapsed=480_000) == 1_530_000
    assert commit_timestamp(previous=7, wall=5) == 7
    assert commit_timestamp(previous=5, wall=7) == 7
