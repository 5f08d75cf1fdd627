"""H20: two uploaders work on one stream, each believing that it is the one."""

import asyncio
import itertools
from dataclasses import replace

from support.chunks import a_chunk
from support.manifest import STREAM, ManifestHarness, a_record
from support.object_keys import fragment_key
from support.uploading import FakeIngest

from bottomless.model.limits import MIB
from bottomless.model.names import NodeId
from bottomless_server.manifest.app import ManifestService
from bottomless_server.manifest.common.context import now_ms
from bottomless_server.manifest.common.trusted_time import elapsed_ms
from bottomless_server.runtime.http.app import wrap
from bottomless_server.runtime.listener.listeners import Listener, bind_tcp
from bottomless_server.stores.ingest_nodes import IngestNode, announce
from bottomless_server.stores.streams import node_key
from bottomless_server.uploader.app import UploaderService, create_service
from bottomless_server.uploader.settings import UploaderSettings

CHUNKS, EACH = 40, 10


class Stage:
    """One ingest and one real manifest service, over HTTP, for any number of uploaders."""

    def __init__(self) -> None:
        self.harness = ManifestHarness(manifest_debounce_ms=5, manifest_register_wait_ms=200)
        context = replace(self.harness.context, clock=now_ms, elapsed=elapsed_ms)
        self.manifest = ManifestService(context)
        self.ingest = FakeIngest(target_bytes=1)
        self.sessions: set[str] = set()

    async def show_node(self, url: str) -> None:
        """Let manifest know the ingest node, and that it is alive."""
        coordination, node_id = self.harness.context.coordination, NodeId("a" * 32)
        await announce(coordination, IngestNode(node_id, url))
        assert await coordination.hold(node_key(node_id), b"alive", 3_600_000)

    def uploader(self, manifest_url: str) -> UploaderService:
        settings = UploaderSettings(
            manifest_url=manifest_url,
            uploader_memory_bytes=MIB,
            uploader_retry_initial_seconds=0.005,
            uploader_retry_max_seconds=0.02,
            uploader_retry_jitter_seconds=0.01,
            uploader_poll_wait_ms=100,
        )
        return create_service(settings, self.harness.drive)

    async def published_next(self) -> int:
        record = await self.harness.record()
        if record.uploader is not None:
            self.sessions.add(record.uploader)
        return record.published_next


async def test_the_older_session_is_refused_and_what_both_put_is_there_once() -> None:
    """H20."""
    stage = Stage()
    stage.harness.owners.committed[STREAM] = CHUNKS * EACH
    await stage.harness.streams.create(a_record())
    await stage.manifest.start()
    apps = (stage.ingest.app(), wrap(stage.manifest.internal))
    listeners = [Listener(app, bind_tcp("127.0.0.1", 0)) for app in apps]
    for listener in listeners:
        await listener.open()
    urls = [f"http://127.0.0.1:{listener.port}" for listener in listeners]
    await stage.show_node(urls[0])
    both = [stage.uploader(urls[1]) for _ in range(2)]
    for uploader in both:
        await uploader.start()
    try:
        for number in range(CHUNKS):
            stage.ingest.append(a_chunk(number * EACH))
            await stage.published_next()
            await asyncio.sleep(0)
        async with asyncio.timeout(300):
            while await stage.published_next() < CHUNKS * EACH:
                await asyncio.sleep(0.001)
    finally:
        for uploader in both:
            await uploader.stop()
        await stage.manifest.stop()
        for listener in listeners:
            await listener.close()

    # Not vacuous: both were the live session for a while, so that one was deposed in its work.
    assert len(stage.sessions) >= 2
    leaves = await stage.harness.leaves()
    assert (leaves[0].first_offset, leaves[-1].next_offset) == (0, CHUNKS * EACH)
    assert all(a.next_offset == b.first_offset for a, b in itertools.pairwise(leaves))
    for leaf in leaves:
        assert stage.harness.drive.has(fragment_key(STREAM, leaf.first_offset, leaf.uid))
    record = await stage.harness.record()
    live = {leaf.uid for leaf in leaves}
    assert not live & {intent.uid for intent in (*record.intents, *record.quarantine)}
