"""What a log holds after a stop of any kind: torn tails go, damage stays and is said."""

import errno
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.power_loss import PowerLossDisk

from bottomless.errors import Corrupt
from bottomless.formats.chunk import HEADER_SIZE as CHUNK_HEADER_SIZE
from bottomless.formats.segment import (
    CHECKPOINT_SIZE,
    HEADER_SIZE,
    INDEX_RECORD_SIZE,
    encode_checkpoint,
)
from bottomless.model.record import Content
from bottomless.model.rows import Rows
from bottomless.model.segment import Checkpoint
from bottomless_server.ingest.log.core.batcher import seal_round
from bottomless_server.ingest.log.layout import CHECKPOINT_NAME, index_path, segment_path
from bottomless_server.ingest.log.recovery import Recovered, recover
from bottomless_server.ingest.log.segments import RollBounds, SegmentLog
from bottomless_server.ingest.records.intake import Append
from bottomless_server.node.file_calls import RealFileCalls
from unit.ingest.harness import STREAM, RecordedFiles

ROLL = RollBounds(size_max=100_000, age_ms_max=10**9, chunk_count_max=4)
CHUNK_SIZE_MAX = 8_192


def an_append(size: int, count: int = 1) -> Append:
    rows = Rows([b"x" * size] * count, [Content.BYTES] * count)
    return Append(count, rows.size, 7, rows)


def written(directory: Path, sizes: Sequence[int], roll: RollBounds = ROLL) -> SegmentLog:
    """A log of appends of these sizes, each a round; one above CHUNK_SIZE_MAX is a group."""
    directory.mkdir(parents=True)
    log = SegmentLog(
        RealFileCalls(), directory, STREAM, roll, segments=[], next_offset=0, last_timestamp=0
    )
    add(log, sizes)
    log.close()
    return log


