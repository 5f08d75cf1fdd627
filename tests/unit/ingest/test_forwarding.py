"""A request that reaches a node which does not own its stream is passed on, once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.testing import capture_logs
from support.asgi import client_of, on_tcp
from support.guards import remove
from support.raw_server import NOTHING, Asked, RawServer, Script, raw_server
from support.raw_server import answer as raw_answer
from support.raw_server import problem as raw_problem
from support.waiting import eventually

from bottomless.errors import Unavailable
from bottomless.model.names import TENANT_DEFAULT
from bottomless_server.core.principal import Principal
from bottomless_server.ingest.front import routes
from bottomless_server.node.core.admission import Admission
from bottomless_server.node.forwarding import Forwarding
from bottomless_server.node.kept_body import KEPT_SIZE_MAX, KeptBody
from bottomless_server.node.room import MemoryRoom
from bottomless_server.protocol.forwarding import ACTOR, TENANT
from bottomless_server.protocol.paths import of_stream
from bottomless_server.protocol.tail import LOCATE, LocateAsked
from bottomless_server.runtime.base.principal import note_principal
from bottomless_server.runtime.http.app import wrap
from bottomless_server.runtime.http.tracing import Requests
from unit.ingest.harness import ROUTE, STREAM, IngestHarness, problem

PRODUCERS = "/v1/streams/orders/producers"


def noting(app: ASGIApp, scopes: list[Scope]) -> ASGIApp:
    async def noted(scope: Scope, receive: Receive, send: Send) -> None:
        scopes.append(scope)
        await app(scope, receive, send)

    return noted


@asynccontextmanager
async def two_nodes(
    tmp_path: Path, scopes: list[Scope]
) -> AsyncIterator[tuple[IngestHarness, IngestHarness]]:
    """The owner of the stream, by its internal listener, and another node."""
    async with AsyncExitStack() as stack:
        served: list[ASGIApp] = []

        async def internal(scope: Scope, receive: Receive, send: Send) -> None:
            await served[0](scope, receive, send)

        url = f"http://127.0.0.1:{await stack.enter_async_context(on_tcp(internal))}"
        owner = await IngestHarness(tmp_path / "owner", ingest_url=url).declare()
        app = wrap(noting(owner.service.internal, scopes))
        served.append(Requests(access_log=False).around(app, trusted=True))
        await owner.start()
        assert (await owner.append("a")).status_code == 200
        other = IngestHarness(tmp_path / "other", before=owner, ingest_url="unix:///nobody.sock")
        await other.start()
        yield owner, other
        await other.aclose()
        await owner.aclose()


@pytest.fixture
def scopes() -> list[Scope]:
    """Of the requests that reached the owner's internal listener."""
    return []


@pytest.fixture
async def nodes(
    tmp_path: Path, scopes: list[Scope]
) -> AsyncIterator[tuple[IngestHarness, IngestHarness]]:
    async with two_nodes(tmp_path, scopes) as made:
        yield made


async def test_an_append_at_another_node_is_stored_by_the_owner(
    nodes: tuple[IngestHarness, IngestHarness], scopes: list[Scope]
) -> None:
    owner, other = nodes
    answer = await other.append("b")

    assert answer.status_code == 200, answer.text
    assert (answer.json()["first_offset"], answer.json()["stream_id"]) == (1, STREAM)
    assert answer.headers["stream-next-offset"] == "2"
    assert await owner.values() == [b"a", b"b"]
    assert (await owner.record()).epoch == 1
    assert [scope["path"] for scope in scopes] == [ROUTE]
    counts = other.service.counts
    assert (counts.forwarded, counts.forwarded_unanswered, counts.appends) == (1, 0, 0)


async def test_a_large_body_of_unknown_size_is_passed_on_as_it_comes(
    nodes: tuple[IngestHarness, IngestHarness],
) -> None:
    owner, other = nodes

    async def parts() -> AsyncIterator[bytes]:
        for _ in range(15):
            yield b"x" * 65_536

    headers = {"content-type": "application/octet-stream", "prefer": "return=minimal"}
    answer = await other.client.post(ROUTE, content=parts(), headers=headers)

    assert (answer.status_code, answer.headers["stream-first-offset-appended"]) == (204, "1")
    assert (await owner.values())[1] == b"x" * 15 * 65_536


