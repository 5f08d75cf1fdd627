"""What was staged for a stream that was deleted, or that moved away, is cleared.

The checks before were blind: the streams that they deleted and moved had no plans.
"""

from dataclasses import replace
from pathlib import Path

from bottomless.model.stream import StreamRecord, StreamState
from unit.ingest.harness import INTERNAL, STREAM, IngestHarness
from unit.ingest.staging import KEEP_MS, SETTINGS, cut_off, files, stage, staged_of, sweep
from unit.ingest.test_leftovers import leftovers


async def test_what_was_staged_for_a_deleted_stream_goes_with_its_log(tmp_path: Path) -> None:
    harness = await (await IngestHarness(tmp_path / "node", **SETTINGS).declare()).start()
    await cut_off(harness, 1)
    await stage(harness, "and one without a plan")

    def decide(record: StreamRecord) -> StreamRecord:
        return replace(record, state=StreamState.DELETING, epoch=record.epoch + 1)

    await harness.streams.update(STREAM, decide)
    assert (await harness.internal.post(f"{INTERNAL}/close")).status_code == 200
    harness.streams.generation = 0
    await leftovers(harness).sweep()

    assert files(harness) == []
    assert staged_of(harness).size == 0
    assert staged_of(harness)._streams == {}
    assert not harness.directory.exists()
    await harness.aclose()


async def test_the_plan_of_a_stream_that_moved_away_goes_with_its_batches(tmp_path: Path) -> None:
    harness = await (await IngestHarness(tmp_path / "node", **SETTINGS).declare()).start()
    await cut_off(harness, 0)
    await harness.aclose()
    other = IngestHarness(tmp_path / "other", before=harness, ingest_url="unix:///other.sock")
    await other.start()
    assert (await other.append("x")).status_code == 200
    back = await IngestHarness(harness.data_dir, before=harness).start()
    assert len(files(back)) == 4

    await back.advance(11 * KEEP_MS)
    await sweep(back)

    assert files(back) == []
    assert staged_of(back)._streams == {}
    await back.aclose()
    await other.aclose()
