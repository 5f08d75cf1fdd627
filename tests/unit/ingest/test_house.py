"""The ground that tests of ingest stand on: what they call a crash leaves the files of one moment."""

import asyncio
import threading
from itertools import pairwise
from pathlib import Path

from unit.ingest.house import House

_COUNT = 100


async def test_a_crash_leaves_the_files_of_one_moment_while_others_come_and_go(
    tmp_path: Path,
) -> None:
    """The copy was made file by file while a thread deleted segments, so a test of something else
    failed now and then, on a busy machine."""
    house = await (await House(tmp_path / "ingest").declare()).start()
    await house.append("x")
    begun, over = threading.Event(), threading.Event()
    paths = [house.directory / f"{number:03d}.index" for number in range(_COUNT)]

    def come_and_go() -> None:
        """Make all of them in order, then delete all of them in order, again and again."""
        while not over.is_set():
            for path in paths:
                house.files.close(house.files.open(path, create=True))
            begun.set()
            for path in paths:
                house.files.unlink(path)

    coming = asyncio.create_task(asyncio.to_thread(come_and_go))
    try:
        await asyncio.to_thread(begun.wait, 60)
        for number in range(3):
            after = house.after_crash()
            there = [(after.directory / path.name).exists() for path in paths]
            changes = sum(one != other for one, other in pairwise(there))
            assert changes <= 1, "the first of them, or the last of them"
            after.data_dir.rename(tmp_path / f"copy {number}")
    finally:
        over.set()
        await coming
        await house.aclose()