async def test_a_refusal_of_the_owner_comes_back_as_it_is(
    nodes: tuple[IngestHarness, IngestHarness],
) -> None:
    _, other = nodes
    answer = await other.append_raw(b"{", **{"producer-id": "p"})

    assert problem(answer)[0] == 400
    headers = {"stream-expected-offset": "9"}
    mismatch = await other.append_raw(b'{"records":[{"value":"x"}]}', **headers)
    assert problem(mismatch) == (412, "offset-mismatch")
    assert mismatch.json()["outcome"] == "none"


async def test_producers_are_shown_and_changed_where_the_stream_is(
    nodes: tuple[IngestHarness, IngestHarness],
) -> None:
    owner, other = nodes
    body = b'{"records":[{"value":"x"}]}'
    answer = await other.append_raw(body, **{"producer-id": "p", "producer-seq": "0"})
    assert answer.status_code == 200, answer.text

    shown = await other.client.get(PRODUCERS)
    raised = await other.client.post(f"{PRODUCERS}/p/epoch")
    forgotten = await other.client.delete(f"{PRODUCERS}/p")

    assert [item["producer_id"] for item in shown.json()["items"]] == ["p"]
    assert (raised.status_code, raised.json()["epoch"]) == (200, 1)
    assert forgotten.status_code == 204
    assert (await owner.client.get(f"{PRODUCERS}/p")).status_code == 404


async def test_who_asks_and_which_request_it_is_go_along(
    nodes: tuple[IngestHarness, IngestHarness], scopes: list[Scope]
) -> None:
    _, other = nodes

    async def known(scope: Scope, receive: Receive, send: Send) -> None:
        note_principal(scope, Principal(TENANT_DEFAULT, "Zoë/1"))
        await other.service.public(scope, receive, send)

    app = Requests(access_log=False).around(wrap(known), trusted=True)
    trace = f"00-{'a' * 32}-{'b' * 16}-01"
    page = {"origin": "https://app.example.org", "referer": "https://app.example.org/x"}
    sent = {"request-id": "r-1", "traceparent": trace, "authorization": "Bearer secret", **page}
    async with client_of(app) as client:
        answer = await client.post(ROUTE, json={"records": [{"value": "b"}]}, headers=sent)

    assert answer.status_code == 200, answer.text
    assert answer.headers.get_list("request-id") == ["r-1"]
    headers = {name.decode(): value.decode() for name, value in scopes[0]["headers"]}
    principal = scopes[0]["bottomless.principal"]
    assert (principal.tenant, principal.actor) == (TENANT_DEFAULT, "Zoë/1")
    assert principal.authenticated
    assert not principal.grants.allow("append", "orders"), "it was looked at already"
    assert headers["request-id"] == "r-1"
    assert headers["traceparent"].split("-")[1] == "a" * 32
    # An origin was judged where the page asked: the owner does not know which are allowed there.
    assert not {"authorization", "origin", "referer"} & headers.keys()


async def test_what_was_passed_on_is_not_passed_on_again(
    nodes: tuple[IngestHarness, IngestHarness],
) -> None:
    _, other = nodes
    headers = {TENANT.decode(): TENANT_DEFAULT}
    refused = await other.internal.post(ROUTE, json={"records": [{"value": "b"}]}, headers=headers)

    assert problem(refused) == (503, "not-owner")
    assert refused.json()["outcome"] == "none"
    shown = await other.internal.get(PRODUCERS, headers=headers)
    assert problem(shown) == (503, "not-owner")


async def test_a_node_that_is_asked_for_the_tail_of_another_one_writes_no_line_each_time(
    nodes: tuple[IngestHarness, IngestHarness],
) -> None:
    """Uploader and reader ask each second while nobody owns a stream, and say themselves what they wait for."""
    _, other = nodes
    asked = LocateAsked(0)
    with capture_logs() as logs:
        assert problem(await other.chunks(0)) == (503, "not-owner")
        located = await other.internal.get(of_stream(LOCATE, STREAM), params=asked.params())
        assert problem(located) == (503, "not-owner")
    assert logs == []
    with capture_logs() as logs:
        headers = {TENANT.decode(): TENANT_DEFAULT}
        await other.internal.get(PRODUCERS, headers=headers)
    assert [line["event"] for line in logs] == ["request failed"]


