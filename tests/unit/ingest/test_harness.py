"""The ground that tests of ingest stand on: what they call a crash leaves the files of one moment."""

import asyncio
import threading
from itertools import pairwise
from pathlib import Path

from unit.ingest.harness import IngestHarness

_COUNT = 100


async def test_a_crash_leaves_the_files_of_one_moment_while_others_come_and_go(
    tmp_path: Path,
) -> None:
    """The copy was made file by file while a thread deleted segments, so a test of something else
    failed now and then, on a busy machine."""
    harness = await (await IngestHarness(tmp_path / "ingest").declare()).start()
    await harness.append("x")
    begun, over = threading.Event(), threading.Event()
    paths = [harness.directory / f"{number:03d}.index" for number in range(_COUNT)]

    def come_and_go() -> None:
        """Make all of them in order, then delete all of them in order, again and again."""
        while not over.is_set():
            for path in paths:
                harness.files.close(harness.files.open(path, create=True))
            begun.set()
            for path in paths:
                harness.files.unlink(path)

    coming = asyncio.create_task(asyncio.to_thread(come_and_go))
    try:
        await asyncio.to_thread(begun.wait, 60)
        for number in range(3):
            after = harness.after_crash()
            there = [(after.directory / path.name).exists() for path in paths]
            changes = sum(one != other for one, other in pairwise(there))
            assert changes <= 1, "the first of them, or the last of them"
            after.data_dir.rename(tmp_path / f"copy {number}")
    finally:
        over.set()
        await coming
        await harness.aclose()
