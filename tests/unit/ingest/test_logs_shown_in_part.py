"""A log that is opened with less shown of it than it holds: the rest may lie on this disk alone."""

from pathlib import Path
from typing import Final

import pytest

from bottomless.formats.segment import HEADER_SIZE
from bottomless.model.names import StreamId
from bottomless.model.record import Content
from bottomless.model.rows import Rows
from bottomless_server.ingest.log.core.batcher import Round, seal_round, seal_state
from bottomless_server.ingest.log.segments import RollBounds, SegmentLog, Written
from bottomless_server.ingest.records.intake import Append
from bottomless_server.node.file_calls import RealFileCalls

STREAM: Final = StreamId("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11")
ROLL: Final = RollBounds(size_max=10_000, age_ms_max=10**9, chunk_count_max=10**6)
END: Final = 8
"""Where the log ends: four rounds of two records, and a new segment after the first two."""


def add(log: SegmentLog, sealed: Round) -> Written:
    written = log.sync(log.write(sealed, 3, 0))
    log.extend(written)
    return written


def of_two(log: SegmentLog) -> Round:
    rows = Rows([b"x" * 2_000] * 2, [Content.BYTES] * 2)
    return seal_round(
        [Append(2, rows.size, 7, rows)],
        next_offset=log.synced_next,
        timestamp=1_000 + log.synced_next,
        epoch=3,
        chunk_size_max=8_192,
    )


def of_none(log: SegmentLog) -> Round:
    """A chunk without records, which moves no offset."""
    chunk = seal_state([], first_offset=log.synced_next, timestamp=log.last_timestamp, epoch=3)
    return Round([chunk], [], log.last_timestamp, log.synced_next)


@pytest.fixture
def held(tmp_path: Path) -> SegmentLog:
    log = SegmentLog(
        RealFileCalls(), tmp_path, STREAM, ROLL, segments=[], next_offset=0, last_timestamp=0
    )
    for _ in range(4):
        log.commit(add(log, of_two(log)))
        log.commit(add(log, of_none(log)))
    log.close()
    assert [one.first_offset for one in log.segments] == [0, 4]
    assert log.synced_next == END
    return log


def opened(held: SegmentLog, shown: int | None) -> SegmentLog:
    return SegmentLog(
        RealFileCalls(),
        held.directory,
        STREAM,
        ROLL,
        segments=held.segments,
        next_offset=held.synced_next,
        last_timestamp=held.last_timestamp,
        committed_next=shown,
    )


@pytest.mark.parametrize("shown", [0, 2, 4, 6])
def test_what_was_found_after_a_bound_is_not_shown_before_it_is_committed(
    held: SegmentLog, shown: int
) -> None:
    log = opened(held, shown)
    assert (log.committed_next, log.synced_next) == (shown, END)
    assert log.last_chunk_offset == (shown - 2 if shown else None)
    # Two chunks a round. Those without records are not known to lie elsewhere.
    visible = [log.committed_count(one) for one in log.segments]
    assert visible == {0: [0, 0], 2: [1, 0], 4: [3, 0], 6: [4, 1]}[shown]

    log.commit_found()
    assert (log.committed_next, log.committed_end) == (END, log.synced_end)
    assert [log.committed_count(one) for one in log.segments] == [4, 4]
    assert log.last_chunk_offset == END - 2


def test_what_is_committed_ends_at_a_place_also_in_a_segment_before_the_last(
    held: SegmentLog,
) -> None:
    first, last = held.segments
    assert opened(held, 0).committed_place() == (0, 0)
    segment, position = opened(held, 2).committed_place()
    assert (segment, HEADER_SIZE < position < first.size) == (first.first_offset, True)
    assert opened(held, 6).committed_place()[0] == last.first_offset
    log = opened(held, 6)
    log.commit_found()
    assert log.committed_place() == log.synced_place() == log.chunks_end()


@pytest.mark.parametrize("shown", [None, END, END + 5])
def test_a_log_that_lies_wherever_it_has_to_is_shown_at_once(
    held: SegmentLog, shown: int | None
) -> None:
    log = opened(held, shown)
    assert (log.committed_next, log.committed_end) == (END, log.synced_end)


def test_an_empty_log_has_nothing_to_wait_for(tmp_path: Path) -> None:
    log = SegmentLog(
        RealFileCalls(),
        tmp_path,
        STREAM,
        ROLL,
        segments=[],
        next_offset=END,
        last_timestamp=0,
        committed_next=END,
    )
    assert (log.committed_next, log.committed_end, log.synced_end) == (END, 0, 0)


def test_rounds_go_on_after_what_was_found(held: SegmentLog) -> None:
    log = opened(held, 4)
    log.commit_found()
    written = add(log, of_two(log))
    assert log.committed_next == END
    log.commit(written)
    assert (log.committed_next, log.committed_end) == (END + 2, log.synced_end)
    log.close()
