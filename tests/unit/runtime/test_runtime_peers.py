"""Peers: what a service raises is what its caller catches."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from support.asgi import on_socket, on_tcp

from bottomless.client.problems import CLASSES
from bottomless.errors import Code, Fault, Outcome, StoreError, Unavailable
from bottomless_server.runtime.http.app import (
    create_api,
    json_response,
    parse_json,
    read_body,
    wrap,
)
from bottomless_server.runtime.peers.peers import Peer, Peers


def an_app() -> ASGIApp:
    api = create_api("test")

    @api.api_route("/fail/{code}", methods=["GET", "POST"])
    async def fail(code: str) -> Any:
        wanted = Code(code)
        raise CLASSES[wanted](
            "this is why",
            code=wanted,
            retryable=True,
            outcome=Outcome.UNKNOWN,
            retry_after_seconds=7,
            faults=[Fault("a", "b", pointer="/c")],
            facts={"epoch": 4, "bounds": [1, 2]},
        )

    @api.post("/echo")
    async def echo(request: Request) -> Any:
        body = await read_body(request.scope, request.receive, 1_000)
        return json_response([parse_json(body), dict(request.query_params)], 201)

    @api.get("/bytes")
    async def raw() -> Any:
        return Response(b"x" * 3_000_000, headers={"Chunks-Epoch": "4"})

    @api.get("/same")
    async def same(request: Request) -> Any:
        assert request.headers["if-none-match"] == '"v4"'
        return Response(status_code=304, headers={"ETag": '"v4"'})

    @api.get("/plain")
    async def plain() -> Any:
        return PlainTextResponse("no", 418)

    return wrap(api)


@pytest.mark.parametrize("bulk", [False, True])
async def test_every_problem_comes_back_as_what_it_was(tmp_path: Path, bulk: bool) -> None:
    async with on_socket(an_app(), tmp_path / "s.sock") as url, Peer(url, name="test") as peer:
        for code in Code:
            path = f"/fail/{code}"
            with pytest.raises(StoreError) as caught:
                await (peer.fetch(path) if bulk else peer.call("POST", path))
            error = caught.value
            assert type(error) is CLASSES[code]
            assert error.code is code
            assert error.message == "this is why"
            assert error.retryable is True
            assert error.retry_after_seconds == 7
            assert error.faults == (Fault("a", "b", pointer="/c"),)
            assert error.facts["epoch"] == 4
            assert error.facts["bounds"] == [1, 2]
            if not bulk:
                assert error.outcome is Outcome.UNKNOWN


async def test_calls_carry_json_both_ways(tmp_path: Path) -> None:
    async with on_socket(an_app(), tmp_path / "s.sock") as url, Peer(url, name="test") as peer:
        answer = await peer.call("POST", "/echo", params={"a": 1}, body={"b": 2})
        assert (answer.status, answer.body) == (201, [{"b": 2}, {"a": "1"}])
        assert answer.headers["Request-Id"]
        unchanged = await peer.call("GET", "/same", headers={"if-none-match": '"v4"'})
        assert (unchanged.status, unchanged.headers["etag"], unchanged.body) == (304, '"v4"', None)


async def test_bulk_comes_whole_with_its_headers(tmp_path: Path) -> None:
    async with on_tcp(an_app()) as port, Peer(f"http://127.0.0.1:{port}", name="test") as peer:
        answer = await peer.fetch("/bytes")
    assert answer.data == b"x" * 3_000_000
    assert answer.headers["chunks-epoch"] == "4"


async def test_an_answer_that_is_no_problem_is_a_peer_that_is_not_there(tmp_path: Path) -> None:
    async with on_socket(an_app(), tmp_path / "s.sock") as url, Peer(url, name="test") as peer:
        for asking in (peer.call("GET", "/plain"), peer.fetch("/plain")):
            with pytest.raises(Unavailable, match="status=418") as caught:
                await asking
            assert caught.value.code is Code.PEER_UNAVAILABLE


async def test_no_connection_means_that_nothing_happened(tmp_path: Path) -> None:
    async with Peer(f"unix://{tmp_path}/nobody.sock", name="test") as peer:
        for asking in (peer.call("POST", "/"), peer.fetch("/")):
            with pytest.raises(Unavailable) as caught:
                await asking
            assert caught.value.code is Code.PEER_UNAVAILABLE
            assert caught.value.outcome is Outcome.NONE


@pytest.mark.parametrize(("method", "outcome"), [("GET", Outcome.NONE), ("POST", Outcome.UNKNOWN)])
@pytest.mark.parametrize("behaviour", ["silent", "hangs up"])
async def test_a_lost_answer_to_a_write_leaves_its_outcome_unknown(
    tmp_path: Path, method: str, outcome: Outcome, behaviour: str
) -> None:
    serving = list[asyncio.Task[None]]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if behaviour == "silent":
            await reader.read()
        writer.close()
        await writer.wait_closed()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(asyncio.create_task(serve(reader, writer)))

    server = await asyncio.start_unix_server(begin, tmp_path / "s.sock")
    # Time enough to be asked, also where this process stands still for a moment.
    seconds = 1 if behaviour == "silent" else 240
    url = f"unix://{tmp_path}/s.sock"
    async with server, Peer(url, name="test", timeout_seconds=seconds) as peer:
        with pytest.raises(Unavailable) as caught:
            await peer.call(method, "/")
    assert caught.value.outcome is outcome
    await asyncio.gather(*serving)
    assert method == "GET" or len(serving) == 1, "a write is never sent again"


async def test_a_fetch_that_breaks_off_gives_nothing(tmp_path: Path) -> None:
    async def half(scope: Scope, receive: Receive, send: Send) -> None:
        start: Message = {"type": "http.response.start", "status": 200}
        await send({**start, "headers": [(b"content-length", b"8")]})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})

    async with on_socket(half, tmp_path / "s.sock") as url, Peer(url, name="test") as peer:
        with pytest.raises(Unavailable):
            await peer.fetch("/")


async def test_peers_are_opened_once_by_url(tmp_path: Path) -> None:
    peers = Peers(name="ingest")
    assert peers.at("unix:///a.sock") is peers.at("unix:///a.sock")
    assert peers.at("http://a:1") is not peers.at("unix:///a.sock")
    with pytest.raises(ValueError, match="ingest"):
        peers.at("/a.sock")
    await peers.aclose()


async def test_a_call_after_the_end_opens_nothing_anew(tmp_path: Path) -> None:
    async with on_socket(an_app(), tmp_path / "s.sock") as url:
        peers = Peers(name="test")
        await peers.at(url).fetch("/bytes")
        await peers.aclose()
        for asking in (peers.at(url).call("POST", "/echo", body=1), peers.at(url).fetch("/bytes")):
            with pytest.raises(Unavailable) as caught:
                await asking
            assert caught.value.outcome is Outcome.NONE