async def test_nobody_outside_can_say_who_they_are(
    nodes: tuple[IngestHarness, IngestHarness], scopes: list[Scope]
) -> None:
    _, other = nodes
    claimed = {TENANT.decode(): "another", ACTOR.decode(): "root"}
    app = wrap(other.service.public)
    async with client_of(app) as client:
        await client.get(PRODUCERS, headers=claimed)
        await client.post(ROUTE, json={"records": [{"value": "b"}]}, headers=claimed)

    for scope in scopes:
        assert scope["bottomless.principal"].tenant == TENANT_DEFAULT
        assert not scope["bottomless.principal"].authenticated


async def test_the_internal_listener_serves_no_public_path_of_its_own(
    nodes: tuple[IngestHarness, IngestHarness],
) -> None:
    owner, _ = nodes
    assert (await owner.internal.get(PRODUCERS)).status_code == 404


async def answered_by(tmp_path: Path, script: Script) -> tuple[httpx.Response, IngestHarness]:
    """What an append gets whose owner, alive by its lease, is this script."""
    async with raw_server(script) as server:
        owner = await IngestHarness(tmp_path / "owner", ingest_url=server.url).declare()
        await owner.start()
        assert (await owner.append("a")).status_code == 200
        other = IngestHarness(
            tmp_path / "other",
            before=owner,
            ingest_url="unix:///other.sock",
            ingest_forward_ms=500,
        )
        await other.start()
        answer = await other.append("b")
        await other.aclose()
        await owner.aclose()
        return answer, other


async def test_a_reply_that_is_lost_leaves_the_outcome_unknown(tmp_path: Path) -> None:
    answer, other = await answered_by(tmp_path, lambda _: NOTHING)

    assert problem(answer) == (503, "peer-unavailable")
    assert answer.json()["outcome"] == "unknown"
    assert other.service.counts.forwarded_unanswered == 1


async def test_an_owner_that_is_silent_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    async def silent(_: Asked) -> bytes:
        await asyncio.Event().wait()
        raise AssertionError

    answer, _ = await answered_by(tmp_path, silent)

    assert problem(answer) == (503, "peer-unavailable")
    assert answer.json()["outcome"] == "unknown"


async def test_an_owner_that_cannot_be_reached_got_nothing(tmp_path: Path) -> None:
    owner = await IngestHarness(tmp_path / "owner", ingest_url="unix:///owner.sock").declare()
    await owner.start()
    assert (await owner.append("a")).status_code == 200
    other = IngestHarness(tmp_path / "other", before=owner, ingest_url="unix:///other.sock")
    await other.start()
    answer = await other.append("b")

    assert problem(answer) == (503, "not-owner")
    assert (answer.json()["outcome"], answer.headers["retry-after"]) == ("none", "1")
    await other.aclose()
    await owner.aclose()


async def asked_of_an_owner(method: str) -> list[str]:
    """What arrives where an owner ends the connection that was kept, without an answer, and lives on."""
    answers = [raw_answer(), NOTHING, raw_answer()]
    passing = Forwarding(60.0)
    async with raw_server(lambda _: answers.pop(0)) as server:
        await passing.send(server.url, "GET", "/", b"", {})
        with suppress(Unavailable):
            await passing.send(server.url, method, "/", b"", {})
        await passing.aclose()
        return [asked.method for asked in server.asked]


@pytest.mark.parametrize("method", ["DELETE", "PUT", "PATCH", "POST"])
async def test_a_change_is_passed_on_once(method: str) -> None:
    """The first may have been done. A second would be refused, or delete what was created since."""
    assert await asked_of_an_owner(method) == ["GET", method]


async def test_without_its_guard_a_deletion_is_passed_on_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(monkeypatch, "a change is passed on once", lambda _: None)
    assert await asked_of_an_owner("DELETE") == ["GET", "DELETE", "DELETE"]


async def test_what_only_looks_is_asked_once_more() -> None:
    assert await asked_of_an_owner("GET") == ["GET", "GET", "GET"]


async def test_an_owner_that_gives_its_streams_up_is_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "GIVEN_AWAY_SECONDS", 0)
    async with raw_server(lambda _: raw_problem(503, "draining")) as server:
        owner = await IngestHarness(tmp_path / "owner", ingest_url=server.url).declare()
        await owner.start()
        assert (await owner.append("a")).status_code == 200
        await owner.published(1)
        other = IngestHarness(tmp_path / "other", before=owner, ingest_url="unix:///other.sock")
        await other.start()

        assert problem(await other.append("b")) == (503, "draining")
        await owner.aclose()
        # No time has passed: only the word of the owner makes it ask coordination again.
        assert (await other.append("b")).json()["first_offset"] == 1
        await other.aclose()


