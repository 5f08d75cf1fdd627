"""Reading fragments from their objects, without any service."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from bottomless.errors import Code, Corrupt, NotFound
from bottomless.formats.batch import Codec, encode_frame, schema_of
from bottomless.formats.chunk import seal_chunk
from bottomless.formats.fragment import FragmentIndex, decode_index, pack_fragment
from bottomless.model.chunk import AppendEntry, AppendMode
from bottomless.model.config import FilterConfig
from bottomless.model.filter import Filter
from bottomless.model.names import StreamId, StreamName, Uid
from bottomless.model.record import Columns
from bottomless.spark.fragments import read_slice
from bottomless.spark.options import Mode, OnCorrupt, Reading
from bottomless.spark.plan import Share, Slice, Stored
from bottomless.spark.read import Task, read_share, sum_counts
from bottomless.spark.rows import RowShape
from bottomless.spark.service import Source
from bottomless.spark.store import Counts, LocalObjects, StorePlace
from bottomless_server.core.filter_making import make_filters

SCHEMA = pa.schema(
    [  # type: ignore[arg-type]  # the stubs want fields of one type
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("value", pa.binary()),
        pa.field("key", pa.binary()),
    ]
)
FIRST_OFFSET = 100
CHUNKS = [3, 1, 5, 2]
END = FIRST_OFFSET + sum(CHUNKS)
KEY = "data/one.fragment"
STREAM_ID = StreamId("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11")


def a_chunk(first_offset: int, count: int) -> list[bytes | memoryview]:
    """A chunk of two frames where it can be: a plain one, and a compressed one with keys."""
    numbers = list(range(first_offset, first_offset + count))
    frames = []
    if plain := numbers[: count // 2]:
        rows: Sequence[dict[str, object]] = [{"value": b"%d" % number} for number in plain]
        frames.append(
            encode_frame(pa.RecordBatch.from_pylist(rows, schema=schema_of(Columns.VALUE)))
        )
    keyed = [{"value": b"%d" % number, "key": b"k"} for number in numbers[count // 2 :]]
    schema = schema_of(Columns.VALUE | Columns.KEY)
    frames.append(encode_frame(pa.RecordBatch.from_pylist(keyed, schema=schema), Codec.ZSTD))
    entries = [AppendEntry(AppendMode.PLAIN, 0, count, 1)]
    return seal_chunk(
        frames,
        entries,
        record_count=count,
        first_offset=first_offset,
        timestamp=first_offset * 10,
        epoch=1,
    )


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    runs, offset = [], FIRST_OFFSET
    for count in CHUNKS:
        runs.append(b"".join(a_chunk(offset, count)))
        offset += count
    packed = pack_fragment(STREAM_ID, Uid("a" * 32), runs)
    (tmp_path / "data").mkdir()
    (tmp_path / KEY).write_bytes(b"".join(packed.parts))
    info = packed.info
    return Stored(
        info.fragment_id, KEY, info.first_offset, info.next_offset, info.size, info.index_position
    )


def read(
    root: Path, stored: Stored, first_offset: int, next_offset: int
) -> list[dict[str, object]]:
    objects = LocalObjects(root, Counts())
    piece = Slice(stored, first_offset, next_offset)
    placed = read_slice(objects, piece, RowShape(SCHEMA))
    return [row for item in placed for row in item.rows.to_pylist()]


def test_every_range_of_a_fragment_is_clipped_exactly(tmp_path: Path, stored: Stored) -> None:
    for first in range(FIRST_OFFSET, END):
        for end in range(first + 1, END + 1):
            rows = read(tmp_path, stored, first, end)
            assert [row["offset"] for row in rows] == list(range(first, end))
            assert [row["value"] for row in rows] == [b"%d" % n for n in range(first, end)]


def test_times_are_those_of_the_chunks(tmp_path: Path, stored: Stored) -> None:
    rows = read(tmp_path, stored, FIRST_OFFSET, END)
    starts = [100] * 3 + [103] + [104] * 5 + [109] * 2
    assert [round(row["timestamp"].timestamp() * 1000) for row in rows] == [  # type: ignore[attr-defined]
        start * 10 for start in starts
    ]


@pytest.mark.parametrize("columns", [["offset"], ["timestamp"], ["timestamp", "offset"]])
@pytest.mark.parametrize("batch_max", [2, 50_000])
def test_offsets_and_times_come_from_the_index_and_no_chunk_is_read(
    tmp_path: Path,
    stored: Stored,
    monkeypatch: pytest.MonkeyPatch,
    columns: list[str],
    batch_max: int,
) -> None:
    monkeypatch.setattr("bottomless.spark.fragments.BATCH_ROW_COUNT_MAX", batch_max)
    shape = RowShape(pa.schema([SCHEMA.field(name) for name in columns]))
    counts = Counts()
    objects = LocalObjects(tmp_path, counts)
    ranges = [(one, two) for one in range(FIRST_OFFSET, END) for two in range(one + 1, END + 1)]
    for first, end in ranges:
        placed = list(read_slice(objects, Slice(stored, first, end), shape))
        wanted = read(tmp_path, stored, first, end)
        assert [row for item in placed for row in item.rows.to_pylist()] == [
            {name: row[name] for name in columns} for row in wanted
        ]
        assert placed[-1].next_offset == end
    index_size = stored.size - stored.index_position
    assert (counts.object_reads, counts.object_bytes) == (len(ranges), len(ranges) * index_size)


def test_an_index_with_marks_of_a_later_version_leads_to_the_chunks(
    tmp_path: Path, stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk may be a hole there, which has offsets and no records."""

    def marked(data: bytes | memoryview) -> FragmentIndex:
        index = decode_index(data)
        records = index.records.copy()
        records["reserved"][1] = 1
        return FragmentIndex(index.footer, records)

    monkeypatch.setattr("bottomless.spark.fragments.decode_index", marked)
    counts = Counts()
    shape = RowShape(pa.schema([SCHEMA.field("offset")]))
    list(read_slice(LocalObjects(tmp_path, counts), Slice(stored, FIRST_OFFSET, END), shape))
    assert counts.object_bytes == stored.size - 128


