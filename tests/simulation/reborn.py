"""A stream that is deleted, and created anew under its name, while nobody can tell its owner so.

In all other runs the owner of a deleted stream is asked to stop, again and again, until it has
heard it, and no name is ever given to another stream: so it did not matter for how long a node
believes what a name meant. Here the manifest service and the nodes do not reach each other from
the deletion on, so that the names alone end the appends.
"""

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from bottomless.errors import Code
from bottomless.formats.stream_record import decode_record
from bottomless.model.names import StreamId
from bottomless.model.stream import StreamState
from bottomless_server.ingest.service import IngestService
from bottomless_server.stores.streams import stream_key
from simulation.clients import LATER
from simulation.expected import Broken
from simulation.programs import INGEST
from simulation.run import LOOK_SECONDS, Simulation

NAME: Final = "reborn"
LIVES: Final = 3
BELIEF_SECONDS: Final = (INGEST["ingest_lease_ms"] - INGEST["ingest_lease_margin_ms"]) / 1000
"""For so long a node may go by what a name meant, and by its lease."""
UNDER_WAY_SECONDS: Final = 2.5
"""An append that has found its stream in time may still be written: it may have to reserve offsets."""
SILENT_SECONDS: Final = 12.0
"""How long nodes and manifest do not reach each other."""
SLOW_SECONDS: Final = 15.0
"""How long the body of an append may take."""
WELL_SECONDS: Final = 60.0


@dataclass
class Reborn:
    simulation: Simulation
    chance: random.Random
    lives: list[StreamId] = field(default_factory=list)
    deleted_at: dict[StreamId, float] = field(default_factory=dict)
    ends: dict[tuple[str, StreamId], int] = field(default_factory=dict)
    """Where a log ended when nothing may be appended to it any more."""
    config_version: int = 0
    """Of the stream that has the name."""

    async def run(self) -> None:
        working = [asyncio.create_task(self._write(number)) for number in range(4)]
        working.append(asyncio.create_task(self._keep_looking()))
        for task in working:
            task.add_done_callback(self.simulation.note_end)
        await self._create()
        for _ in range(LIVES):
            await self._see_appended()
            await asyncio.sleep(self.chance.uniform(1, 5))
            await self._live_on()
        await self._see_appended()
        for task in working:
            task.cancel()

    async def _live_on(self) -> None:
        """Delete it, create it anew while nobody hears of that, and let them hear of it."""
        apart = self.simulation.ground.network.apart
        pairs = {frozenset(("manifest", node.name)) for node in self.simulation.nodes}
        apart |= pairs
        stream_id = self.lives[-1]
        # Its answer may wait for the owner, who hears nothing.
        asked = asyncio.create_task(self._delete(stream_id))
        await self.simulation.until(lambda: self._is_deleted(stream_id), "the tombstone")
        self.deleted_at[stream_id] = self.simulation.loop.now
        self.simulation.story.count("streams deleted")
        await self._create()
        await asyncio.sleep(SILENT_SECONDS)
        await asked
        apart -= pairs

    async def _delete(self, stream_id: StreamId) -> None:
        # A request that comes late must not delete the stream that has the name by then.
        only_this = {"if-match": f'"{stream_id}.c{self.config_version}"'}
        while not self._is_deleted(stream_id):
            await self._ask("DELETE", headers=only_this)

    async def _create(self) -> None:
        while True:
            answer = await self._ask("PUT", {})
            if answer is not None and answer[0] in (200, 201):
                self.config_version = int(answer[1]["config_version"])
                self.lives.append(StreamId(answer[1]["stream_id"]))
                return
            await asyncio.sleep(0.1)

    async def _ask(
        self, method: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any] | None:
        services, path = self.simulation.services, f"/v1/streams/{NAME}"
        return await services.ask(services.manifest, method, path, body=body, headers=headers)

    async def _write(self, number: int) -> None:
        services, count = self.simulation.services, 0
        while True:
            node = self.chance.choice(services.nodes)
            body = {"records": [{"value": f"{number} {count}"}]}
            path = f"/v1/streams/{NAME}/records"
            # Some clients are slow: their request began long before what it brings is there.
            seconds = self.chance.uniform(0, SLOW_SECONDS) if self.chance.random() < 0.2 else 0.0
            answer = await services.ask(node, "POST", path, body=body, body_seconds=seconds)
            if answer is not None:
                status, told = answer
                if status == 200:
                    services.story.count("appends acknowledged")
                elif status not in LATER and told["code"] != Code.STREAM_NOT_FOUND:
                    raise Broken(f"an append was answered {answer}")
            count += 1
            await asyncio.sleep(self.chance.uniform(0.05, 0.4))

    def _is_deleted(self, stream_id: StreamId) -> bool:
        value = self.simulation.ground.coordination.peek(stream_key(stream_id))
        return value is None or decode_record(value).state is not StreamState.ACTIVE

    async def _see_appended(self) -> None:
        """The stream that has the name now takes what is appended under it."""
        stream_id = self.lives[-1]
        await self.simulation.until(
            lambda: any(end > 0 for _, end in self._logs(stream_id)),
            "an append to the stream that has the name",
            WELL_SECONDS,
        )

    async def _keep_looking(self) -> None:
        while True:
            for stream_id, deleted_at in self.deleted_at.items():
                over = deleted_at + BELIEF_SECONDS + UNDER_WAY_SECONDS
                if self.simulation.loop.now >= over:
                    self._look(stream_id)
            await asyncio.sleep(LOOK_SECONDS)

    def _look(self, stream_id: StreamId) -> None:
        for node, end in self._logs(stream_id):
            if end > self.ends.setdefault((node, stream_id), end):
                late = self.simulation.loop.now - self.deleted_at[stream_id]
                raise Broken(f"{node} appends to a stream that was deleted {late:.1f} s ago")

    def _logs(self, stream_id: StreamId) -> list[tuple[str, int]]:
        found = []
        for node in self.simulation.nodes:
            service = node.service
            if node.alive and isinstance(service, IngestService):
                appender = service.streams.find(stream_id)
                if appender is not None:
                    found.append((node.name, appender.log.committed_next))
        return found


async def deleted_unheard(simulation: Simulation) -> None:
    """Raises:
    Broken: a deleted stream is appended to for too long, or the one after it is not.
    """
    for program in simulation.programs:
        program.start()
    await simulation.until(lambda: all(one.started for one in simulation.programs), "a start")
    weather = simulation.ground.weather
    weather.loss, weather.slow = 0.01, 0.02
    await Reborn(simulation, simulation.chance("reborn")).run()
