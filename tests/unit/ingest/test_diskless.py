"""A node that serves leaderless streams alone: without a disk, beside nodes with one."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from support.asgi import client_of, on_tcp

from bottomless.errors import Code, NotFound, Unavailable
from bottomless.formats.checks import crc32c
from bottomless.formats.keys import generation_key
from bottomless.model.names import NodeId
from bottomless.model.stream import StreamState
from bottomless_server.coordination.base import Changes
from bottomless_server.drives.memory import MemoryDrive
from bottomless_server.ingest.app import create_diskless_service, create_node
from bottomless_server.ingest.diskless import DisklessIngest
from bottomless_server.ingest.elsewhere import ElsewhereAppenders
from bottomless_server.ingest.front.name_watch import NameWatch
from bottomless_server.ingest.leaderless.making import LeaderlessStores
from bottomless_server.ingest.service import IngestService
from bottomless_server.ingest.settings import IngestSettings
from bottomless_server.node.core.belief import Moment
from bottomless_server.node.core.ownership import OwnedElsewhere
from bottomless_server.node.lease import Clocks
from bottomless_server.runtime.http.app import wrap
from bottomless_server.runtime.http.tracing import Requests
from bottomless_server.stores import tails
from bottomless_server.stores.freed_names import NamesShown
from bottomless_server.stores.ingest_nodes import IngestNode, announce
from bottomless_server.stores.streams import FREED_KEY, node_key
from unit.ingest.harness import ROUTE, STREAM, IngestHarness, problem
from unit.ingest.leaderless.nodes import GENERATION, a_leaderless_record

HOME = NodeId("a" * 32)
BODY = {"records": [{"value": "a"}]}


def settings_of(directory: Path, **more: Any) -> IngestSettings:
    return IngestSettings(
        data_dir=directory / "nothing",
        ingest_url="http://ingest-9",
        ingest_wal_linger_ms=0,
        **more,
    )


@asynccontextmanager
async def diskless(
    directory: Path, shared: IngestHarness, drive: MemoryDrive
) -> AsyncIterator[DisklessIngest]:
    """One that has begun, over stores that others share."""
    time_of = shared.time
    service = create_diskless_service(
        settings_of(directory),
        shared.coordination,
        LeaderlessStores(drive, shared.coordination),
        manifest=shared.manifest,
        clocks=Clocks(lambda: time_of.wall, time.monotonic, time.monotonic),
    )
    await service.start()
    yield service
    await service.drain()
    await service.stop()


async def test_it_stores_leaderless_streams_and_makes_no_directory(tmp_path: Path) -> None:
    shared = IngestHarness(tmp_path / "shared")
    shared.show_generation(GENERATION)
    shared.streams.generation = GENERATION
    drive = MemoryDrive(lambda: shared.time.wall)
    value = orjson.dumps({"generation": GENERATION, "bucket": True})
    await drive.put(generation_key(GENERATION), [value], crc32c(value))
    await tails.create(shared.streams, a_leaderless_record())

    async with diskless(tmp_path, shared, drive) as service, client_of(service.public) as client:
        answer = await client.post(ROUTE, json=BODY)
        assert answer.status_code == 200, answer.text
        assert answer.json()["durability"] == "object-store"
        assert list(service.metrics())

    assert not (tmp_path / "nothing").exists()
    await shared.aclose()


async def test_an_append_to_a_local_stream_goes_to_its_owner(tmp_path: Path) -> None:
    served: list[Any] = []

    async def internal(scope: Any, receive: Any, send: Any) -> None:
        await served[0](scope, receive, send)

    async with on_tcp(internal) as port:
        owner = await IngestHarness(
            tmp_path / "owner", ingest_url=f"http://127.0.0.1:{port}"
        ).declare()
        served.append(Requests(access_log=False).around(wrap(owner.service.internal), trusted=True))
        await owner.start()
        async with (
            diskless(tmp_path, owner, MemoryDrive(lambda: 0)) as service,
            client_of(service.public) as client,
        ):
            # Nobody owns it yet: the only node that may claim it is asked.
            first = await client.post(ROUTE, json=BODY)
            again = await client.post(ROUTE, json=BODY)
            assert [one.json()["first_offset"] for one in (first, again)] == [0, 1]
            assert again.json()["durability"] == "fsync"
            assert service.counts.forwarded == 2
        assert await owner.values() == [b"a", b"a"]
        await owner.aclose()


class Elsewhere:
    """The local streams of such a node, and what coordination says of one."""

    def __init__(self, directory: Path) -> None:
        self.shared = IngestHarness(directory)
        self.appenders = ElsewhereAppenders(self.shared.coordination, self.shared.time.clocks())

    async def set(self, **members: Any) -> None:
        await self.shared.streams.update(STREAM, lambda record: replace(record, **members))

    async def hold(self, node_id: NodeId = HOME) -> None:
        await self.shared.coordination.hold(node_key(node_id), node_id.encode(), 10_000)

    async def url(self) -> str:
        with pytest.raises(OwnedElsewhere) as told:
            await self.appenders.get(STREAM)
        return told.value.owner_url

    async def refused(self) -> None:
        with pytest.raises(Unavailable) as told:
            await self.appenders.get(STREAM)
        assert not isinstance(told.value, OwnedElsewhere)
        assert told.value.code is Code.NOT_OWNER


@pytest.fixture
async def elsewhere(tmp_path: Path) -> AsyncIterator[Elsewhere]:
    made = Elsewhere(tmp_path)
    await made.shared.declare()
    yield made
    await made.shared.aclose()


async def test_who_asks_is_sent_to_an_owner_that_lives(elsewhere: Elsewhere) -> None:
    await elsewhere.set(home=HOME, owner_url="http://owner", dirty=True)
    await elsewhere.hold()

    assert await elsewhere.url() == "http://owner"


async def test_nobody_stands_in_for_a_dead_owner_that_may_hold_records(
    elsewhere: Elsewhere,
) -> None:
    await elsewhere.set(home=HOME, owner_url="http://owner", dirty=True)
    other = IngestNode(NodeId("b" * 32), "http://other")
    await announce(elsewhere.shared.coordination, other)
    await elsewhere.hold(other.node_id)

    await elsewhere.refused()


async def test_a_clean_stream_goes_to_a_node_that_may_claim_it(elsewhere: Elsewhere) -> None:
    await elsewhere.set(home=HOME, owner_url="http://owner", dirty=False)
    await elsewhere.refused()
    other = IngestNode(NodeId("b" * 32), "http://other")
    await announce(elsewhere.shared.coordination, other)
    await elsewhere.refused()
    await elsewhere.hold(other.node_id)

    assert await elsewhere.url() == "http://other"
    await elsewhere.set(home=other.node_id, owner_url="http://moved")
    assert await elsewhere.url() == "http://other", "it is remembered for a second"
    elsewhere.appenders.forget_owner("http://other")
    assert await elsewhere.url() == "http://moved"


async def test_a_stream_that_is_deleted_is_nowhere(elsewhere: Elsewhere) -> None:
    await elsewhere.set(state=StreamState.DELETING)
    with pytest.raises(NotFound):
        await elsewhere.appenders.get(STREAM)


def test_the_profiles_of_a_node_are_those_that_are_set(tmp_path: Path) -> None:
    shared = IngestHarness(tmp_path / "shared")
    stores = LeaderlessStores(MemoryDrive(lambda: 0), shared.coordination)

    def made(profiles: str) -> IngestService | DisklessIngest:
        settings = settings_of(
            tmp_path, ingest_profiles=profiles, manifest_url="http://manifest:9080"
        )
        return create_node(settings, shared.coordination, stores)

    both, local, leaderless = (made(text) for text in ("local,leaderless", " Local ", "leaderless"))
    assert isinstance(both, IngestService)
    assert both.leaderless is not None
    assert isinstance(local, IngestService)
    assert local.leaderless is None
    assert isinstance(leaderless, DisklessIngest)


@pytest.mark.parametrize("text", ["", " , ", "remote", "local,remote"])
def test_a_list_without_a_profile_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="local, leaderless"):
        IngestSettings(ingest_profiles=text)


async def test_before_its_start_it_answers_nothing(tmp_path: Path) -> None:
    shared = IngestHarness(tmp_path / "shared")
    service = create_diskless_service(
        settings_of(tmp_path),
        shared.coordination,
        LeaderlessStores(MemoryDrive(lambda: 0), shared.coordination),
        manifest=shared.manifest,
    )

    async def internal(scope: Any, receive: Any, send: Any) -> None:
        await service.internal(scope, receive, send)

    async with client_of(internal) as client:
        assert problem(await client.get("/internal/v1/wal/x/0"))[0] == 503
    assert await service.report() == {}
    await shared.aclose()


async def test_the_mark_of_freed_names_is_read_again_and_again(tmp_path: Path) -> None:
    shared = await IngestHarness(tmp_path / "shared").declare()
    heard: list[tuple[NamesShown, int, Moment]] = []
    watch = NameWatch(
        shared.coordination,
        shared.time.clocks(),
        lambda *told: heard.append(told),
        every_ms=3_000,
    )

    assert await watch.look() == 3
    shared.coordination.write(Changes({FREED_KEY: b"freed"}))
    await watch.look()
    assert [told[0].mark for told in heard] == [None, "freed"]

    shared.show_generation(None)
    await watch.look()
    assert heard[-1][0].generation is None
    await shared.aclose()
