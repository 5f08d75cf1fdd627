"""More writers of one stream than it has room for, who never pause, and commits of two parts.

There are no troubles: nothing but the others may keep a commit waiting. In all other runs streams
have room for everything that their few writers send, so that nobody ever waited for room there.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from simulation.clients import LATER, Writer
from simulation.expected import Broken
from simulation.programs import INGEST
from simulation.run import Simulation
from simulation.staged_writer import StagedWriter

ROOM_BYTES: Final = 2 * INGEST["ingest_group_bytes_max"]
"""Of a stream: a part of a commit may need half of it."""
WRITER_COUNT: Final = 40
COMMIT_COUNT: Final = 4
COMMIT_SECONDS: Final = 2.0
"""Virtual ones: many times what all that is under way needs to be written."""


class Flooding(Writer):
    """Sends a third of the room as often as it is answered."""

    async def run(self) -> None:
        while not self.over:
            values = [f"{self.name} {self.number} {'x' * 2_400}"]
            self.number += 1
            self.expected.sent.update(values)
            answer = await self.send(values, {})
            if answer is not None and answer[0] != 200 and answer[0] not in LATER:
                raise Broken(f"{self.name} was answered {answer}")


class Sink(StagedWriter):
    """Commits what is too much for one part, a few times."""

    async def run(self) -> None:
        for _ in range(COMMIT_COUNT):
            values, begun = self.values(), self.expected.acknowledged_next
            self.expected.stored_anew.update(values)
            try:
                async with asyncio.timeout(COMMIT_SECONDS):
                    while not await self._commit(values, begun):
                        self.services.story.count("commits repeated")
            except TimeoutError:
                raise Broken(f"commit {self.commit_number} never gets its turn") from None
            self.commit_number += 1

    def values(self) -> list[str]:
        size = ROOM_BYTES // 2 - 500
        made = [f"{self.name} {self.number + one} {'x' * size}" for one in range(2)]
        self.number += 2
        self.expected.sent.update(made)
        return made


async def commits_beside_a_flood(simulation: Simulation) -> None:
    """Raises:
    Broken: a commit does not pass, or a promise does not hold.
    """
    with little_room():
        for program in simulation.programs:
            program.start()
        await simulation.until(lambda: all(one.started for one in simulation.programs), "a start")
    await simulation.create("flooded", simulation.chance("config"))
    services, (stream,) = simulation.services, simulation.streams
    flood = [
        asyncio.create_task(Flooding(services, stream, who, simulation.chance(who)).run())
        for who in (f"flooding-{number}" for number in range(WRITER_COUNT))
    ]
    for task in flood:
        task.add_done_callback(simulation.note_end)
    await asyncio.sleep(1)
    before = services.story.counts["appends acknowledged"]
    await Sink(services, stream, "sink", simulation.chance("sink")).run()
    if services.story.counts["appends acknowledged"] - before < WRITER_COUNT:
        raise Broken("nothing else was appended meanwhile: that was no flood")
    services.closing = True
    await simulation.all_done(flood)
    await simulation.read_all()


@contextmanager
def little_room() -> Iterator[None]:
    """For the bytes of appends that are under way, in nodes that are started meanwhile."""
    name = "ingest_stream_in_flight_bytes_max"
    INGEST[name] = ROOM_BYTES
    try:
        yield
    finally:
        del INGEST[name]
