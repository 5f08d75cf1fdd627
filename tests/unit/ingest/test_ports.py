"""What the routes of ingest need of a stream is the port `Appender`, and nothing else of a profile."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import httpx
import pytest
from support.asgi import client_of

from bottomless.errors import Code, Overloaded, Unavailable
from bottomless.formats.rows import Frame
from bottomless.model.chunk import AppendMode
from bottomless.model.config import Profile, StreamConfig
from bottomless.model.limits import MIB
from bottomless.model.names import TENANT_DEFAULT, FullName, StreamId, StreamName
from bottomless.model.stream import StreamRecord, StreamState
from bottomless_server.core.tracking.known_producers import Producer
from bottomless_server.ingest.front.lookup import AppenderLookup
from bottomless_server.ingest.front.public import create_public_app
from bottomless_server.ingest.ports import Appender, Appenders, Staged
from bottomless_server.ingest.producers.commit_plan import StagedBatch
from bottomless_server.ingest.producers.producers import Appended
from bottomless_server.ingest.records.conditions import Conditions
from bottomless_server.ingest.records.intake import Append
from bottomless_server.node.under_way import RequestsUnderWay
from unit.ingest.harness import NAME, ROUTE, STREAM, IngestHarness, problem
from unit.ingest.test_forms import frame

STAGED_ID = "st_" + "a" * 32
FRAMES = {"content-type": "application/vnd.bottomless.batches"}


class CountingAppender:
    """A profile that keeps numbers alone: how many records each call brought."""

    durability = "object-store"
    replica_count = None

    def __init__(self) -> None:
        self.stream_id = STREAM
        self.next_offset = 0
        self.full = False
        self.staged_count = 0
        self.known = {"p": Producer(AppendMode.STRICT, 3, 7, 0, 1_750_000_000_000)}

    def require_space(self) -> None:
        if self.full:
            raise Overloaded("for a test", code=Code.DISK_BOUND)

    async def append(self, append: Append) -> Appended:
        return await self.put(append)

    def put(self, append: Append) -> asyncio.Future[Appended]:
        answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        answer.set_result(self._stored(append.record_count))
        return answer

    async def stage(self, frames: Sequence[Frame]) -> Staged:
        self.staged_count = sum(one.record_count for one in frames)
        return Staged(StagedBatch(STAGED_ID, 0, 100, self.staged_count, len(frames)), 60_000)

    async def commit(self, _: Conditions, staged_ids: Sequence[str]) -> Appended:
        assert list(staged_ids) == [STAGED_ID]
        return self._stored(self.staged_count)

    async def list_producers(self, after: str, count: int) -> list[tuple[str, Producer]]:
        return sorted((name, known) for name, known in self.known.items() if name > after)[:count]

    async def find_producer(self, producer_id: str) -> Producer | None:
        return self.known.get(producer_id)

    async def raise_epoch(self, producer_id: str) -> None:
        self.known[producer_id] = Producer(AppendMode.PLAIN, 1, None, 0, 1_750_000_000_000)

    async def forget_producer(self, producer_id: str) -> None:
        del self.known[producer_id]

    def _stored(self, count: int) -> Appended:
        first, self.next_offset = self.next_offset, self.next_offset + count
        return Appended(first, self.next_offset, 1_750_000_000_000, count)


class OneAppender:
    """The streams of that profile: one."""

    def __init__(self) -> None:
        self.only = CountingAppender()

    async def get(self, _: StreamId) -> Appender:
        return self.only

    def forget_elsewhere(self, _: StreamId) -> None:
        pass

    def at_once(self, _: StreamId) -> Appender | None:
        return self.only


@pytest.fixture
def appenders() -> OneAppender:
    return OneAppender()


@pytest.fixture
async def client(tmp_path: Path, appenders: OneAppender) -> AsyncIterator[httpx.AsyncClient]:
    harness = await IngestHarness(tmp_path / "ingest").declare()
    service = harness.service
    service.under_way.accept()
    given: Appenders = appenders
    app = create_public_app(
        service.names,
        {"local": given},
        service.under_way,
        service.forwarded,
        service.room,
        service.counts,
        frame_size_max=MIB,
    )
    async with client_of(app.app) as client:
        yield client
    await harness.aclose()


async def test_another_profile_answers_appends_with_its_own_durability(
    client: httpx.AsyncClient, appenders: OneAppender
) -> None:
    answer = await client.post(ROUTE, json={"records": [{"value": "a"}, {"value": "b"}]})

    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert (told["durability"], told["count"], told["next_offset"]) == ("object-store", 2, 2)
    appenders.only.full = True
    refused = await client.post(ROUTE, json={"records": [{"value": "c"}]})
    assert problem(refused) == (429, "disk-bound")
    assert appenders.only.next_offset == 2


async def test_the_profile_of_a_stream_decides_who_appends_to_it(
    tmp_path: Path, appenders: OneAppender
) -> None:
    harness = await IngestHarness(tmp_path / "ingest").declare()
    names, under_way = harness.service.names, RequestsUnderWay()
    under_way.accept()
    ours, theirs = (FullName(TENANT_DEFAULT, StreamName(name)) for name in (NAME, "theirs"))
    config = StreamConfig(profile="leaderless")
    stream_id = StreamId("0198d2a4-5b1e-7c3a-9a51-0000000000ff")
    await harness.streams.create(
        StreamRecord(stream_id, theirs.name, theirs.tenant, StreamState.ACTIVE, 0, config)
    )
    local = OneAppender()
    given: dict[Profile, Appenders] = {"local": local, "leaderless": appenders}
    lookup = AppenderLookup(names, given, under_way)

    assert await lookup.find(ours) is lookup.at_once(ours) is local.only
    assert await lookup.find(theirs) is lookup.at_once(theirs) is appenders.only

    del given["leaderless"]
    with pytest.raises(Unavailable, match="does not append to leaderless streams"):
        await lookup.find(theirs)
    assert lookup.at_once(theirs) is None
    await harness.aclose()


async def test_another_profile_takes_staged_batches_and_their_commit(
    client: httpx.AsyncClient, appenders: OneAppender
) -> None:
    staged = await client.post(
        f"/v1/streams/{NAME}/staged", content=frame([b"a", b"b", b"c"]), headers=FRAMES
    )
    assert staged.status_code == 201, staged.text
    assert staged.json()["staged_id"] == STAGED_ID
    committed = await client.post(
        ROUTE,
        json={"staged": [STAGED_ID]},
        headers={
            "content-type": "application/vnd.bottomless.staged+json",
            "producer-id": "job",
            "txn-number": "1",
        },
    )
    assert committed.status_code == 200, committed.text
    assert committed.json()["count"] == appenders.only.next_offset == 3


async def test_another_profile_shows_and_changes_its_producers(
    client: httpx.AsyncClient, appenders: OneAppender
) -> None:
    producers = f"/v1/streams/{NAME}/producers"
    assert (await client.get(f"{producers}/p")).json()["last_seq"] == 7
    assert (await client.post(f"{producers}/q/epoch")).json()["epoch"] == 1
    page = (await client.get(producers, params={"limit": 1})).json()
    assert [one["producer_id"] for one in page["items"]] == ["p"]
    rest = await client.get(producers, params={"page_token": page["next_page_token"]})
    assert [one["producer_id"] for one in rest.json()["items"]] == ["q"]
    assert (await client.delete(f"{producers}/p")).status_code == 204
    assert list(appenders.only.known) == ["q"]
