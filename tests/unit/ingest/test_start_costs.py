"""What a start costs for each stream that lies here, in numbers that noise cannot move."""

from collections import Counter
from pathlib import Path
from typing import Final

from support.counting import CountedCoordination, CountedFiles

from bottomless.model.config import StreamConfig
from bottomless.model.names import StreamId, StreamName
from bottomless.model.stream import StreamRecord, StreamState
from bottomless_server.stores.joined_calls import JOINED_COUNT_MAX
from unit.ingest.harness import IngestHarness

OF_EACH: Final = Counter(
    {
        # Its directory and its checkpoint are read, its last segment and the index of it; then what
        # its producers have sent.
        "names": 1 + 1,
        "open": 1,
        "open .segment": 1 + 1,
        "open .index": 1,
        # What was read may be in memory only; then the claim is noted in a new checkpoint, of whose
        # predecessors none may lie about.
        "fdatasync .segment": 1,
        "fsync_dir": 2,
        "open .new": 1,
        "fdatasync .new": 1,
        "rename .new": 1,
    }
)
ASKED_TOGETHER: Final = Counter({"get_many": 1, "transact": 1})
"""For each 64 streams: their records as they are, and their claims."""
_READS: Final = ("close", "pread", "pwritev", "size")
"""As many as what lies there takes."""


async def started(directory: Path, count: int) -> tuple[Counter[str], Counter[str]]:
    """Calls of files and of coordination in a start that finds so many streams."""
    before = IngestHarness(directory / "data")
    for number in range(count):
        stream_id = StreamId(f"0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c{number:02x}")
        name = StreamName(f"s{number}")
        await before.streams.create(
            StreamRecord(stream_id, name, "default", StreamState.ACTIVE, 0, StreamConfig())
        )
    await before.start()
    for number in range(count):
        answer = await before.client.post(
            f"/v1/streams/s{number}/records", json={"records": [{"value": "x"}]}
        )
        assert answer.status_code == 200
    await before.aclose()
    asked = CountedCoordination(before.coordination)
    before.coordination = asked  # type: ignore[assignment]
    files = CountedFiles()
    # One thread, so that whoever is recovered with others always meets them again.
    after = IngestHarness(
        before.data_dir,
        before=before,
        files=files,  # type: ignore[arg-type]
        ingest_thread_count=1,
        # Nor does a slow machine renew its lease meanwhile.
        ingest_renew_ms=3_600_000,
    )
    try:
        asked.calls.clear()
        await after.start()
        assert len(list(after.service.streams.opened())) == count
        return files.taken(), Counter(asked.calls)
    finally:
        await after.aclose()


async def test_a_start_costs_the_same_few_calls_for_each_stream(tmp_path: Path) -> None:
    """It made and synced the directory of each stream once more, and asked coordination for each
    stream alone, twice."""
    few, many = 2, JOINED_COUNT_MAX + 6
    (files_few, asked_few), (files_many, asked_many) = (
        await started(tmp_path / "few", few),
        await started(tmp_path / "many", many),
    )
    more = many - few
    files_many.subtract(files_few)
    of_more = Counter(
        {call: n for call, n in files_many.items() if n and not call.startswith(_READS)}
    )
    assert of_more == Counter({call: more * n for call, n in OF_EACH.items()})
    asked_many.subtract(asked_few)
    assert +asked_many == ASKED_TOGETHER
