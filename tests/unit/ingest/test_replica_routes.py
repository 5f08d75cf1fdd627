"""What owners send over the internal listener to the logs that follow theirs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
import structlog
from support.asgi import client_of
from support.guards import remove

from bottomless.model.names import NodeId
from bottomless_server.ingest.replicas.replica_routes import ReplicaRoutes, add_replica_routes
from bottomless_server.node.core.admission import Admission
from bottomless_server.node.room import MemoryRoom
from bottomless_server.protocol.paths import of_stream
from bottomless_server.protocol.replica import (
    ITEMS,
    MEDIA_TYPE,
    NODE_HEADER,
    OPEN,
    Answer,
    Item,
    OpenSaid,
    Taken,
    decode_answers,
    decode_open_said,
    encode_items,
    encode_opening,
)
from bottomless_server.runtime.http.app import create_api, wrap
from unit.ingest.harness import STREAM
from unit.ingest.replica_logs import FollowerNode, OwnerLog
from unit.ingest.served_nodes import NODE


class Served:
    """A follower behind its routes."""

    def __init__(self, follower: FollowerNode, client: httpx.AsyncClient) -> None:
        self.follower = follower
        self.client = client

    async def open(self, body: bytes) -> httpx.Response:
        return await self.client.post(of_stream(OPEN, STREAM), content=body)

    async def opened(self, owner: OwnerLog) -> OpenSaid:
        answer = await self.open(encode_opening(owner.opening))
        assert answer.status_code == 200
        return decode_open_said(answer.content)

    async def take(self, body: bytes, media_type: str = MEDIA_TYPE) -> httpx.Response:
        return await self.client.post(ITEMS, content=body, headers={"content-type": media_type})

    async def taken(self, *items: Item) -> list[Answer]:
        answer = await self.take(b"".join(encode_items(items)))
        assert answer.status_code == 200
        return decode_answers(answer.content, len(items))


@asynccontextmanager
async def serving(*, by_search: bool = False) -> AsyncIterator[Served]:
    """`by_search`: the framework finds the route, and not the shortcut."""
    follower = FollowerNode()
    api = create_api("a follower")
    monotonic = follower.clocks.clocks().monotonic
    room = MemoryRoom(Admission(2**20, 2**20), monotonic, 0)
    routes = ReplicaRoutes(follower.following, room, lambda: NODE, monotonic)
    app = add_replica_routes(api, routes)
    async with client_of(wrap(api if by_search else app)) as client:
        yield Served(follower, client)
    await follower.aclose()


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving() as one:
        yield one


async def test_a_log_is_opened_and_filled(served: Served) -> None:
    owner, end = OwnerLog(), None
    owner.append(50, 600, 600)
    assert await served.opened(owner) == OpenSaid(None, None)
    while (piece := owner.piece(end)) is not None:
        assert await served.taken(owner.item(piece)) == [Answer(Taken.OK, piece.end)]
        end = piece.end
    assert served.follower.files() == owner.files
    assert await served.opened(owner) == OpenSaid(None, end)


async def test_an_owner_of_the_past_and_one_that_knows_less_are_told_so(served: Served) -> None:
    owner = OwnerLog()
    owner.append(50, 600, 600, 600, 600)
    await served.follower.copy(owner)
    past = owner.opening
    owner.forget(1)
    owner.claim()
    served.follower.here.in_sync = True
    assert await served.opened(owner) == OpenSaid("diverged", None)
    answer = await served.open(encode_opening(past._replace(epoch=0)))
    assert answer.json() == {"refusal": "fenced", "end": None}


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"epoch":1}', encode_opening(OwnerLog().opening)[:-1]]
)
async def test_what_opens_nothing_is_refused(served: Served, body: bytes) -> None:
    answer = await served.open(body)
    assert (answer.status_code, answer.json()["code"]) == (422, "validation-failed")
    assert not served.follower.following.in_use(STREAM)


@pytest.mark.parametrize("guarded", [True, False])
async def test_a_node_that_came_back_with_another_disk_is_not_taken_for_the_one_before(
    served: Served, guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not guarded:
        remove(monkeypatch, "the node that is meant", lambda *_: None)
    owner = OwnerLog()
    owner.append(50)
    opening = encode_opening(owner.opening)
    body = b"".join(encode_items([owner.item(owner.piece(None))]))
    for node, status in ((NodeId("e" * 32), 503 if guarded else 200), (NODE, 200)):
        headers: dict[str, str] = {NODE_HEADER: node}
        opened = await served.client.post(of_stream(OPEN, STREAM), content=opening, headers=headers)
        headers["content-type"] = MEDIA_TYPE
        taken = await served.client.post(ITEMS, content=body, headers=headers)
        assert (opened.status_code, taken.status_code) == (status, status), opened.text
        assert served.follower.following.in_use(STREAM) == (status == 200)


@pytest.mark.parametrize("by_search", [False, True])
async def test_what_is_for_a_node_that_is_gone_is_told_once_however_often_it_comes(
    by_search: bool,
) -> None:
    headers: dict[str, str] = {NODE_HEADER: "e" * 32, "content-type": MEDIA_TYPE}
    async with serving(by_search=by_search) as served:
        with structlog.testing.capture_logs() as logs:
            for path in (ITEMS, of_stream(OPEN, STREAM)) * 3:
                answer = await served.client.post(path, content=b"", headers=headers)
                assert answer.status_code == 503
    assert [(entry["event"], entry["node"]) for entry in logs] == [
        ("owners send for a node that had this address before", "e" * 32)
    ]


async def test_a_damaged_body_is_refused_wherever_it_is_damaged(served: Served) -> None:
    owner = OwnerLog()
    owner.append(50)
    await served.opened(owner)
    body = b"".join(encode_items([owner.item(owner.piece(None))]))
    for position in range(0, len(body), 7):
        damaged = bytearray(body)
        damaged[position] ^= 1
        answer = await served.take(bytes(damaged))
        assert (answer.status_code, answer.json()["code"]) == (422, "crc-mismatch")
    assert served.follower.files() == {}
    assert (await served.take(body)).status_code == 200


async def test_a_body_of_another_kind_is_refused(served: Served) -> None:
    answer = await served.take(b"{}", "application/json")
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported-media-type")


async def test_the_shortcut_answers_as_the_search_does() -> None:
    owner = OwnerLog()
    owner.append(50)
    whole = b"".join(encode_items([owner.item(owner.piece(None))]))
    said = []
    for by_search in (False, True):
        async with serving(by_search=by_search) as served:
            await served.opened(owner)
            found = []
            for body, kind in (
                (whole, MEDIA_TYPE),
                (whole, MEDIA_TYPE),
                (whole[:-1], MEDIA_TYPE),
                (b"{}", "application/json"),
            ):
                answer = await served.take(body, kind)
                problem = {**answer.json(), "request_id": ""} if answer.is_error else answer.json()
                kept = {n: v for n, v in answer.headers.items() if n not in ("request-id", "date")}
                found.append((answer.status_code, problem, kept))
            other = await served.client.get(ITEMS)
            assert (other.status_code, other.headers["allow"]) == (405, "POST")
            said.append(found)
    assert said[0] == said[1]
    assert [status for status, _, _ in said[0]] == [200, 200, 422, 415]