@pytest.mark.parametrize("prefetch", [0, 1, 4])
def test_chunks_may_come_in_any_number_of_reads(
    tmp_path: Path, stored: Stored, prefetch: int
) -> None:
    whole = read(tmp_path, stored, FIRST_OFFSET, END)
    counts = Counts()
    reading = Reading(prefetch=prefetch, range_size=1)
    pieces = read_slice(
        LocalObjects(tmp_path, counts),
        Slice(stored, FIRST_OFFSET, END),
        RowShape(SCHEMA),
        reading,
    )
    assert [row for item in pieces for row in item.rows.to_pylist()] == whole
    # Index and footer, then every chunk for itself.
    assert counts.object_reads == 1 + len(CHUNKS)


def test_chunks_that_stay_damaged_can_be_left_out(tmp_path: Path, stored: Stored) -> None:
    path = tmp_path / KEY
    raw = bytearray(path.read_bytes())
    raw[stored.index_position - 40] ^= 1
    path.write_bytes(raw)
    skipped: list[int] = []
    pieces = read_slice(
        LocalObjects(tmp_path, Counts()),
        Slice(stored, FIRST_OFFSET, END),
        RowShape(SCHEMA),
        Reading(on_corrupt=OnCorrupt.SKIP),
        skipped.append,
    )
    rows = [row["offset"] for item in pieces for row in item.rows.to_pylist()]
    assert rows == list(range(FIRST_OFFSET, END - CHUNKS[-1]))
    assert skipped == [CHUNKS[-1]]


