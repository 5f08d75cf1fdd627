"""Filters that are made while fragments are packed: no value of a chunk is missing in them."""

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.object_keys import fragment_key
from support.uploader_harness import UploaderHarness
from support.uploading import STREAM_ID, FakeIngest
from unit.formats.examples import a_chunk, a_tracking_chunk

from bottomless.errors import Corrupt
from bottomless.formats.batch import Codec, encode_frame, schema_of
from bottomless.formats.chunk import split_chunks
from bottomless.formats.filter import asked_hashes, hash_values, may_hold
from bottomless.formats.fragment import decode_footer, decode_stored_filters
from bottomless.formats.fragment_filters import FilterTable, chunks_to_read, entry_filter
from bottomless.model.config import FilterConfig
from bottomless.model.fragment import FragmentInfo, Presence
from bottomless.model.limits import KIB, MIB
from bottomless.model.record import Columns
from bottomless.model.stream import Intent
from bottomless_server.core.filter_making import FilterMaking, make_filters
from bottomless_server.manifest.tree.core.adoption_check import AdoptionCheck, footer_piece

VALUES = FilterConfig(index="values")
BOTH = FilterConfig(index="values-and-keys", max_bytes=64)
MASK = Columns.VALUE | Columns.KEY | Columns.FILTER_VALUE
Row = tuple[str | None, bytes | None]


def frame(rows: list[Row], codec: Codec = Codec.NONE, size: int = 1) -> bytes:
    names, keys = [row[0] for row in rows], [row[1] for row in rows]
    arrays: list[object] = [
        pa.array([b"-" * size] * len(rows), pa.binary()),
        pa.array(keys, pa.binary()),
        pa.array(names, pa.utf8()),
    ]
    return encode_frame(pa.record_batch(arrays, schema=schema_of(MASK)), codec)


def chunk(rows: list[Row], offset: int = 0, codec: Codec = Codec.NONE, size: int = 1) -> bytes:
    frames = [frame(rows, codec, size)]
    return a_chunk(offset, frames=frames, record_count=len(rows), epoch=1)


ROWS = st.lists(
    st.tuples(st.none() | st.text(max_size=3), st.none() | st.binary(max_size=3)),
    min_size=1,
    max_size=80,
)


@given(
    st.lists(ROWS, min_size=1, max_size=4), st.sampled_from(Codec), st.sampled_from([2**12, 2**20])
)
def test_no_value_is_missing_from_the_filters_of_its_fragment_and_chunk(
    chunks: list[list[Row]], codec: Codec, data_size: int
) -> None:
    """Also where there are more values than filters may have, and where chunks have none."""
    data = [chunk(rows, codec=codec) for rows in chunks]
    tables = make_filters(data, data_size, BOTH)
    assert [table.column for table in tables] == [Columns.FILTER_VALUE, Columns.KEY]
    for number, rows in enumerate(chunks):
        for name, key in rows:
            asked = asked_hashes(
                [] if name is None else [name.encode()],
                match_unfiltered=name is None,
                keys=None if key is None else [key],
            )
            assert chunks_to_read(tables, len(chunks), asked)[number]
    presence, blocks = entry_filter(tables)
    for name in {name for rows in chunks for name, _ in rows}:
        assert presence & (Presence.NONE if name is None else Presence.SOME)
    assert len(blocks) % 32 == 0


def test_each_different_value_counts_once() -> None:
    [table] = make_filters([chunk([("emea", None)] * 1_000), chunk([("apac", None)])], MIB, VALUES)
    assert table.distinct_count == 2
    assert len(table.blocks) == 1
    assert table.lines["blocks"].tolist() == [1, 1]


def test_too_many_values_have_no_filter_and_are_still_said_to_be_there() -> None:
    rows: list[Row] = [(f"v{n}", None) for n in range(25_000)]
    [table] = make_filters([chunk(rows)], 8 * MIB, VALUES)
    assert (table.presence, len(table.blocks), table.distinct_count) == (Presence.SOME, 0, 0)
    assert table.lines["presence"].tolist() == [Presence.SOME]
    assert table.lines["blocks"].tolist() == [0]


