"""An uploader in this process, between an ingest, a manifest and a drive that do what a test says."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from bottomless.drives.base import Body, DriveAmbiguous
from bottomless.errors import StoreError
from bottomless.formats.chunk import split_chunks
from bottomless.formats.fragment import decode_index
from bottomless.formats.keys import parse_fragment_key
from bottomless.model.fragment import FragmentInfo
from bottomless.model.limits import MIB
from bottomless_server.drives.memory import MemoryDrive
from bottomless_server.drives.table import DriveTable
from bottomless_server.uploader.app import UploaderService, create_service
from bottomless_server.uploader.settings import UploaderSettings
from support.asgi import on_socket, on_tcp
from support.object_keys import fragment_key
from support.uploading import STREAM_ID, FakeIngest, FakeManifest, manifest_app
from support.waiting import eventually


class SlowDrive(MemoryDrive):
    """A memory drive whose puts fail, lose their reply or wait, as the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: list[StoreError] = []
        self.gates: dict[int, asyncio.Event] = {}
        self.puts: list[int] = []
        self.finished: list[int] = []

    async def put(self, object_key: str, body: Body, crc: int) -> None:
        found = parse_fragment_key(object_key)
        assert found is not None
        self.puts.append(found.first_offset)
        if gate := self.gates.get(found.first_offset):
            await gate.wait()
        if self.failures and not isinstance(self.failures[0], DriveAmbiguous):
            raise self.failures.pop(0)
        await super().put(object_key, body, crc)
        self.finished.append(found.first_offset)
        if self.failures:
            raise self.failures.pop(0)


@dataclass
class UploaderHarness:
    """An uploader and all that is around it."""

    ingest: FakeIngest = field(default_factory=FakeIngest)
    drive: SlowDrive = field(default_factory=SlowDrive)
    manifest: FakeManifest = field(init=False)
    uploads_in_flight: int = 4
    damage_retry_seconds: float = 30.0
    idle_seconds: float = 30.0
    memory_bytes: int = MIB
    table: DriveTable | None = None

    def __post_init__(self) -> None:
        self.manifest = FakeManifest(self.drive)
        self.manifests: dict[str, FakeManifest] = {STREAM_ID: self.manifest}

    def add_stream(self, stream_id: str) -> FakeManifest:
        return self.manifests.setdefault(stream_id, FakeManifest(self.drive, stream_id))

    @asynccontextmanager
    async def served(self) -> AsyncIterator[str]:
        self.node_urls: list[str] = []
        async with AsyncExitStack() as stack:
            if self.ingest.directory is None:
                port = await stack.enter_async_context(on_tcp(self.ingest.app()))
                self.node_urls.append(f"http://127.0.0.1:{port}")
            else:
                path = self.ingest.directory / "ingest.sock"
                url = await stack.enter_async_context(on_socket(self.ingest.app(), path))
                self.node_urls.append(url)
            manifest = manifest_app(self.manifests, self.node_urls)
            port = await stack.enter_async_context(on_tcp(manifest))
            yield f"http://127.0.0.1:{port}"

    def service(self, manifest_url: str) -> UploaderService:
        settings = UploaderSettings(
            manifest_url=manifest_url,
            uploader_uploads_in_flight_per_stream=self.uploads_in_flight,
            uploader_memory_bytes=self.memory_bytes,
            uploader_retry_initial_seconds=0.005,
            uploader_retry_max_seconds=0.02,
            uploader_retry_jitter_seconds=0,
            uploader_damage_retry_seconds=self.damage_retry_seconds,
            uploader_idle_seconds=self.idle_seconds,
            uploader_poll_wait_ms=100,
            uploader_nodes_ms=20,
            drain_seconds=10,
        )
        return create_service(settings, self.drive, table=self.table)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[UploaderService]:
        async with self.served() as manifest_url:
            service = self.service(manifest_url)
            await service.start()
            try:
                yield service
            finally:
                await service.stop()

    async def published(self, next_offset: int) -> None:
        await eventually(lambda: self.manifest.published_next >= next_offset)

    async def chunks_of(self, info: FragmentInfo) -> list[int]:
        """First offsets of the chunks in a fragment, after a look at all its checksums."""
        data = await self.drive.get(fragment_key(STREAM_ID, info.first_offset, info.uid))
        assert len(data) == info.size
        index = decode_index(data[info.index_position :])
        start = index.place(0).position
        return [
            header.first_offset for header, _ in split_chunks(data[start : info.index_position])
        ]

    def ranges(self) -> list[tuple[int, int]]:
        return [(info.first_offset, info.next_offset) for info in self.manifest.applied]