def test_a_fragment_without_a_good_index_can_be_left_out(tmp_path: Path, stored: Stored) -> None:
    path = tmp_path / KEY
    raw = bytearray(path.read_bytes())
    raw[-40] ^= 1
    path.write_bytes(raw)
    skipped: list[int] = []
    pieces = read_slice(
        LocalObjects(tmp_path, Counts()),
        Slice(stored, FIRST_OFFSET, END),
        RowShape(SCHEMA),
        Reading(on_corrupt=OnCorrupt.SKIP),
        skipped.append,
    )
    assert list(pieces) == []
    assert skipped == [sum(CHUNKS)]


@pytest.mark.parametrize("verify", [True, False])
def test_a_damaged_byte_of_a_value_is_found(tmp_path: Path, stored: Stored, verify: bool) -> None:
    """By the checksum of the whole chunk, or by that of the batch where it is not looked at."""
    path = tmp_path / KEY
    raw = bytearray(path.read_bytes())
    raw[raw.index(b"104105")] ^= 1
    path.write_bytes(raw)
    objects, shape = LocalObjects(tmp_path, Counts()), RowShape(SCHEMA)
    piece = Slice(stored, FIRST_OFFSET, END)
    with pytest.raises(Corrupt, match="checksum"):
        list(read_slice(objects, piece, shape, Reading(verify_checksums=verify)))


def test_a_damaged_byte_of_a_chunk_is_found(tmp_path: Path, stored: Stored) -> None:
    path = tmp_path / KEY
    raw = bytearray(path.read_bytes())
    raw[stored.index_position - 40] ^= 1
    path.write_bytes(raw)
    with pytest.raises(Corrupt):
        read(tmp_path, stored, FIRST_OFFSET, END)


class BadWay(LocalObjects):
    """Damages or cuts what is read from a position on, so many times."""

    def __init__(
        self, root: Path, times: int, spoil: Callable[[bytes], bytes], until: int = 1 << 40
    ) -> None:
        super().__init__(root, Counts())
        self.times = times
        self.until = until
        self.spoil = spoil
        self.starts: list[int] = []

    def read(self, fragment: Stored, start: int, size: int) -> bytes:
        data = super().read(fragment, start, size)
        self.starts.append(start)
        bad = start < self.until and self.starts.count(start) <= self.times
        return self.spoil(data) if bad else data


def flipped(data: bytes) -> bytes:
    """With a wrong bit near the end: what lies before it is good."""
    return data[:-20] + bytes([data[-20] ^ 1]) + data[-19:]


def cut(data: bytes) -> bytes:
    return data[:-7]


@pytest.mark.parametrize("spoil", [flipped, cut])
def test_what_is_damaged_on_the_way_is_read_once_more_and_no_record_comes_twice(
    tmp_path: Path, stored: Stored, spoil: Callable[[bytes], bytes]
) -> None:
    objects = BadWay(tmp_path, 1, spoil)
    piece = Slice(stored, FIRST_OFFSET, END)
    rows = [
        row["offset"]
        for placed in read_slice(objects, piece, RowShape(SCHEMA))
        for row in placed.rows.to_pylist()
    ]
    assert rows == list(range(FIRST_OFFSET, END))
    assert objects.starts == [stored.index_position] * 2 + [128] * 2


@pytest.mark.parametrize("spoil", [flipped, cut])
def test_what_is_damaged_twice_is_corrupt(
    tmp_path: Path, stored: Stored, spoil: Callable[[bytes], bytes]
) -> None:
    piece = Slice(stored, FIRST_OFFSET, END)
    index = BadWay(tmp_path, 2, spoil)
    with pytest.raises(Corrupt):
        list(read_slice(index, piece, RowShape(SCHEMA)))
    assert index.starts == [stored.index_position] * 2

    chunks = BadWay(tmp_path, 2, spoil, until=stored.index_position)
    with pytest.raises(Corrupt):
        list(read_slice(chunks, piece, RowShape(SCHEMA)))
    assert chunks.starts == [stored.index_position, 128, 128]