def test_a_fragment_with_more_values_than_an_entry_may_have_is_asked_itself() -> None:
    rows: list[Row] = [(f"v{n}", None) for n in range(2_000)]
    tables = make_filters([chunk(rows)], MIB, VALUES)
    assert len(tables[0].blocks) == 128
    assert entry_filter(tables) == (Presence.KNOWN | Presence.SOME, b"")
    assert len(entry_filter(make_filters([chunk(rows[:1_000])], MIB, VALUES))[1]) == 1_024


def test_chunks_have_no_filters_where_they_would_take_a_sixteenth_of_the_data() -> None:
    data = [chunk([(f"v{n}", None)]) for n in range(10)]
    [table] = make_filters(data, sum(map(len, data)), VALUES)
    assert (len(table.lines), len(table.chunk_blocks)) == (0, 0)
    assert may_hold(table.blocks, hash_values([b"v3"])).all()
    [table] = make_filters(data, 16 * table.size + 16 * 32 * 14, VALUES)
    assert len(table.lines) == 10


def test_a_tracking_chunk_has_neither() -> None:
    [table] = make_filters([chunk([("emea", None)]), a_tracking_chunk(1)], MIB, VALUES)
    assert table.lines["presence"].tolist() == [Presence.SOME, 0]


def test_who_asks_for_no_index_gets_none_and_a_damaged_chunk_is_refused() -> None:
    assert make_filters([b"not a chunk"], MIB, FilterConfig()) == ()
    assert FilterMaking(VALUES, MIB).tables() == ()
    with pytest.raises(Corrupt):
        make_filters([b"not a chunk, and too short"], MIB, VALUES)


def appended(harness: UploaderHarness, size: int) -> None:
    for number in range(4):
        rows: list[Row] = [(f"v{number}", b"k"), (None, None)]
        harness.ingest.append(chunk(rows, 2 * number, size=size))


async def stored(harness: UploaderHarness, info: FragmentInfo) -> tuple[FilterTable, ...]:
    """The tables of an object, which adoption believes to be just what was registered."""
    data = await harness.drive.get(fragment_key(STREAM_ID, info.first_offset, info.uid))
    piece = footer_piece(len(data))
    check = AdoptionCheck(
        STREAM_ID, Intent(info.uid, info.first_offset, ""), len(data), data[piece.start :]
    )
    for one in check.pieces():
        check.feed(one, data[one.start : one.start + one.size])
    assert check.fragment() == info
    footer = decode_footer(data[piece.start :])
    assert list(split_chunks(data[128 : footer.filters_position]))
    return decode_stored_filters(data[footer.filters_position : footer.index_position], footer)


async def test_fragments_of_a_stream_with_an_index_have_filters(tmp_path: Path) -> None:
    """Of bytes in memory, and of a file that is read while it is put: the same filters."""
    found = []
    for directory in (None, tmp_path):
        size = 300 * KIB
        ingest = FakeIngest(target_bytes=4 * 2 * size, max_age_ms=3_600_000)
        ingest.directory = directory
        harness = UploaderHarness(ingest, memory_bytes=64 * MIB)
        harness.manifest.filter = BOTH
        appended(harness, size)
        async with harness.running():
            await harness.published(8)
        [info] = harness.manifest.applied
        assert info.version == 2
        tables = await stored(harness, info)
        asked = asked_hashes([b"v2"], keys=[b"k"])
        assert chunks_to_read(tables, 4, asked).tolist() == [False, False, True, False]
        found.append((info.filter_presence, info.filter_blocks, tables[1].distinct_count))
    assert found[0] == found[1]


async def test_fragments_of_a_stream_without_an_index_are_of_version_1() -> None:
    harness = UploaderHarness(FakeIngest(target_bytes=64 * KIB))
    appended(harness, 10 * KIB)
    async with harness.running():
        await harness.published(8)
    for info in harness.manifest.applied:
        assert info.version == 1
        assert await stored(harness, info) == ()