class Moving(NamedTuple):
    """A stream whose owner, reached at a script, gives it away in the middle of a request."""

    before: IngestHarness
    server: RawServer
    other: IngestHarness
    """Passes requests on."""
    next: IngestHarness
    """May own it afterwards."""

    async def given(self, to: IngestHarness | None = None) -> None:
        """The owner leaves the stream, and another one, or nobody yet, claims it."""
        await self.before.aclose()
        if to is not None:
            await to.service.streams.get(STREAM)


@asynccontextmanager
async def moving(tmp_path: Path) -> AsyncIterator[Moving]:
    """The script answers 200 until a test says otherwise; `other` knows who owns the stream."""
    async with AsyncExitStack() as stack:
        served: list[ASGIApp] = []

        async def internal(scope: Scope, receive: Receive, send: Send) -> None:
            await served[0](scope, receive, send)

        server = await stack.enter_async_context(raw_server(lambda _: raw_answer()))
        owner = await IngestHarness(tmp_path / "owner", ingest_url=server.url).declare()
        await owner.start()
        assert (await owner.append("a")).status_code == 200
        await owner.published(1)
        url = f"http://127.0.0.1:{await stack.enter_async_context(on_tcp(internal))}"
        then = IngestHarness(tmp_path / "next", before=owner, ingest_url=url)
        app = wrap(then.service.internal)
        served.append(Requests(access_log=False).around(app, trusted=True))
        other = IngestHarness(tmp_path / "other", before=owner, ingest_url="unix:///other.sock")
        for node in (then, other):
            await node.start()
        assert (await other.append("known")).status_code == 200
        yield Moving(owner, server, other, then)
        await other.aclose()
        await then.aclose()
        await owner.aclose()


async def stored_at(node: IngestHarness) -> list[bytes]:
    """The values after the first, which is in object storage."""
    return [row["value"] for row in await node.rows(1)]


async def test_an_append_goes_to_the_next_owner_where_the_one_before_has_just_given_the_stream_away(
    tmp_path: Path,
) -> None:
    async with moving(tmp_path) as nodes:

        async def gives_it(_: Asked) -> bytes:
            await nodes.given(nodes.next)
            return raw_problem(503, "not-owner")

        nodes.server.script = gives_it
        answer = await nodes.other.append("b")

        assert (answer.status_code, answer.json()["first_offset"]) == (200, 1), answer.text
        assert await stored_at(nodes.next) == [b"b"]
        assert nodes.other.service.counts.forwarded == 3
        assert nodes.other.service.room.admission.total == 0, "what was kept of its body"


async def test_an_append_is_stored_here_where_its_owner_has_just_given_the_stream_to_this_node(
    tmp_path: Path,
) -> None:
    async with moving(tmp_path) as nodes:

        async def gives_it(_: Asked) -> bytes:
            await nodes.given()
            return raw_problem(503, "not-owner")

        nodes.server.script = gives_it
        answer = await nodes.other.append("b")

        assert (answer.status_code, answer.json()["first_offset"]) == (200, 1), answer.text
        assert await stored_at(nodes.other) == [b"b"]


async def test_producers_are_changed_where_the_stream_has_just_gone(tmp_path: Path) -> None:
    async with moving(tmp_path) as nodes:

        async def gives_it(_: Asked) -> bytes:
            await nodes.given(nodes.next)
            return raw_problem(503, "not-owner")

        nodes.server.script = gives_it
        raised = await nodes.other.client.post(f"{PRODUCERS}/p/epoch")

        assert (raised.status_code, raised.json()["epoch"]) == (200, 1), raised.text
        assert (await nodes.next.client.get(f"{PRODUCERS}/p")).status_code == 200


async def test_an_append_waits_for_the_next_owner_of_a_node_that_is_about_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Longer than any machine takes for it: that it waits is what is asked, and not for how long.
    monkeypatch.setattr(routes, "GIVEN_AWAY_SECONDS", 240)
    async with moving(tmp_path) as nodes:
        nodes.server.script = lambda _: raw_problem(503, "draining")
        appending = asyncio.create_task(nodes.other.append("b"))
        await eventually(lambda: len(nodes.server.asked) == 2)
        await nodes.given()

        answer = await appending
        assert (answer.status_code, answer.json()["first_offset"]) == (200, 1), answer.text
        assert len(nodes.server.asked) == 2, "it is asked once, and then coordination"


