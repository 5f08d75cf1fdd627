"""L40: ten nodes without a disk are the first to produce to one partition, all at once."""

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
from support.asgi import client_of
from support.manifest import ManifestHarness
from support.peers import SilentPeer

from bottomless.errors import Code, NotFound, StoreError
from bottomless.formats.stream_record import LEADERLESS
from bottomless_server.ingest.app import create_diskless_service
from bottomless_server.ingest.leaderless.making import LeaderlessStores
from bottomless_server.ingest.settings import IngestSettings
from bottomless_server.manifest.app import ManifestService
from bottomless_server.node.lease import Clocks
from bottomless_server.protocol.peer import Params, PeerAnswer
from bottomless_server.runtime.http.app import wrap

NODES = 10


class ManifestPeer(SilentPeer):
    """The internal application of a manifest, asked without a socket."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self.made = 0

    async def call(
        self, method: str, path: str, /, *, params: Params | None = None, body: Any = None, **_: Any
    ) -> PeerAnswer:
        answer = await self._client.request(method, path, params=params, json=body)
        said = answer.json()
        if answer.status_code == 404:
            raise NotFound(said["detail"], code=Code(said["code"]))
        if answer.status_code >= 400:
            raise StoreError(said["detail"], code=Code(said["code"]))
        self.made += method == "PUT"
        return PeerAnswer(answer.status_code, answer.headers, said)


async def test_ten_nodes_that_make_one_partition_at_once_make_one_and_lose_nothing(
    tmp_path: Path,
) -> None:
    harness = ManifestHarness(frozenset({LEADERLESS}))
    manifest = ManifestService(replace(harness.context))
    async with AsyncExitStack() as ending:
        await manifest.start()
        ending.push_async_callback(manifest.stop)
        peer = ManifestPeer(client_of(wrap(manifest.internal)))
        clients = []
        for number in range(NODES):
            settings = IngestSettings(
                data_dir=tmp_path / f"{number}",
                ingest_url=f"http://ingest-{number}",
                ingest_wal_linger_ms=0,
                broker=True,
                broker_create=True,
            )
            node = create_diskless_service(
                settings,
                harness.coordination,
                LeaderlessStores(harness.drive, harness.coordination),
                manifest=peer,
                clocks=Clocks(harness.clock, time.monotonic, time.monotonic),
            )
            await node.start()
            ending.push_async_callback(node.stop)
            clients.append(client_of(node.public))

        def asked(number: int) -> dict[str, Any]:
            records = [f"{number}-{one}" for one in range(3)]
            return {"topic_partitions": [{"topic": "new", "partition": 0, "records": records}]}

        answers = await asyncio.gather(
            *(client.post("/produce", json=asked(n)) for n, client in enumerate(clients))
        )
        public = client_of(wrap(manifest.public))
        listed = (await public.get("/v1/streams")).json()["items"]
        described = (await public.get("/v1/streams/new-0")).json()

    assert [answer.status_code for answer in answers] == [200] * NODES, answers[0].text
    results = [answer.json()["results"][0] for answer in answers]
    taken = sorted((one["start_offset"], one["end_offset"]) for one in results)
    assert taken == [(first, first + 3) for first in range(0, 3 * NODES, 3)]
    assert {one["index_key"].partition(":")[0] for one in results} == {described["stream_id"]}
    assert [(one["name"], one["profile"]) for one in listed] == [("new-0", "leaderless")]
    assert described["offsets"]["next"] == 3 * NODES
    # It was no single one that asked for it.
    assert peer.made > 1
