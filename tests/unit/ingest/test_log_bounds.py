"""The two bounds of a log: what is durable on this disk, and what may be shown.

The product moves both in one turn of the loop; here a round stays between them.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from bottomless.model.record import Content
from bottomless.model.rows import Rows
from bottomless_server.ingest.local.feed import bounds_of, locate, place_of
from bottomless_server.ingest.log.core.batcher import Round, seal_round, seal_state
from bottomless_server.ingest.log.segments import Written
from bottomless_server.ingest.records.intake import Append
from unit.ingest.harness import IngestHarness, problem

COMMITS: Final = "/internal/v1/commits"
LATER: Final = 10_000_000
"""The timestamp of the round that is held; times of harnesses begin earlier."""
SIZES: Final = {"in the same segment": 10, "in a new segment": 70_000}


@pytest.fixture
async def small(tmp_path: Path) -> AsyncIterator[IngestHarness]:
    """A stream with two records in a segment that takes little more."""
    small = IngestHarness(tmp_path / "ingest", ingest_segment_size_max=65_536)
    await (await small.declare()).start()
    await small.append("a")
    await small.append("b")
    yield small
    await small.aclose()


def synced(harness: IngestHarness, sealed: Round) -> Written:
    """A round that lies on the disk and is a part of the log, and that nobody was told of."""
    log = harness.appender.log
    written = log.sync(log.write(sealed, harness.appender.claim.epoch, 0))
    log.extend(written)
    return written


def of_records(harness: IngestHarness, size: int = 10) -> Round:
    rows = Rows([b"c" * size], [Content.BYTES])
    return seal_round(
        [Append(1, rows.size, 7, rows)],
        next_offset=harness.appender.log.synced_next,
        timestamp=harness.appender.log.last_timestamp + LATER,
        epoch=harness.appender.claim.epoch,
        chunk_size_max=1_000_000,
    )


async def shown(harness: IngestHarness) -> list[Any]:
    """All that anybody is told of a stream, with the times at which the round that is held lies."""
    appender = harness.appender
    later = appender.log.segments[0].index.place(0).timestamp + LATER
    return [
        bounds_of(appender),
        await harness.values(),
        (await harness.internal.get(COMMITS)).json()["streams"],
        locate(appender, later),
        place_of(appender, 1),
        place_of(appender, 2),
        (await harness.chunks(1)).content,
        (await harness.chunks(2)).content,
    ]


@pytest.mark.parametrize("size", SIZES.values(), ids=list(SIZES))
async def test_a_round_is_shown_to_nobody_before_it_is_committed(
    small: IngestHarness, size: int
) -> None:
    before = await shown(small)
    written = synced(small, of_records(small, size))

    assert await shown(small) == before
    log = small.appender.log
    assert (log.committed_next, log.synced_next) == (2, 3)
    log.commit(written)
    assert (log.committed_next, log.committed_end) == (3, log.synced_end)
    assert await small.values() == [b"a", b"b", b"c" * size]
    assert bounds_of(small.appender).last_chunk_offset == 2
    assert place_of(small.appender, 2) is not None


async def test_chunks_without_records_are_shown_with_their_round(small: IngestHarness) -> None:
    """They move no offset, so only the bytes tell whether they are committed."""
    before = await shown(small)
    log = small.appender.log
    chunk = seal_state([], first_offset=2, timestamp=log.last_timestamp, epoch=1)
    written = synced(small, Round([chunk], [], log.last_timestamp, 2))

    assert await shown(small) == before
    assert log.committed_count(log.segments[-1]) == 2
    assert log.committed_end == log.synced_end - chunk.size
    log.commit(written)
    assert log.committed_count(log.segments[-1]) == 3
    assert log.committed_end == log.synced_end


@pytest.mark.parametrize("size", SIZES.values(), ids=list(SIZES))
async def test_a_restart_offers_what_was_synced(small: IngestHarness, size: int) -> None:
    synced(small, of_records(small, size))
    after = await small.after_crash().start()

    assert (await after.append("d")).json()["first_offset"] == 3
    assert await after.values() == [b"a", b"b", b"c" * size, b"d"]
    await after.aclose()


async def test_a_checkpoint_names_what_is_synced(small: IngestHarness) -> None:
    synced(small, of_records(small))
    await small.aclose()
    small.segments()[-1].write_bytes(small.segments()[-1].read_bytes()[:-1])
    after = await small.after_crash().start()

    # Below its place nothing is torn: what is missing there is damage, and never cut.
    assert problem(await after.append("d"))[0] == 502
    await after.aclose()


async def test_a_stream_whose_synced_end_is_not_published_is_not_left_clean(
    small: IngestHarness,
) -> None:
    synced(small, of_records(small))
    await small.published(2)
    await small.aclose()

    assert (await small.record()).dirty


async def test_a_round_is_committed_only_as_a_part_of_the_log(small: IngestHarness) -> None:
    log = small.appender.log
    written = log.sync(log.write(of_records(small), 1, 0))
    with pytest.raises(AssertionError, match="no part of the log"):
        log.commit(written)

    log.extend(written)
    log.commit(written)
    with pytest.raises(AssertionError):
        log.commit(written)