def add(log: SegmentLog, sizes: Sequence[int], timestamp: int = 1_000) -> None:
    for number, size in enumerate(sizes):
        appends = [an_append(size // 16, 16) if size > CHUNK_SIZE_MAX else an_append(size)]
        sealed = seal_round(
            appends,
            next_offset=log.synced_next,
            timestamp=timestamp + number,
            epoch=3,
            chunk_size_max=CHUNK_SIZE_MAX,
        )
        log.extend(log.sync(log.write(sealed, epoch=3, elapsed=0)))


def checkpoint(log: SegmentLog) -> None:
    """Note that everything so far is durable."""
    segment, position = log.synced_place()
    point = Checkpoint(STREAM, segment, position, log.synced_next, log.last_timestamp, 3, 0, 0, 0)
    log.save_checkpoint(point)


class HastyFiles(RealFileCalls):
    """Without syncs, where a thousand logs are looked at and no power is lost."""

    def fdatasync(self, fd: int) -> None:
        pass

    def fsync_dir(self, path: Path) -> None:
        pass


def recovered(directory: Path, files: RealFileCalls | None = None) -> Recovered:
    return recover(files or RealFileCalls(), directory, STREAM, 0)


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


def places(log: Recovered) -> list[tuple[int, int]]:
    return [
        (place.first_offset, place.position)
        for segment in log.segments
        for place in (segment.index.place(n) for n in range(len(segment.index)))
    ]


def test_a_whole_log_is_what_was_written(tmp_path: Path) -> None:
    log = written(tmp_path / "log", [100] * 10)

    found = recovered(log.directory)

    assert (found.next_offset, found.last_timestamp, found.epoch) == (10, 1_009, 3)
    assert found.cut_size == 0
    assert [s.first_offset for s in found.segments] == [0, 4, 8]
    assert [s.size for s in found.segments] == [s.size for s in log.segments]
    assert [s.log_start for s in found.segments] == [s.log_start for s in log.segments]
    assert found.segments[1].index.encoded() == log.segments[1].index.encoded()


def test_an_empty_or_missing_directory_is_an_empty_log(tmp_path: Path) -> None:
    assert recovered(tmp_path / "nothing").next_offset == 0
    assert recovered(tmp_path).segments == []


@pytest.mark.parametrize("last", [300, 20_000], ids=["chunk", "group"])
def test_a_log_cut_at_any_byte_of_its_last_two_rounds_keeps_the_whole_ones(
    tmp_path: Path, last: int
) -> None:
    roll = RollBounds(10**9, 10**9, 10**6)
    log = written(tmp_path / "log", [100, 200, last], roll)
    path = segment_path(log.directory, 0)
    data = path.read_bytes()
    ends = [log.segments[0].index.place(number).position for number in (0, 1, 2)] + [len(data)]
    for size in range(ends[1], len(data), 1 if last == 300 else 61):
        path.write_bytes(data[:size])
        index_path(log.directory, 0).unlink(missing_ok=True)

        found = recovered(log.directory, HastyFiles())

        whole = sum(end <= size for end in ends[1:])
        assert found.next_offset == whole, size
        assert path.stat().st_size == found.segments[0].size == ends[whole]


@settings(max_examples=60)
@given(position=st.integers(0, 10**6))
def test_any_flipped_bit_of_a_last_chunk_without_a_record_in_the_index_cuts_it(
    tmp_path_factory: pytest.TempPathFactory, position: int
) -> None:
    log = written(tmp_path_factory.mktemp("flip") / "log", [100, 200, 300])
    start = log.segments[0].index.place(2).position
    flip(segment_path(log.directory, 0), start + position % (log.segments[0].size - start))
    index_path(log.directory, 0).unlink()

    found = recovered(log.directory)

    assert found.next_offset == 2
    assert found.cut_size == log.segments[0].size - start


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_bad_chunk_that_the_index_names_is_damage_and_the_others_stay(
    tmp_path: Path, number: int
) -> None:
    """M32: each byte of its header, and one of its data.

    Above the checkpoint too, the last chunk too: its record was written after its sync. Once
    it was taken for a torn end: what had been acknowledged was cut, its offset given again.
    """
    log = written(tmp_path / "log", [100, 200, 300])
    path = segment_path(log.directory, 0)
    good, start = path.read_bytes(), log.segments[0].index.place(number).position
    for byte in (*range(CHUNK_HEADER_SIZE), 100):
        path.write_bytes(good)
        flip(path, start + byte)
        data = path.read_bytes()

        found = recovered(log.directory)

        assert (found.next_offset, found.cut_size) == (3, 0), byte
        assert places(found) == places(Recovered(log.segments, 0, 0, 0, None))
        assert path.read_bytes() == data


def test_any_flipped_byte_of_a_segment_header_or_checkpoint_is_damage_and_nothing_is_cut(
    tmp_path: Path,
) -> None:
    """M32. Of an index file's header it costs the index, which is made again."""
    log = written(tmp_path / "log", [100, 200, 300])
    checkpoint(log)
    for path, size in (
        (segment_path(log.directory, 0), HEADER_SIZE),
        (log.directory / CHECKPOINT_NAME, CHECKPOINT_SIZE),
    ):
        good = path.read_bytes()
        for byte in range(size):
            flip(path, byte)
            with pytest.raises(Corrupt):
                recovered(log.directory)
            flip(path, byte)
            assert path.read_bytes() == good, byte
    index = index_path(log.directory, 0)
    good = index.read_bytes()
    for byte in range(0, len(good), 7):
        flip(index, byte)
        assert (recovered(log.directory).next_offset, index.read_bytes()) == (3, good), byte


def test_a_bad_chunk_of_a_group_that_the_index_names_leaves_the_group_whole(tmp_path: Path) -> None:
    log = written(tmp_path / "log", [100, 20_000], RollBounds(10**9, 10**9, 10**6))
    chunks = len(log.segments[0].index)
    assert chunks > 3
    flip(segment_path(log.directory, 0), log.segments[0].index.place(2).position + 20)

    found = recovered(log.directory)

    assert (found.next_offset, found.cut_size) == (17, 0)
    assert len(found.segments[0].index) == chunks


def test_a_bad_chunk_with_a_later_round_behind_it_is_damage_and_stays(tmp_path: Path) -> None:
    """Above the checkpoint too: a round is written only after the one before was synced."""
    log = written(tmp_path / "log", [100, 200, 300])
    path = segment_path(log.directory, 0)
    index_path(log.directory, 0).unlink()
    flip(path, log.segments[0].index.place(1).position + 100)
    data = path.read_bytes()

    with pytest.raises(Corrupt, match="damage at offset 1"):
        recovered(log.directory)

    assert path.read_bytes() == data


def test_a_group_torn_in_its_middle_is_cut_as_a_whole(tmp_path: Path) -> None:
    """Chunks of one write reach the disk in any order."""
    log = written(tmp_path / "log", [100, 20_000], RollBounds(10**9, 10**9, 10**6))
    assert len(log.segments[0].index) > 2
    index_path(log.directory, 0).unlink()
    flip(segment_path(log.directory, 0), log.segments[0].index.place(1).position + 100)

    assert recovered(log.directory).next_offset == 1


def test_damage_below_the_checkpoint_is_never_cut(tmp_path: Path) -> None:
    log = written(tmp_path / "log", [100, 200, 300])
    checkpoint(log)
    path = segment_path(log.directory, 0)
    index_path(log.directory, 0).unlink()
    flip(path, log.segments[0].index.place(2).position + 100)
    data = path.read_bytes()

    with pytest.raises(Corrupt):
        recovered(log.directory)

    assert path.read_bytes() == data


def test_a_log_shorter_than_its_checkpoint_is_damaged(tmp_path: Path) -> None:
    log = written(tmp_path / "log", [100, 200, 300])
    checkpoint(log)
    path = segment_path(log.directory, 0)
    path.write_bytes(path.read_bytes()[:-8])

    with pytest.raises(Corrupt):
        recovered(log.directory)


@pytest.mark.parametrize("victim", [0, 4, 8])
def test_a_segment_that_is_missing_is_damage(tmp_path: Path, victim: int) -> None:
    log = written(tmp_path / "log", [100] * 10)
    checkpoint(log)
    segment_path(log.directory, victim).unlink()

    if victim == 0:
        # As after a free whose deletion of the index was lost.
        assert recovered(log.directory).segments[0].first_offset == 4
    else:
        with pytest.raises(Corrupt):
            recovered(log.directory)


@settings(max_examples=150)
@given(
    lost=st.sets(st.integers(0, 5)),
    noted=st.none() | st.integers(0, 24),
    whole=st.booleans(),
    indexes=st.booleans(),
)
@example(lost={0}, noted=1, whole=True, indexes=True)
def test_whichever_segments_are_lost_the_rest_is_a_log_or_it_is_damage(
    lost: set[int], noted: int | None, whole: bool, indexes: bool
) -> None:
    """With a checkpoint at any place, also in what is lost, or without one; a lost index or not.

    The checks before knew lost segments with a checkpoint at the end of the log only, which is
    beyond whatever was lost. Soon after a start it lies in the oldest segment.
    """
    with TemporaryDirectory() as scratch:
        log = written(Path(scratch) / "log", [100] * (noted or 0))
        if noted is not None:
            checkpoint(log)
        add(log, [100] * (24 - (noted or 0)))
        log.close()
        if noted is not None and not whole:
            (log.directory / CHECKPOINT_NAME).unlink()
        for number in lost:
            segment_path(log.directory, 4 * number).unlink()
            if indexes:
                index_path(log.directory, 4 * number).unlink()
        kept = sorted(set(range(6)) - lost)
        synced = noted if noted is not None and whole else 0
        before = {path.name: path.read_bytes() for path in log.directory.iterdir()}

        end = 4 * (kept[-1] + 1) if kept else 0
        between = bool(kept) and kept != list(range(kept[0], kept[-1] + 1))
        if between or end < synced:
            with pytest.raises(Corrupt):
                recovered(log.directory, HastyFiles())
            assert before == {path.name: path.read_bytes() for path in log.directory.iterdir()}
            return
        found = recovered(log.directory, HastyFiles())
        assert [segment.first_offset for segment in found.segments] == [4 * n for n in kept]
        assert (found.next_offset, found.cut_size) == (end, 0)
        assert [first for first, _ in places(found)] == list(range(4 * kept[0] if kept else 0, end))


def test_damage_in_a_segment_that_is_not_the_last_is_never_cut(tmp_path: Path) -> None:
    log = written(tmp_path / "log", [100] * 10)
    index_path(log.directory, 4).unlink()
    flip(segment_path(log.directory, 4), log.segments[1].size - 10)

    with pytest.raises(Corrupt):
        recovered(log.directory)


def test_a_damaged_checkpoint_is_damage(tmp_path: Path) -> None:
    log = written(tmp_path / "log", [100])
    checkpoint(log)
    flip(log.directory / CHECKPOINT_NAME, 40)

    with pytest.raises(Corrupt):
        recovered(log.directory)


def test_a_checkpoint_of_another_stream_is_damage(tmp_path: Path) -> None:
    log = written(tmp_path / "log", [100])
    other = Checkpoint(type(STREAM)("0198d2a4-5b1e-7c3a-9a51-000000000000"), 0, 0, 0, 0, 1, 0, 0, 0)
    (log.directory / CHECKPOINT_NAME).write_bytes(encode_checkpoint(other))

    with pytest.raises(Corrupt):
        recovered(log.directory)


@pytest.mark.parametrize("size", [0, 1, HEADER_SIZE - 1])
def test_a_segment_that_was_being_made_is_made_anew(tmp_path: Path, size: int) -> None:
    log = written(tmp_path / "log", [100])
    checkpoint(log)
    segment_path(log.directory, 1).write_bytes(b"x" * size)

    found = recovered(log.directory)

    assert found.next_offset == 1
    assert not segment_path(log.directory, 1).exists()


@pytest.mark.parametrize("harm", ["missing", "short", "other bytes", "another's", "longer"])
def test_an_index_is_made_again_from_the_chunks(tmp_path: Path, harm: str) -> None:
    log = written(tmp_path / "log", [100] * 10)
    checkpoint(log)
    path = index_path(log.directory, 4)
    good = path.read_bytes()
    match harm:
        case "missing":
            path.unlink()
        case "short":
            path.write_bytes(good[: -INDEX_RECORD_SIZE - 5])
        case "other bytes":
            flip(path, HEADER_SIZE + INDEX_RECORD_SIZE + 3)
        case "another's":
            shutil.copy(index_path(log.directory, 0), path)
        case "longer":
            path.write_bytes(good + b"x" * INDEX_RECORD_SIZE)

    found = recovered(log.directory)

    assert places(found) == places(Recovered(log.segments, 0, 0, 0, None))
    assert path.read_bytes() == good


class CountingReads(RealFileCalls):
    """Notes how much each read asks for: that much memory is taken, whatever the file holds."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def pread(self, fd: int, size: int, position: int) -> bytes:
        self.asked.append(size)
        return super().pread(fd, size, position)


def test_chunks_below_the_checkpoint_are_not_read_again(tmp_path: Path) -> None:
    log = written(tmp_path / "log", [50_000] * 3, RollBounds(10**9, 10**9, 10**6))
    checkpoint(log)
    files = CountingReads()

    assert recover(files, log.directory, STREAM, 0).next_offset == 48
    assert max(files.asked) < 2_000


@pytest.mark.parametrize("indexed", [True, False])
def test_no_read_asks_for_more_than_its_file_holds(tmp_path: Path, indexed: bool) -> None:
    """An index was read with 2 GiB once; and of a torn round the header says what was to come."""
    log = written(tmp_path / "log", [100, 8_000], RollBounds(10**9, 10**9, 10**6))
    path = segment_path(log.directory, 0)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-6_000])
    if not indexed:
        index_path(log.directory, 0).unlink()
    files = CountingReads()

    assert recover(files, log.directory, STREAM, 0).next_offset == 1
    assert max(files.asked) < size - 6_000


def test_the_search_for_a_later_round_has_little_in_memory(tmp_path: Path) -> None:
    """However much lies behind the damage; and it meets a chunk on the border of two windows."""
    roll = RollBounds(10**9, 10**9, 10**6)
    log = written(tmp_path / "log", [100] + [1_000_000] * 6 + [100], roll)
    index_path(log.directory, 0).unlink()
    whole = segment_path(log.directory, 0).read_bytes()
    flip(segment_path(log.directory, 0), log.segments[0].index.place(0).position + 20)
    files = CountingReads()
    with pytest.raises(Corrupt, match="damage at offset 0"):
        recover(files, log.directory, STREAM, 0)
    assert max(files.asked) < len(whole) / 4

    # The damage hides all but the last chunk, which begins two bytes before a border.
    start, last = HEADER_SIZE, log.segments[0].index.place(len(log.segments[0].index) - 1)
    border = start + 8 + 1024 * 1024
    torn = whole[:start] + bytes(border - 2 - start) + whole[last.position :]
    segment_path(log.directory, 0).write_bytes(torn)
    assert recovered(log.directory).next_offset == 0, "one round alone proves no later one"
    segment_path(log.directory, 0).write_bytes(torn + whole[last.position :])
    with pytest.raises(Corrupt, match="damage at offset 0"):
        recovered(log.directory)


def test_what_is_offered_was_synced_with_its_directory(tmp_path: Path) -> None:
    log = written(tmp_path / "log", [100] * 2)
    files = RecordedFiles()

    recover(files, log.directory, STREAM, 0)

    names = [call.name for call in files.calls]
    assert names == ["fdatasync", "fsync_dir"]


def test_nothing_behind_a_failed_sync_is_believed(tmp_path: Path) -> None:
    log = written(tmp_path / "log", [100, 200, 300])
    place = log.segments[0].index.place(1)

    found = recover(RealFileCalls(), log.directory, STREAM, 0, cut_at=(0, place.position))

    assert found.next_offset == 1
    assert segment_path(log.directory, 0).stat().st_size == place.position


def test_a_recovered_log_goes_on_where_it_ended(tmp_path: Path) -> None:
    log = written(tmp_path / "log", [100] * 5)
    path = segment_path(log.directory, 4)
    path.write_bytes(path.read_bytes() + b"torn")
    found = recovered(log.directory)
    again = SegmentLog(
        RealFileCalls(),
        log.directory,
        STREAM,
        ROLL,
        segments=found.segments,
        next_offset=found.next_offset,
        last_timestamp=0,
    )
    again.last_timestamp = found.last_timestamp

    add(again, [100] * 5)
    again.close()

    last = recovered(log.directory)
    assert last.next_offset == 10
    assert [s.first_offset for s in last.segments] == [0, 4, 8]


class _Died(BaseException):
    """The process is gone: nothing of it runs on."""


def dies_after_a_failed_sync(disk: PowerLossDisk, directory: Path, sync_count: int) -> None:
    """Append until the sync of this number fails, and die before anything can be cut."""
    failed = False

    def before(call: str, path: Path) -> None:
        nonlocal failed, sync_count
        if failed and call in ("truncate", "unlink"):
            raise _Died
        if call == "fdatasync" and path.suffix == ".segment":
            sync_count -= 1
            if sync_count == 0:
                failed = True
                raise OSError(errno.EIO, "not written")

    disk.make_dir(directory)
    disk.fsync_dir(directory.parent)
    disk.before = before
    with pytest.raises(_Died):
        add(
            SegmentLog(disk, directory, STREAM, ROLL, segments=[], next_offset=0, last_timestamp=0),
            [100] * 10,
        )
    disk.before = lambda _, __: None
    disk.end_processes()


@pytest.mark.parametrize("sync_count", [1, 2, 4], ids=["header", "first round", "later round"])
@pytest.mark.parametrize("indexed", [True, False])
def test_what_is_offered_after_a_death_behind_a_failed_sync_outlives_a_power_cut(
    tmp_path: Path, sync_count: int, *, indexed: bool
) -> None:
    """The kernel counts what it did not write as clean: a later sync alone would not bring it."""
    directory, kept = tmp_path / "log", set()
    for seed in range(10):
        disk = PowerLossDisk(tmp_path)
        dies_after_a_failed_sync(disk, directory, sync_count)
        if not indexed and index_path(directory, 0).name in disk.names(directory):
            disk.unlink(index_path(directory, 0))
        offered = recover(disk, directory, STREAM, 0)
        log = SegmentLog(
            disk,
            directory,
            STREAM,
            ROLL,
            segments=offered.segments,
            next_offset=offered.next_offset,
            last_timestamp=offered.last_timestamp,
        )
        kept.add(offered.next_offset)
        if seed % 2:
            add(log, [100], 2_000)

        disk.lose_power(random.Random(seed))

        found = recover(disk, directory, STREAM, 0)
        assert found.next_offset == log.synced_next
        assert places(found)[: len(places(offered))] == places(offered)
    # Nobody was answered, so it may be kept or cut; here it is kept, or this showed nothing.
    assert kept == {max(sync_count - 1, 0)}


def test_only_what_nothing_proves_to_be_synced_is_written_again(tmp_path: Path) -> None:
    log = written(tmp_path / "log", [100, 200, 300])
    files = RecordedFiles()

    recover(files, log.directory, STREAM, 0)
    assert [call.name for call in files.calls if call.path.endswith(".segment")] == ["fdatasync"]

    index = index_path(log.directory, 0)
    index.write_bytes(index.read_bytes()[:-INDEX_RECORD_SIZE])
    files.calls.clear()
    recover(files, log.directory, STREAM, 0)
    calls = [(call.name, call.end) for call in files.calls if call.path.endswith(".segment")]
    assert calls == [("pwritev", log.segments[0].size), ("fdatasync", 0)]
    assert recovered(log.directory).next_offset == 3
