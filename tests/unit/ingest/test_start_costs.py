"""What a start costs for each stream that lies here, in numbers that noise cannot move."""

from collections import Counter
from pathlib import Path
from typing import Any, Final

from support.counting import CountedFiles

from bottomless.model.config import StreamConfig
from bottomless.model.names import StreamId, StreamName
from bottomless.model.stream import StreamRecord, StreamState
from bottomless_server.coordination.memory import MemoryCoordination
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
ASKED_OF_EACH: Final = Counter({"get": 1, "transact": 1})
"""The record as it is, and the claim."""
_READS: Final = ("close", "pread", "pwritev", "size")
"""As many as what lies there takes."""


class CountedCoordination:
    """A coordination store whose calls are counted."""

    def __init__(self, inner: MemoryCoordination) -> None:
        self._inner = inner
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        self.calls[name] += 1
        return getattr(self._inner, name)


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
    after = IngestHarness(before.data_dir, before=before, files=files)  # type: ignore[arg-type]
    try:
        asked.calls.clear()
        await after.start()
        assert len(list(after.service.streams.opened())) == count
        return files.taken(), Counter(asked.calls)
    finally:
        await after.aclose()


async def test_a_start_costs_the_same_few_calls_for_each_stream(tmp_path: Path) -> None:
    """It made and synced the directory of each stream once more, and read its record twice."""
    (files_of_2, asked_2), (files_of_5, asked_5) = (
        await started(tmp_path / "2", 2),
        await started(tmp_path / "5", 5),
    )
    files_of_5.subtract(files_of_2)
    of_three = Counter(
        {call: n for call, n in files_of_5.items() if n and not call.startswith(_READS)}
    )
    assert of_three == Counter({call: 3 * n for call, n in OF_EACH.items()})
    asked_5.subtract(asked_2)
    assert +asked_5 == Counter({call: 3 * n for call, n in ASKED_OF_EACH.items()})
