"""What a writer of leaderless streams counts: by cause, stage, outcome and code."""

import asyncio

import pytest
from support.metrics import samples
from support.wire import Mishap, Passage

from bottomless.errors import Code
from bottomless.model.names import Uid
from bottomless_server.ingest.leaderless.counts import (
    AroundWriter,
    WriterCounts,
    writer_metrics,
)
from bottomless_server.ingest.leaderless.making import no_writer
from bottomless_server.ingest.leaderless.wal_cache import WalCache
from bottomless_server.ingest.producers.producers import Appended
from unit.ingest.leaderless.harness import BOUNDS, WriterProcess, a_house, until
from unit.ingest.leaderless.making import an_append

EXEC_SECONDS = 0.02
PUT_SECONDS = 0.1
WAL = "bottomless_ingest_wal"


def was_taken(writer: WriterProcess, stage: str, count: int, seconds: float) -> None:
    """A stage was counted so often, and took about so many seconds on the whole: times are in ms."""
    found = writer.counts.stages[stage]
    assert found.count == count
    assert found.total == pytest.approx(seconds, abs=0.02 * count)


def test_each_stage_of_an_append_is_counted_with_the_time_that_it_took() -> None:
    stores, writer = a_house()
    stores.trouble.always["coordination.exec"] = Passage(back_seconds=EXEC_SECONDS)
    stores.trouble.always["drive.put"] = Passage(back_seconds=PUT_SECONDS)
    writer.told(*(writer.put(stream, an_append()) for stream in range(3)))
    until(stores, lambda: writer.counts.stages["note"].count == 3)

    linger = BOUNDS.flush.linger_ms / 1000
    was_taken(writer, "linger", 1, linger)
    # The object with the notes was put too.
    was_taken(writer, "put", 2, 2 * PUT_SECONDS)
    was_taken(writer, "commit", 3, 3 * EXEC_SECONDS)
    answer = 3 * (linger + PUT_SECONDS + EXEC_SECONDS)
    was_taken(writer, "answer", 3, answer)
    note = 3 * (BOUNDS.note_ms / 1000 + PUT_SECONDS)
    was_taken(writer, "note", 3, note)


def test_an_answer_that_waits_for_its_note_is_counted_with_that_time() -> None:
    stores, writer = a_house(bounds=BOUNDS._replace(notes_sync=True))
    stores.trouble.always["drive.put"] = Passage(back_seconds=PUT_SECONDS)
    assert isinstance(writer.append(0, an_append()), Appended)

    whole = BOUNDS.flush.linger_ms / 1000 + 2 * PUT_SECONDS
    was_taken(writer, "answer", 1, whole)


def test_flushes_are_counted_by_their_cause_with_the_streams_and_bytes_of_their_objects() -> None:
    stores, writer = a_house()
    writer.told(*(writer.put(stream, an_append()) for stream in range(3)))
    large = an_append(b"x" * BOUNDS.flush.size_max)
    assert isinstance(writer.append(0, large), Appended)
    last = writer.put(0, an_append())
    writer.drain()
    writer.told(last)

    assert writer.counts.flushes == {"linger": 1, "size": 1, "drain": 1}
    assert (writer.counts.streams.count, writer.counts.streams.total) == (3, 5)
    objects = list(stores.directories().values())
    assert writer.counts.sizes.count == len(objects)
    assert writer.counts.sizes.total == sum(one.header.size for one in objects)


def test_a_group_that_is_halved_and_a_reply_that_is_lost_are_counted() -> None:
    stores, first = a_house(streams=12)
    hasty = BOUNDS._replace(flush=BOUNDS.flush._replace(linger_ms=0))
    second = WriterProcess(stores, "ingest-1", hasty).start()
    stores.trouble.always["coordination.exec"] = Passage(there_seconds=0.02, back_seconds=0.02)
    told = []
    for number in range(300):
        told.append(second.put(0, an_append()))
        if number % 10 == 0:
            told += [first.put(stream, an_append()) for stream in range(12)]
        stores.do(asyncio.sleep(0.01))
    first.told(*told)
    commits = first.counts.commits + second.counts.commits
    # A group that meets others is tried once more as it is, and only then halved.
    assert 0 < commits["split"] < commits["conflict"]

    before = commits["unknown"]
    stores.trouble.next["coordination.exec"].append(Passage(Mishap.LOSE_REPLY, silence_seconds=0.1))
    assert isinstance(first.append(5, an_append()), Appended)
    assert first.counts.commits["unknown"] + second.counts.commits["unknown"] == before + 1


def test_ranges_of_recent_objects_are_counted_by_whether_they_are_here() -> None:
    cache, instance = WalCache(100), Uid("0" * 32)
    cache.add(instance, 1, [b"abc"])
    for sequence in (1, 2, 1):
        cache.find(instance, sequence, 0, 1)
    assert (cache.found_count, cache.missed_count) == (2, 1)


def test_a_process_without_a_writer_shows_all_series_at_nought() -> None:
    shown = samples(no_writer())
    assert set(shown.values()) == {0}
    assert shown[f"{WAL}_refusals_total", ("code", "tail-bound")] == 0
    assert shown[f"{WAL}_commits_total", ("outcome", "unknown")] == 0
    assert shown[f"{WAL}_flushes_total", ("cause", "linger")] == 0
    assert shown[f"{WAL}_stage_seconds_count", ("stage", "answer")] == 0


def test_refusals_are_added_up_wherever_they_were_counted() -> None:
    counts = WriterCounts()
    counts.refusals[Code.TAIL_BOUND] += 2
    counts.refusals[Code.STREAM_FENCED] += 1
    around = AroundWriter(refusals={Code.TAIL_BOUND: 3, Code.DRAINING: 1}, held_count=4)
    shown = samples(writer_metrics(counts, around))
    refused = {one: value for one, value in shown.items() if one[0] == f"{WAL}_refusals_total"}
    assert {one[1]: value for one, value in refused.items() if value} == {
        ("code", "tail-bound"): 5,
        ("code", "stream-fenced"): 1,
        ("code", "draining"): 1,
    }
    assert shown[(f"{WAL}_held",)] == 4