def test_an_object_with_other_offsets_than_the_manifest_says_is_refused(
    tmp_path: Path, stored: Stored
) -> None:
    with pytest.raises(Corrupt, match="not those of the manifest"):
        read(tmp_path, stored._replace(next_offset=END + 1), FIRST_OFFSET, END)


def a_task(tmp_path: Path, mode: Mode) -> Task:
    source = Source("http://127.0.0.1:9", StreamName("orders"), STREAM_ID)
    return Task(source, SCHEMA, mode, metrics_dir=str(tmp_path / "counts"))


def test_a_task_counts_what_it_read(tmp_path: Path, stored: Stored) -> None:
    (tmp_path / "counts").mkdir()
    share = Share(FIRST_OFFSET, END, (Slice(stored, FIRST_OFFSET, END),))
    rows = list(read_share(a_task(tmp_path, Mode.DIRECT), share, StorePlace("file", str(tmp_path))))
    assert sum(batch.num_rows for batch in rows) == sum(CHUNKS)
    counts = sum_counts(tmp_path / "counts")
    # Index and footer, then all chunks at once.
    assert (counts.object_reads, counts.page_reads) == (2, 0)
    assert counts.object_bytes == stored.size - 128
    assert counts.record_count == sum(CHUNKS)


def test_in_mode_direct_a_missing_object_is_an_error(tmp_path: Path, stored: Stored) -> None:
    (tmp_path / "counts").mkdir()
    (tmp_path / KEY).unlink()
    share = Share(FIRST_OFFSET, END, (Slice(stored, FIRST_OFFSET, END),))
    with pytest.raises(NotFound) as caught:
        list(read_share(a_task(tmp_path, Mode.DIRECT), share, StorePlace("file", str(tmp_path))))
    assert caught.value.code is Code.DATA_MISSING


CHUNK_OF_VALUE_SIZE = 5


def an_indexed_fragment(root: Path) -> tuple[Stored, FragmentIndex]:
    """Twelve chunks of five records, large enough for filters of their own; the records of a chunk have
    one of four values.
    """
    runs = []
    schema = schema_of(Columns.VALUE | Columns.FILTER_VALUE)
    for number in range(12):
        first = number * CHUNK_OF_VALUE_SIZE
        rows = [{"value": b"x" * 300} for _ in range(CHUNK_OF_VALUE_SIZE)]
        filtered = [row | {"filter_value": f"v{number % 4}"} for row in rows]
        batch = pa.RecordBatch.from_pylist(filtered, schema=schema)
        sealed = seal_chunk(
            [encode_frame(batch)],
            [AppendEntry(AppendMode.PLAIN, 0, CHUNK_OF_VALUE_SIZE, 1)],
            record_count=CHUNK_OF_VALUE_SIZE,
            first_offset=first,
            timestamp=first,
            epoch=1,
        )
        runs.append(b"".join(sealed))
    tables = make_filters(runs, sum(map(len, runs)), FilterConfig(index="values"))
    packed = pack_fragment(STREAM_ID, Uid("b" * 32), runs, tables)
    (root / "data").mkdir(exist_ok=True)
    whole = b"".join(packed.parts)
    (root / KEY).write_bytes(whole)
    info = packed.info
    index = decode_index(whole[info.index_position :])
    assert index.footer.filters_size
    stored = Stored(
        info.fragment_id, KEY, info.first_offset, info.next_offset, info.size, info.index_position
    )
    return stored, index


def read_filtered(
    root: Path, stored: Stored, bounds: tuple[int, int], counts: Counts, reading: Reading
) -> list[object]:
    """Offsets of what is read under the filter of `reading`."""
    shape = RowShape(SCHEMA, reading.wanted)
    placed = read_slice(LocalObjects(root, counts), Slice(stored, *bounds), shape, reading)
    return [row["offset"] for item in placed for row in item.rows.to_pylist()]


