"""Reads of the tail, however slow, hold up no append."""

import asyncio
import threading
from pathlib import Path

from support.waiting import eventually

from unit.ingest.harness import DEADLINE_SECONDS, IngestHarness, RecordedFiles

THREAD_COUNT = 2


class SlowReads(RecordedFiles):
    """A disk that answers no read while the gate is shut."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.waiting = 0

    def pread(self, fd: int, size: int, position: int) -> bytes:
        self.waiting += 1
        assert self.gate.wait(2 * DEADLINE_SECONDS)
        return super().pread(fd, size, position)


async def test_appends_go_on_while_every_thread_for_reads_waits_for_the_disk(
    tmp_path: Path,
) -> None:
    files = SlowReads()
    harness = IngestHarness(
        tmp_path / "data",
        files=files,
        ingest_thread_count=THREAD_COUNT,
        ingest_read_thread_count=THREAD_COUNT,
    )
    await (await harness.declare()).start()
    await harness.append("a")
    reads = [asyncio.create_task(harness.chunks(0)) for _ in range(2 * THREAD_COUNT)]
    await eventually(lambda: files.waiting == THREAD_COUNT)
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert (await harness.append("b")).status_code == 200
        assert not any(read.done() for read in reads)
    finally:
        files.gate.set()
    for answer in await asyncio.gather(*reads):
        assert answer.headers["chunks-next-offset"] in ("1", "2")
    await harness.aclose()
