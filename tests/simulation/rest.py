"""At the end of a run everything dies, with tails, and comes back before coordination does.

Nobody touches the streams any more, and all that was acknowledged is uploaded nevertheless. In the
storm before it clients touch each stream many times a second, and so open again whatever was not.
"""

import asyncio
from typing import Final

from simulation.clients import Writer
from simulation.expected import Expected
from simulation.trouble import Trouble

AWAY_SECONDS: Final = 3.0
"""Longer than a node needs to start, and to try for the first time to open what lies there."""


async def leave_tails(trouble: Trouble, writers: list[Writer]) -> None:
    """Append once more to each stream, and then touch none of them."""
    for writer in writers:
        await _append(writer)
    ground = trouble.ground
    ground.story.tell("trouble", "kills everything, with tails, and takes the coordination away")
    for program in trouble.programs:
        # Also the uploader: it would ask for what it had begun to take, and so touch it.
        program.kill()
    ground.weather.away.add("coordination")
    await asyncio.sleep(AWAY_SECONDS)
    ground.weather.away.discard("coordination")


async def _append(writer: Writer) -> None:
    stream: Expected = writer.expected
    before = stream.acknowledged_next
    while stream.acknowledged_next == before:
        if await writer.send(writer.values(), {}) is None:
            await asyncio.sleep(0.1)
