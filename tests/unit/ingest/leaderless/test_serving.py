"""Ingest as a service that serves leaderless streams, too: from its start to its stop."""

import asyncio
import time
from pathlib import Path

import orjson
from support.asgi import client_of
from support.metrics import samples

from bottomless.formats.checks import crc32c
from bottomless.formats.keys import generation_key
from bottomless.formats.wal import decode_wal
from bottomless_server.drives.memory import MemoryDrive
from bottomless_server.ingest.app import create_service
from bottomless_server.ingest.leaderless.making import LeaderlessStores
from bottomless_server.ingest.service import IngestService
from bottomless_server.ingest.settings import IngestSettings
from bottomless_server.leaderless.instance import decode_instance
from bottomless_server.node.lease import Clocks
from bottomless_server.protocol.wal import WalBytesAsked, wal_bytes
from bottomless_server.stores import tails
from bottomless_server.stores.wal import instance_key
from unit.ingest.harness import ROUTE, IngestHarness
from unit.ingest.leaderless.nodes import GENERATION, a_leaderless_record


class Served:
    """A service over stores in memory, with the clocks of this machine."""

    def __init__(self, directory: Path) -> None:
        self.harness: IngestHarness = IngestHarness(directory / "harness")
        self.drive = MemoryDrive(lambda: time.time_ns() // 1_000_000)
        time_of = self.harness.time
        settings = IngestSettings(
            data_dir=directory / "node",
            ingest_url="http://ingest-0",
            ingest_wal_linger_ms=0,
            ingest_wal_note_ms=10_000,
        )
        self.service: IngestService = create_service(
            settings,
            self.harness.coordination,
            manifest=self.harness.manifest,
            clocks=Clocks(lambda: time_of.wall, time.monotonic, time.monotonic),
            leaderless=LeaderlessStores(self.drive, self.harness.coordination),
        )

    async def start(self) -> None:
        self.harness.show_generation(GENERATION)
        value = orjson.dumps({"generation": GENERATION, "bucket": True})
        await self.drive.put(generation_key(GENERATION), [value], crc32c(value))
        self.harness.streams.generation = GENERATION
        await tails.create(self.harness.streams, a_leaderless_record())
        await self.service.start()

    async def aclose(self) -> None:
        await self.service.stop()
        await self.harness.aclose()


def test_an_append_is_answered_over_the_port_of_ingest_and_noted_at_the_end(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        served = Served(tmp_path)
        await served.start()
        async with client_of(served.service.public) as client:
            answer = await client.post(ROUTE, json={"records": [{"value": "a"}, {"value": "b"}]})
            assert answer.status_code == 200, answer.text
            assert answer.json()["first_offset"] == 0
            assert answer.json()["durability"] == "object-store"

        half = served.service.leaderless
        assert half is not None
        shown = samples(served.service.metrics())
        assert shown["bottomless_ingest_wal_commits_total", ("outcome", "ok")] == 1
        assert shown["bottomless_ingest_wal_stage_seconds_count", ("stage", "answer")] == 1
        assert shown[("bottomless_ingest_wal_cache_bytes",)] == half.writer.cache.size > 0
        limits = (("held_limit", 200_000), ("fullness_limit_ratio", 0.8))
        assert [shown[(f"bottomless_ingest_wal_{name}",)] for name, _ in limits] == [
            limit for _, limit in limits
        ]
        run = half.writer.run
        assert run is not None
        instance = run.numbers.instance

        async def internal(scope: object, receive: object, send: object) -> None:
            await served.service.internal(scope, receive, send)  # type: ignore[arg-type]

        async with client_of(internal) as client:
            params = WalBytesAsked(0, 2**20).params()
            found = await client.get(wal_bytes(instance, 0), params=params)
            assert decode_wal(found.content).header.instance == instance

        await served.service.drain()
        record = decode_instance(served.harness.coordination.peek(instance_key(instance)) or b"")
        assert record.settled == record.reserved
        assert len(served.drive.object_keys) == 3, "the generation, a flush and its notes"
        await served.aclose()

    asyncio.run(scenario())