def offsets_of(values: set[int], first: int, end: int) -> list[int]:
    return [n for n in range(first, end) if n // CHUNK_OF_VALUE_SIZE % 4 in values]


@pytest.mark.parametrize("left_out_size_min", [0, 5_000, 100_000])
@pytest.mark.parametrize("range_size", [1, 1_000_000])
def test_a_filter_gives_what_is_asked_for_of_every_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left_out_size_min: int, range_size: int
) -> None:
    monkeypatch.setattr("bottomless.spark.fragments.LEFT_OUT_SIZE_MIN", left_out_size_min)
    stored, _ = an_indexed_fragment(tmp_path)
    reading = Reading(wanted=Filter(("v1", "v2")), range_size=range_size)
    for first in range(0, 60, 7):
        for end in range(first + 1, 61, 3):
            found = read_filtered(tmp_path, stored, (first, end), Counts(), reading)
            assert found == offsets_of({1, 2}, first, end)


def test_chunks_without_what_is_asked_for_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bottomless.spark.fragments.LEFT_OUT_SIZE_MIN", 0)
    stored, index = an_indexed_fragment(tmp_path)
    counts = Counts()
    reading = Reading(wanted=Filter(("v1",)))
    assert read_filtered(tmp_path, stored, (0, 60), counts, reading) == offsets_of({1}, 0, 60)
    chunks = sum(index.place(number).size for number in (1, 5, 9))
    tail = stored.size - stored.index_position + index.footer.filters_size
    assert (counts.object_reads, counts.object_bytes) == (2 + 3, chunks + tail)
    assert left_out_of(tmp_path, stored, (0, 60), "v1") == index.footer.data_size - chunks
    one = index.place(1)
    within = (one.first_offset + 1, one.next_offset)
    assert left_out_of(tmp_path, stored, within, "v1") == 0
    assert left_out_of(tmp_path, stored, within, "v2") == one.size


def left_out_of(root: Path, stored: Stored, bounds: tuple[int, int], value: str) -> int:
    """Bytes that a slice is said to have left unread under a filter."""
    reading = Reading(wanted=Filter((value,)))
    sizes: list[int] = []
    objects = LocalObjects(root, Counts())
    shape = RowShape(SCHEMA, reading.wanted)
    list(read_slice(objects, Slice(stored, *bounds), shape, reading, left_out=sizes.append))
    return sum(sizes)


def test_of_a_value_that_is_nowhere_no_chunk_is_read(tmp_path: Path) -> None:
    stored, _ = an_indexed_fragment(tmp_path)
    counts = Counts()
    assert not read_filtered(
        tmp_path, stored, (0, 60), counts, Reading(wanted=Filter(("nowhere",)))
    )
    assert counts.object_reads == 2


def test_what_lies_near_is_read_along_since_a_request_costs_more(tmp_path: Path) -> None:
    stored, _ = an_indexed_fragment(tmp_path)
    counts = Counts()
    reading = Reading(wanted=Filter(("v1",)))
    assert read_filtered(tmp_path, stored, (0, 60), counts, reading) == offsets_of({1}, 0, 60)
    assert counts.object_reads == 2 + 1


def test_damaged_filters_are_an_error_or_are_not_believed(tmp_path: Path) -> None:
    stored, index = an_indexed_fragment(tmp_path)
    path = tmp_path / KEY
    data = bytearray(path.read_bytes())
    data[index.footer.filters_position + 3] ^= 1
    path.write_bytes(data)
    wanted = Filter(("v1",))
    with pytest.raises(Corrupt):
        read_filtered(tmp_path, stored, (0, 60), Counts(), Reading(wanted=wanted))
    skipping = Reading(wanted=wanted, on_corrupt=OnCorrupt.SKIP)
    found = read_filtered(tmp_path, stored, (0, 60), Counts(), skipping)
    assert found == offsets_of({1}, 0, 60)
