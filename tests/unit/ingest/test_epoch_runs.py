"""The epochs of a log's chunks, as its segments and their indexes say."""

from pathlib import Path

from bottomless.model.stream import EpochStart
from bottomless_server.ingest.log.epoch_runs import epochs_of
from unit.ingest.harness import IngestHarness


async def test_each_epoch_is_said_with_the_offset_at_which_it_begins(tmp_path: Path) -> None:
    harness = await (await IngestHarness(tmp_path / "ingest").declare()).start()
    assert epochs_of([]) == ()
    for value in ("a", "b"):
        assert (await harness.append(value)).status_code == 200
    # Of the epoch in between nothing is in the log.
    after = await (await harness.after_crash().start()).after_crash().start()
    assert (await after.append("c")).status_code == 200
    first, second = epochs_of(after.appender.log.segments)
    assert (first, second.first_offset) == (EpochStart(1, 0), 2)
    assert second.epoch == after.appender.claim.epoch > 2
    await after.aclose()
