"""Many streams, few file handles: who writes nothing holds none beyond a bound."""

from pathlib import Path

import httpx
from support.counting import CountedFiles
from support.waiting import eventually

from bottomless.model.config import StreamConfig
from bottomless.model.names import StreamId, StreamName
from bottomless.model.stream import StreamRecord, StreamState
from unit.ingest.harness import IngestHarness, RecordedFiles, broken_disk

STREAM_COUNT = 6
KEPT_COUNT = 2


class HeldFiles(CountedFiles):
    """Which handles are open."""

    def __init__(self) -> None:
        super().__init__()
        self.held: set[int] = set()

    def open(self, path: Path, *, create: bool = False) -> int:
        fd = super().open(path, create=create)
        self.held.add(fd)
        return fd

    def close(self, fd: int) -> None:
        self.held.discard(fd)
        super().close(fd)


async def a_harness(directory: Path, files: HeldFiles, kept: int) -> IngestHarness:
    harness = IngestHarness(directory / "data", files=files, ingest_open_log_count_max=kept)  # type: ignore[arg-type]
    for number in range(STREAM_COUNT):
        stream_id = StreamId(f"0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c{number:02d}")
        name = StreamName(f"s{number}")
        await harness.streams.create(
            StreamRecord(stream_id, name, "default", StreamState.ACTIVE, 0, StreamConfig())
        )
    return await harness.start()


async def append_everywhere(harness: IngestHarness) -> list[int]:
    """Where a record in each stream was put."""

    async def append(number: int) -> httpx.Response:
        records = {"records": [{"value": "x"}]}
        return await harness.client.post(f"/v1/streams/s{number}/records", json=records)

    answers = [await append(number) for number in range(STREAM_COUNT)]
    return [answer.json()["first_offset"] for answer in answers]


async def test_streams_beyond_the_bound_give_their_handles_back_and_are_written_on(
    tmp_path: Path,
) -> None:
    files = HeldFiles()
    harness = await a_harness(tmp_path, files, KEPT_COUNT)
    for round_number in range(3):
        assert await append_everywhere(harness) == [round_number] * STREAM_COUNT
        await eventually(lambda: len(files.held) <= 2 * KEPT_COUNT)
    await harness.aclose()
    assert not files.held


async def test_below_the_bound_nothing_is_closed(tmp_path: Path) -> None:
    files = HeldFiles()
    harness = await a_harness(tmp_path, files, STREAM_COUNT)
    await append_everywhere(harness)
    files.taken()
    await append_everywhere(harness)
    assert files.taken()["open .segment"] == 0
    assert len(files.held) == 2 * STREAM_COUNT
    await harness.aclose()


async def test_an_index_with_a_missing_record_is_not_written_again_after_a_rest(
    tmp_path: Path,
) -> None:
    files = RecordedFiles()
    harness = await (await IngestHarness(tmp_path / "data", files=files).declare()).start()
    await harness.append("a")
    files.only_on = ".index"
    files.faults["pwritev"] = [broken_disk()]
    await harness.append("b")
    harness.appender.rest()
    await eventually(lambda: not harness.appender.log.is_open)
    written = [call for call in files.calls if call.path.endswith(".index")]
    await harness.append("c")
    assert [call for call in files.calls if call.path.endswith(".index")] == written
    after = await harness.after_crash().start()
    assert await after.values() == [b"a", b"b", b"c"]
    await after.aclose()
    await harness.aclose()
