"""Many streams, few file handles: who writes nothing holds none beyond a bound."""

from pathlib import Path

import httpx
from support.counting import CountedFiles

from bottomless.model.config import StreamConfig
from bottomless.model.names import StreamId, StreamName
from bottomless.model.stream import StreamRecord, StreamState
from unit.ingest.house import House, RecordedFiles, broken_disk, eventually

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


async def a_house(directory: Path, files: HeldFiles, kept: int) -> House:
    house = House(directory / "data", files=files, ingest_open_log_count_max=kept)  # type: ignore[arg-type]
    for number in range(STREAM_COUNT):
        stream_id = StreamId(f"0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c{number:02d}")
        name = StreamName(f"s{number}")
        await house.streams.create(
            StreamRecord(stream_id, name, "default", StreamState.ACTIVE, 0, StreamConfig())
        )
    return await house.start()


async def append_everywhere(house: House) -> list[int]:
    """Where a record in each stream was put."""

    async def append(number: int) -> httpx.Response:
        records = {"records": [{"value": "x"}]}
        return await house.client.post(f"/v1/streams/s{number}/records", json=records)

    answers = [await append(number) for number in range(STREAM_COUNT)]
    return [answer.json()["first_offset"] for answer in answers]


async def test_streams_beyond_the_bound_give_their_handles_back_and_are_written_on(
    tmp_path: Path,
) -> None:
    files = HeldFiles()
    house = await a_house(tmp_path, files, KEPT_COUNT)
    for round_number in range(3):
        assert await append_everywhere(house) == [round_number] * STREAM_COUNT
        await eventually(lambda: len(files.held) <= 2 * KEPT_COUNT)
    await house.aclose()
    assert not files.held


async def test_below_the_bound_nothing_is_closed(tmp_path: Path) -> None:
    files = HeldFiles()
    house = await a_house(tmp_path, files, STREAM_COUNT)
    await append_everywhere(house)
    files.taken()
    await append_everywhere(house)
    assert files.taken()["open .segment"] == 0
    assert len(files.held) == 2 * STREAM_COUNT
    await house.aclose()


async def test_an_index_with_a_missing_record_is_not_written_again_after_a_rest(
    tmp_path: Path,
) -> None:
    files = RecordedFiles()
    house = await (await House(tmp_path / "data", files=files).declare()).start()
    await house.append("a")
    files.only_on = ".index"
    files.faults["pwritev"] = [broken_disk()]
    await house.append("b")
    house.appender.rest()
    await eventually(lambda: not house.appender.log.is_open)
    written = [call for call in files.calls if call.path.endswith(".index")]
    await house.append("c")
    assert [call for call in files.calls if call.path.endswith(".index")] == written
    after = await house.after_crash().start()
    assert await after.values() == [b"a", b"b", b"c"]
    await after.aclose()
    await house.aclose()