async def asked_of_one_that_stored(nodes: Moving, outcome: str) -> httpx.Response:
    """What an append gets whose owner stores it, gives the stream away, and says this of it."""

    async def stores_it(asked: Asked) -> bytes:
        assert (await nodes.before.append_raw(asked.body)).status_code == 200
        await nodes.before.published(2)
        await nodes.given(nodes.next)
        return raw_problem(503, "not-owner", outcome=outcome)

    nodes.server.script = stores_it
    return await nodes.other.append("b")


async def test_what_may_be_stored_is_not_sent_to_the_next_owner(tmp_path: Path) -> None:
    async with moving(tmp_path) as nodes:
        answer = await asked_of_one_that_stored(nodes, "unknown")

        assert problem(answer) == (503, "not-owner")
        assert answer.json()["outcome"] == "unknown"
        assert (await nodes.next.append("c")).json()["first_offset"] == 2


async def test_without_its_guard_an_append_is_stored_by_two_owners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(
        monkeypatch, "nothing done before a request goes to the next owner", lambda _outcome: True
    )
    async with moving(tmp_path) as nodes:
        answer = await asked_of_one_that_stored(nodes, "unknown")

        assert (answer.status_code, answer.json()["first_offset"]) == (200, 2), "the second time"


async def test_a_large_body_is_sent_once(tmp_path: Path) -> None:
    async with moving(tmp_path) as nodes:

        async def gives_it(_: Asked) -> bytes:
            await nodes.given(nodes.next)
            return raw_problem(503, "not-owner")

        nodes.server.script = gives_it
        answer = await nodes.other.append("b" * (KEPT_SIZE_MAX + 1))

        assert problem(answer) == (503, "not-owner")
        assert nodes.other.service.room.admission.total == 0


async def test_two_nodes_that_take_each_other_for_the_owner_are_each_asked_once(
    tmp_path: Path,
) -> None:
    async with (
        moving(tmp_path) as nodes,
        raw_server(lambda _: raw_problem(503, "not-owner")) as two,
    ):

        async def names_another(_: Asked) -> bytes:
            record = await nodes.before.record()
            named = replace(record, owner_url=two.url)
            await nodes.before.streams.update(STREAM, lambda _: named)
            return raw_problem(503, "not-owner")

        nodes.server.script = names_another
        answer = await nodes.other.append("b")

        assert problem(answer) == (503, "not-owner")
        assert (len(nodes.server.asked), len(two.asked)) == (2, 1)


def parts_of(*parts: bytes) -> Receive:
    """A body in these parts."""
    rest = list(parts)

    async def receive() -> Message:
        part = rest.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(rest)}

    return receive


async def whole(receive: Receive) -> bytes:
    """A body to its end."""
    got, more = b"", True
    while more:
        message = await receive()
        got, more = got + message["body"], message["more_body"]
    return got


def room_of(size: int) -> MemoryRoom:
    """Room for so many bytes, for which nobody waits."""
    return MemoryRoom(Admission(size, size), lambda: 0.0, 0.0)


async def test_a_body_that_is_kept_is_given_again_with_what_had_not_come_yet() -> None:
    room = room_of(100)
    with KeptBody(parts_of(b"one", b"two", b"three"), room, "a") as body:
        assert (await body.receive())["body"] == b"one"
        assert room.admission.total == 3
        assert await whole(body.again()) == b"onetwothree"
    assert room.admission.total == 0


@pytest.mark.parametrize("size", [4, 5])
async def test_a_body_for_which_there_is_no_room_is_not_kept_and_waits_for_none(size: int) -> None:
    room = room_of(5)
    async with room.hold("another", size):
        with KeptBody(parts_of(b"o", b"ne"), room, "a") as body:
            assert await whole(body.receive) == b"one"
            assert not body.is_kept
            assert room.admission.total == size


async def test_a_node_does_not_pass_on_to_its_own_address(
    tmp_path: Path, scopes: list[Scope]
) -> None:
    """A new disk where the old one was: its lease may live on for a moment, its process does not."""
    async with two_nodes(tmp_path, scopes) as (owner, _):
        renewed = IngestHarness(tmp_path / "renewed", before=owner)
        await renewed.start()

        assert problem(await renewed.append("b")) == (503, "not-owner")
        assert (scopes, renewed.service.counts.forwarded) == ([], 0)
        await renewed.aclose()
