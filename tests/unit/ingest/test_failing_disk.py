"""What appends hear when the disk fails, and what is there afterwards."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.guards import remove
from support.power_loss import OWN

from bottomless_server.ingest.log.core import round_shares
from unit.ingest.harness import IngestHarness, RecordedFiles, broken_disk, no_space, problem


async def test_a_full_disk_refuses_and_takes_again_when_there_is_room(
    harness: IngestHarness,
) -> None:
    await harness.append("before")
    harness.files.faults["pwritev"] = [no_space()]

    refused = await harness.append("refused")

    assert problem(refused) == (503, "storage-full")
    assert refused.json()["outcome"] == "none"
    assert (await harness.append("after")).json()["first_offset"] == 1
    assert await harness.values() == [b"before", b"after"]


async def test_a_short_write_is_cut_and_synced_before_the_next_one(harness: IngestHarness) -> None:
    await harness.append("before")
    size = harness.segments()[0].stat().st_size
    harness.files.calls.clear()
    harness.files.faults["pwritev"] = [16, no_space()]

    assert problem(await harness.append("refused")) == (503, "storage-full")

    assert harness.segments()[0].stat().st_size == size
    assert [call.name for call in harness.files.calls] == ["truncate", "fdatasync"]
    await harness.append("after")
    after = harness.after_crash()
    await after.start()
    assert await after.values() == [b"before", b"after"]
    await after.aclose()


async def test_another_write_error_is_said_to_be_one(harness: IngestHarness) -> None:
    harness.files.faults["pwritev"] = [broken_disk()]

    refused = await harness.append("refused")

    assert problem(refused) == (503, "storage-failed")
    assert refused.json()["outcome"] == "none"
    assert (await harness.append("after")).json()["first_offset"] == 0


@pytest.mark.parametrize("call", ["create", "fdatasync"])
async def test_a_segment_that_cannot_be_begun_is_begun_by_the_next_append(
    harness: IngestHarness, call: str
) -> None:
    harness.files.faults[call] = [no_space()]

    assert problem(await harness.append("refused")) == (503, "storage-full")

    assert (await harness.append("after")).json()["first_offset"] == 0
    assert await harness.values() == [b"after"]


async def test_after_a_failed_sync_nothing_is_acknowledged_and_the_stream_recovers(
    harness: IngestHarness,
) -> None:
    await harness.append("before")
    harness.files.faults["fdatasync"] = [broken_disk()]
    epoch = harness.appender.claim.epoch

    unknown = await harness.append("unknown")

    assert problem(unknown) == (503, "storage-failed")
    assert unknown.json()["outcome"] == "unknown"
    assert (await harness.append("after")).json()["first_offset"] == 1
    assert await harness.values() == [b"before", b"after"]
    assert harness.appender.claim.epoch == epoch + 1


async def test_a_sync_is_not_tried_again_on_what_it_failed_for(harness: IngestHarness) -> None:
    """The kernel says yes the second time, and the data is nowhere."""
    await harness.append("before")
    harness.files.faults["fdatasync"] = [broken_disk()]
    harness.files.faults["truncate"] = [broken_disk()]
    harness.files.calls.clear()

    await harness.append("unknown")
    await harness.append("after")

    names = [call.name for call in harness.files.calls if ".segment" in call.path]
    assert names[0] == "pwritev"
    assert names[1:3] == ["truncate", "fdatasync"]
    assert await harness.values() == [b"before", b"after"]


async def test_what_waits_behind_a_failed_sync_is_refused_and_not_stored(
    harness: IngestHarness,
) -> None:
    await harness.append("before")
    harness.files.faults["fdatasync"] = [broken_disk()]

    answers = await asyncio.gather(*(harness.append(f"{n}") for n in range(5)))

    refused = {answer.json()["outcome"] for answer in answers if answer.status_code == 503}
    assert refused <= {"unknown", "none"}
    assert any(answer.status_code == 503 for answer in answers)
    acknowledged = [answer for answer in answers if answer.status_code == 200]
    assert len(await harness.values()) == 1 + len(acknowledged)


async def test_a_write_that_cannot_be_undone_stops_the_stream_until_it_is_recovered(
    harness: IngestHarness,
) -> None:
    await harness.append("before")
    harness.files.faults["pwritev"] = [16, no_space()]
    harness.files.faults["truncate"] = [broken_disk()]

    unknown = await harness.append("unknown")

    assert problem(unknown) == (503, "storage-failed")
    assert unknown.json()["outcome"] == "unknown"
    assert (await harness.append("after")).json()["first_offset"] == 1
    assert await harness.values() == [b"before", b"after"]


async def test_an_index_that_cannot_be_written_costs_nothing_but_its_making(
    harness: IngestHarness,
) -> None:
    harness.files.only_on = ".index"
    harness.files.faults["pwritev"] = [no_space()]
    for number in range(5):
        assert (await harness.append(str(number))).status_code == 200

    after = harness.after_crash()
    await after.start()

    assert await after.values() == await harness.values() == [b"0", b"1", b"2", b"3", b"4"]
    await after.aclose()


async def test_a_checkpoint_that_cannot_be_written_stops_nothing(harness: IngestHarness) -> None:
    await harness.append("a")
    harness.files.only_on = "checkpoint"
    harness.files.faults["fdatasync"] = [no_space()]
    await harness.published(1)

    assert (await harness.append("b")).status_code == 200
    assert (await harness.published(2)).status_code == 200
    assert (await harness.append("c")).status_code == 200


async def test_local_logs_are_bounded(tmp_path: Path) -> None:
    harness = await IngestHarness(tmp_path / "ingest", ingest_disk_bytes_max=10_000).declare()
    await harness.start()
    while (answer := await harness.append("x" * 1_000)).status_code == 200:
        assert len(await harness.rows()) < 20

    assert problem(answer) == (429, "disk-bound")
    assert answer.headers["retry-after"]
    await harness.aclose()


@pytest.fixture
async def synced_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[IngestHarness]:
    """Of whose disk everything is synced at once, also for a single round."""
    monkeypatch.setattr(round_shares, "ALL_FROM", 1)
    monkeypatch.setattr(round_shares, "SLOW_SECONDS", 10**6)
    made = await IngestHarness(tmp_path / "whole", files=RecordedFiles(OWN)).declare()
    await made.start()
    yield made
    await made.aclose()


async def test_after_a_failed_sync_of_everything_each_file_says_whether_it_lost_anything(
    synced_as_a_whole: IngestHarness,
) -> None:
    harness = synced_as_a_whole
    await harness.append("before")
    harness.files.calls.clear()
    harness.files.faults["syncfs"] = [broken_disk()]

    answer = await harness.append("here")

    assert answer.status_code == 200
    assert [call.name for call in harness.files.calls if ".segment" in call.path] == [
        "pwritev",
        "fdatasync",
    ]
    assert await harness.values() == [b"before", b"here"]


async def test_what_is_lost_is_not_acknowledged_where_everything_is_synced_at_once(
    synced_as_a_whole: IngestHarness,
) -> None:
    harness = synced_as_a_whole
    await harness.append("before")
    harness.files.faults["syncfs"] = [broken_disk()]
    harness.files.faults["fdatasync"] = [broken_disk()]

    unknown = await harness.append("unknown")

    assert problem(unknown) == (503, "storage-failed")
    assert unknown.json()["outcome"] == "unknown"
    assert (await harness.append("after")).json()["first_offset"] == 1
    assert await harness.values() == [b"before", b"after"]


async def test_without_that_sync_of_each_file_what_is_lost_is_acknowledged(
    synced_as_a_whole: IngestHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch, "the sync of each file after one of all that failed", lambda _error: True)

    with pytest.raises(AssertionError):
        await test_what_is_lost_is_not_acknowledged_where_everything_is_synced_at_once(
            synced_as_a_whole
        )


async def test_a_short_write_is_cut_before_the_next_one_where_everything_is_synced_at_once(
    synced_as_a_whole: IngestHarness,
) -> None:
    await test_a_short_write_is_cut_and_synced_before_the_next_one(synced_as_a_whole)
